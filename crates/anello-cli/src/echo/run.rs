//! Workers of the echo server: accepting, serving and drain.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use anello::net::{Echo, GroupListener, GroupMember, ShutdownHandle, Stream, echo};
use anello::signal::{INTERRUPT, Signals, TERMINATE};
use anello::time::{sleep, timeout};
use anello::{JoinHandle, WorkerContext, Workers};

use super::exchange::{self, Sizes};
use super::flags::Arguments;
use crate::common::cores::Cores;
use crate::common::driver_flags::DriverFlags;
use crate::common::listening::{Listening, finish_accepting};
use crate::common::{activation, limits, output};

/// State shared by the workers.
struct Service {
    listening: Listening,
    sizes: Option<Sizes>,
    max_connections: usize,
    connections: AtomicUsize,
    idle_timeout: Option<Duration>,
    drain_timeout: Duration,
    driver: DriverFlags,
}

/// Runs the echo server until a signal.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    arguments.cores.as_ref().map_or(Ok(()), Cores::check)?;
    // Must run before the process opens any descriptor.
    let passed = activation::take()?.without_metrics()?;
    limits::raise_open_files();
    let cores = arguments.cores.map(|cores| cores.0);
    let workers = cores.as_ref().map_or(1, Vec::len);
    let sizes = arguments.request_bytes.zip(arguments.response_bytes);
    let listening =
        Listening::from_passed_or_bind(arguments.addr.as_ref(), "127.0.0.1:7000", passed, workers)?;
    listening.set_distribution(arguments.distribution);
    listening.resume();
    let service = Arc::new(Service {
        listening,
        sizes: sizes.map(|(request, response)| Sizes {
            request_bytes: request.get(),
            response_bytes: response.get(),
        }),
        max_connections: arguments.max_connections,
        connections: AtomicUsize::new(0),
        idle_timeout: arguments.idle_timeout,
        drain_timeout: arguments.drain_timeout,
        driver: arguments.driver,
    });
    let builder = service.driver.builder();
    let Some(cores) = cores else {
        let only = WorkerContext { index: 0, count: 1, core: None };
        builder.build()?.block_on(serve(service, only))?;
        return Ok(ExitCode::SUCCESS);
    };
    let workers = Workers::builder()
        .cores(cores)
        .runtime(builder)
        .start(move |worker| serve(Arc::clone(&service), worker))?;
    for result in workers.join()? {
        result?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one worker: accepts until a signal, then drains.
async fn serve(service: Arc<Service>, worker: WorkerContext) -> io::Result<()> {
    let listeners = service.listening.join(worker.index);
    let mut signals = Signals::new(&[INTERRUPT, TERMINATE])?;
    if worker.index == 0 {
        announce(&service, worker.count);
    }
    let open = Rc::new(OpenConnections::default());
    let internet = listeners.internet.map(|member| accept(member, &service, &open));
    let unix = listeners.unix.map(|member| accept(member, &service, &open));
    let signal_received = service.listening.wait_for_shutdown(&mut signals).await?;
    service.listening.close();
    finish_accepting(&mut internet.into_iter().chain(unix).collect::<Vec<_>>()).await;
    // The first signal started this shutdown, so it takes one more to cut the drain short. If accepting was stopped by
    // another worker, this worker has yet to receive the first signal.
    let remaining_signals = if signal_received { 1 } else { 2 };
    open.drain(service.drain_timeout, &mut signals, remaining_signals).await;
    Ok(())
}

/// Prints the ready line.
fn announce(service: &Service, workers: usize) {
    let listening = &service.listening;
    let Some(driver) = anello::current_driver() else { return };
    let (name, features) = (driver.name, &driver.features);
    output::announce(&format!(
        "anello echo ready addr={listening} driver={name} features={features} workers={workers} {}\n",
        listening.summary()
    ));
    if let Some(reason) = &driver.fallback_reason {
        output::print_stderr(format_args!("anello: io_uring unavailable, using epoll: {reason}"));
    }
    service.driver.report_ignored(name);
}

fn accept<L: GroupListener>(
    member: GroupMember<L>,
    service: &Arc<Service>,
    open: &Rc<OpenConnections>,
) -> JoinHandle<()> {
    anello::spawn(accept_all(member, Arc::clone(service), Rc::clone(open)))
}

/// Accepts connections until the listeners are closed.
async fn accept_all<L: GroupListener>(
    member: GroupMember<L>,
    service: Arc<Service>,
    open: Rc<OpenConnections>,
) {
    loop {
        let stream = match member.accept().await {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if service.connections.fetch_add(1, Ordering::Relaxed) >= service.max_connections {
            service.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let permit = OpenConnections::enter(&open, &service, &stream);
        match (service.sizes, service.idle_timeout) {
            (None, None) => anello::spawn(Connection { echo: echo(stream), _permit: permit }).detach(),
            _ => anello::spawn(connection_with_options(stream, permit)).detach(),
        }
    }
}

/// A connection without sizes and idle timeout, the common case: the runtime's echo future and a permit.
///
/// Implemented by hand, because an `async` block would store the stream and the permit twice.
#[repr(C)]
struct Connection<S> {
    echo: Echo<S>,
    _permit: ConnectionPermit,
}

impl<S: Stream> Future for Connection<S> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Err(error) = ready!(Pin::new(&mut self.echo).poll(context)) {
            tracing::debug!(%error, "connection failed");
        }
        Poll::Ready(())
    }
}

async fn connection_with_options(mut stream: impl Stream, permit: ConnectionPermit) {
    let Service { sizes, idle_timeout, .. } = *permit.service;
    if let Err(error) = exchange::serve(&mut stream, sizes, idle_timeout).await {
        tracing::debug!(%error, "connection failed");
    }
}

/// The open connections of one worker.
#[derive(Default)]
struct OpenConnections {
    closers: RefCell<Vec<Option<ShutdownHandle>>>,
    vacant: RefCell<Vec<usize>>,
    count: Cell<usize>,
}

/// Slot of an open connection. Released on drop.
struct ConnectionPermit {
    open: Rc<OpenConnections>,
    service: Arc<Service>,
    index: usize,
}

impl OpenConnections {
    fn enter(open: &Rc<Self>, service: &Arc<Service>, stream: &impl Stream) -> ConnectionPermit {
        let mut closers = open.closers.borrow_mut();
        let index = open.vacant.borrow_mut().pop().unwrap_or_else(|| {
            closers.push(None);
            closers.len() - 1
        });
        closers[index] = Some(stream.shutdown_handle());
        open.count.set(open.count.get() + 1);
        ConnectionPermit { open: Rc::clone(open), service: Arc::clone(service), index }
    }

    /// Shuts down the read half of every connection, so that its task echoes what was received and finishes. Waits
    /// until all have finished, the timeout expires, or `missing` signals have arrived.
    async fn drain(&self, drain_timeout: Duration, signals: &mut Signals, mut remaining_signals: usize) {
        for shutdown_handle in self.closers.borrow().iter().flatten() {
            shutdown_handle.shutdown_read();
        }
        const STEP: Duration = Duration::from_millis(5);
        let start = Instant::now();
        while self.count.get() > 0 && start.elapsed() < drain_timeout && remaining_signals > 0 {
            match timeout(STEP, signals.recv()).await {
                Ok(Ok(_)) => remaining_signals -= 1,
                Ok(Err(error)) => {
                    tracing::error!(%error, "cannot wait for signals");
                    sleep(STEP).await;
                }
                Err(_) => {}
            }
        }
        if self.count.get() > 0 {
            tracing::warn!(
                connections = self.count.get(),
                "drain ended early, closing the remaining connections"
            );
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.closers.borrow_mut()[self.index] = None;
        self.open.vacant.borrow_mut().push(self.index);
        self.open.count.set(self.open.count.get() - 1);
        self.service.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
