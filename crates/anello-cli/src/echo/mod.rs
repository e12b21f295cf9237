//! `anello echo`: the echo server, on TCP or a Unix socket.
//!
//! One worker per core, each with its own listener; of a Unix socket there can be but one, which they share. A signal
//! ends it politely: no more connections are accepted, what has arrived is echoed, then the connections are closed; a
//! second signal, or the deadline, ends it at once.

mod exchange;

use std::cell::{Cell, RefCell};
use std::io;
use std::num::NonZero;
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

use self::exchange::Sizes;
use crate::address::Address;
use crate::cores::{self, Cores};
use crate::driver_flags::DriverFlags;
use crate::listening::{Distribution, Listening, finish_accepting};
use crate::{activation, duration, limits, output};

/// Serve echo (RFC 862): everything received is sent back.
///
/// With --request-bytes and --response-bytes, requests of one size are answered by responses of another instead: byte i of
/// a response is byte (i modulo the request's size) of its request. A request is answered when it is whole, in the order
/// of arrival, and one that is not whole when the client ends is not answered.
///
/// Prints one line when it is ready, with the address, the driver and the kernel features in use. SIGINT and SIGTERM
/// stop accepting, echo what has arrived and close; a second signal ends it at once. Exits 0 then. Sockets that a service
/// manager passes (LISTEN_FDS, as systemd does) are listened on; --addr is to be left out then.
#[derive(clap::Args)]
pub struct Arguments {
    /// The address to listen on: IP:PORT, where port 0 lets the kernel choose; unix:/path, a socket file, which replaces one
    /// that a dead server has left, and is removed at the end; or unix:@name, an abstract one. By default 127.0.0.1:7000.
    #[arg(long)]
    addr: Option<Address>,

    /// Answer requests of so many bytes each.
    #[arg(long, value_name = "BYTES", requires = "response_bytes")]
    request_bytes: Option<NonZero<usize>>,

    /// Answer each request with so many bytes.
    #[arg(long, value_name = "BYTES", requires = "request_bytes")]
    response_bytes: Option<NonZero<usize>>,

    /// The cores to use, a pinned worker on each, as in 0 or 0,2-3, or all that the process may run on: all. By default one
    /// worker, not pinned.
    #[arg(long, value_name = "LIST", value_parser = cores::parse)]
    cores: Option<cores::Cores>,

    /// How connections are distributed over the workers.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Distribution::Balanced)]
    distribution: Distribution,

    /// Most connections at a time, over all workers; further ones are accepted and closed.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    max_connections: usize,

    /// Close connections on which nothing arrives for so long, as in 60s; never by default.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    idle_timeout: Option<Duration>,

    /// How long connections may take to end after a signal.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    drain_timeout: Duration,

    #[command(flatten)]
    driver: DriverFlags,
}

/// What the workers share.
struct Service {
    listening: Listening,
    sizes: Option<Sizes>,
    max_connections: usize,
    connections: AtomicUsize,
    idle_timeout: Option<Duration>,
    drain_timeout: Duration,
    driver: DriverFlags,
}

/// Serves until a signal.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    arguments.cores.as_ref().map_or(Ok(()), Cores::check)?;
    // Before anything opens descriptors.
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
    for ended in workers.join()? {
        ended?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One worker: accepts until a signal, then drains.
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
    // The first one asks for what is being done already; another worker may have heard it before.
    let missing = if signal_received { 1 } else { 2 };
    open.drain(service.drain_timeout, &mut signals, missing).await;
    Ok(())
}

/// The ready line.
fn announce(service: &Service, workers: usize) {
    let listening = &service.listening;
    let Some(driver) = anello::current_driver() else { return };
    let (name, features) = (driver.name, &driver.features);
    output::announce(&format!(
        "anello echo ready addr={listening} driver={name} features={features} workers={workers} {}\n",
        listening.summary()
    ));
    if let Some(reason) = &driver.fallback_reason {
        output::print_stderr(format_args!("anello: io_uring was not taken: {reason}"));
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

/// Accepts until there will be no more.
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
                tracing::error!(%error, "accept failed");
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

/// As most connections are: one loop of the runtime, and no memory for more.
///
/// A future by hand: one with `await` would hold stream and place twice.
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
            tracing::debug!(%error, "a connection broke");
        }
        Poll::Ready(())
    }
}

async fn connection_with_options(mut stream: impl Stream, permit: ConnectionPermit) {
    let Service { sizes, idle_timeout, .. } = *permit.service;
    if let Err(error) = exchange::serve(&mut stream, sizes, idle_timeout).await {
        tracing::debug!(%error, "a connection broke");
    }
}

/// The connections of one worker.
#[derive(Default)]
struct OpenConnections {
    closers: RefCell<Vec<Option<ShutdownHandle>>>,
    vacant: RefCell<Vec<usize>>,
    count: Cell<usize>,
}

/// A connection's place among the open ones, given up when dropped.
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

    /// Ends the receiving side of all, which lets them echo what has arrived, and waits for them, until so many signals
    /// have come.
    async fn drain(&self, deadline: Duration, signals: &mut Signals, mut missing: usize) {
        for shutdown_handle in self.closers.borrow().iter().flatten() {
            shutdown_handle.shutdown_read();
        }
        const STEP: Duration = Duration::from_millis(5);
        let began = Instant::now();
        while self.count.get() > 0 && began.elapsed() < deadline && missing > 0 {
            match timeout(STEP, signals.recv()).await {
                Ok(Ok(_)) => missing -= 1,
                Ok(Err(error)) => {
                    tracing::error!(%error, "signals cannot be waited for");
                    sleep(STEP).await;
                }
                Err(_) => {}
            }
        }
        if self.count.get() > 0 {
            tracing::warn!(connections = self.count.get(), "connections were closed before they were done");
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
