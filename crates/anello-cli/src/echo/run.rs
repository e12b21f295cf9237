//! Workers of the echo server.

use std::cell::RefCell;
use std::io;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anello::Workers;
use anello::net::{Echo, GroupListener, GroupMember, ShutdownHandle, Stream, echo};
use anello::signal::{SignalKind, Signals};
use anello::time::{sleep, timeout};
use futures_util::future::select;
use slab::Slab;

use super::exchange::{self, Sizes};
use super::flags::Arguments;
use crate::common::error::invalid_input;
use crate::common::listening::{Listening, conflicting_flag_error, finish_accepting, second_signal};
use crate::common::values::Cores;
use crate::common::{activation, output, process};

/// State shared by the workers.
struct Service {
    flags: Arguments,
    listening: Listening,
    sizes: Option<Sizes>,
    connections: AtomicUsize,
}

pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    arguments.cores.as_ref().map_or(Ok(()), Cores::check)?;
    // Must be called before the process opens any descriptor.
    let passed = activation::take()?;
    if passed.metrics.is_some() {
        let cause = "unexpected metrics socket in LISTEN_FDS (this server has no metrics endpoint)";
        return Err(invalid_input(cause));
    }
    process::raise_open_files();
    let workers = arguments.cores.as_ref().map_or(1, |cores| cores.0.len());
    let listening = match (&arguments.addr, passed.sockets.is_empty()) {
        (Some(address), true) => Listening::bind(address, workers)?,
        (None, true) => Listening::bind(&"127.0.0.1:7000".parse().map_err(io::Error::other)?, workers)?,
        (None, false) => Listening::from_passed(passed.sockets, workers)?,
        (Some(_), false) => return Err(conflicting_flag_error("--addr")),
    };
    listening.set_distribution(arguments.distribution);
    listening.resume();
    let builder = arguments.driver.builder();
    let sizes = arguments.request_bytes.zip(arguments.response_bytes);
    let sizes = sizes
        .map(|(request, response)| Sizes { request_bytes: request.get(), response_bytes: response.get() });
    let cores = arguments.cores.clone();
    let service = Arc::new(Service { flags: arguments, listening, sizes, connections: AtomicUsize::new(0) });
    let Some(Cores(cores)) = cores else {
        builder.build()?.block_on(serve(service, 0, 1))?;
        return Ok(ExitCode::SUCCESS);
    };
    let workers = Workers::builder()
        .cores(cores)
        .runtime(builder)
        .start(move |worker| serve(Arc::clone(&service), worker.index, worker.count))?;
    workers.join()?.into_iter().collect::<io::Result<()>>()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one worker: accepts connections until a signal arrives, then drains them.
async fn serve(service: Arc<Service>, index: usize, workers: usize) -> io::Result<()> {
    let listeners = service.listening.join(index);
    let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate()])?;
    if index == 0 {
        announce(&service, workers);
    }
    let open = Rc::new(OpenConnections::default());
    let shared = || (Arc::clone(&service), Rc::clone(&open));
    let internet = listeners.internet.map(|member| anello::spawn(accept(member, shared())));
    let unix = listeners.unix.map(|member| anello::spawn(accept(member, shared())));
    let signal_received = service.listening.wait_for_shutdown(&mut signals).await?;
    service.listening.close();
    finish_accepting(&mut internet.into_iter().chain(unix).collect::<Vec<_>>()).await;
    open.drain(service.flags.drain_timeout, second_signal(&mut signals, signal_received)).await;
    Ok(())
}

/// Prints the ready line.
fn announce(service: &Service, workers: usize) {
    let Some(driver) = anello::current_driver() else { return };
    let (addresses, summary) = (&service.listening.addresses, service.listening.summary());
    let (name, features) = (driver.name, &driver.features);
    output::announce(&format!(
        "anello echo ready addr={addresses} driver={name} features={features} workers={workers} {summary}\n"
    ));
    service.flags.driver.report_fallback(&driver);
}

/// Accepts connections until the listeners are closed.
async fn accept<L: GroupListener>(
    member: GroupMember<L>,
    (service, open): (Arc<Service>, Rc<OpenConnections>),
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
        if service.connections.fetch_add(1, Ordering::Relaxed) >= service.flags.max_connections {
            service.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let permit = OpenConnections::enter(&open, &service, &stream);
        match (service.sizes, service.flags.idle_timeout) {
            (None, None) => anello::spawn(Connection { echo: echo(stream), _permit: permit }).detach(),
            _ => anello::spawn(connection_with_options(stream, permit)).detach(),
        }
    }
}

/// A connection with neither fixed message sizes nor an idle timeout, which is the common case. Implemented by hand,
/// because an `async` block would store the stream and the permit twice.
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
    let (sizes, idle_timeout) = (permit.service.sizes, permit.service.flags.idle_timeout);
    if let Err(error) = exchange::serve(&mut stream, sizes, idle_timeout).await {
        tracing::debug!(%error, "connection failed");
    }
}

#[derive(Default)]
struct OpenConnections(RefCell<Slab<ShutdownHandle>>);

/// Slot of an open connection. Released on drop.
struct ConnectionPermit {
    open: Rc<OpenConnections>,
    service: Arc<Service>,
    index: usize,
}

impl OpenConnections {
    fn enter(open: &Rc<Self>, service: &Arc<Service>, stream: &impl Stream) -> ConnectionPermit {
        let index = open.0.borrow_mut().insert(stream.shutdown_handle());
        ConnectionPermit { open: Rc::clone(open), service: Arc::clone(service), index }
    }

    /// Shuts down the read half of every connection, so that its task echoes what was received and finishes. Waits
    /// until all have finished, the timeout expires, or `abort_requested` completes.
    async fn drain(&self, drain_timeout: Duration, abort_requested: impl Future<Output = ()>) {
        for (_, shutdown_handle) in self.0.borrow().iter() {
            shutdown_handle.shutdown_read();
        }
        let finished = timeout(drain_timeout, async {
            while !self.0.borrow().is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        });
        select(pin!(finished), pin!(abort_requested)).await;
        let connections = self.0.borrow().len();
        if connections > 0 {
            tracing::warn!(connections, "drain ended early; closing the remaining connections");
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.0.borrow_mut().remove(self.index);
        self.service.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
