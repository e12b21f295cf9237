//! `anello echo`: the TCP echo server.
//!
//! One worker per core, each with its own listener. A signal ends it politely: no more connections are accepted, what
//! has arrived is echoed, then the connections are closed; a second signal, or the deadline, ends it at once.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anello::net::{Closer, TcpListener, TcpStream};
use anello::signal::{INTERRUPT, Signals, TERMINATE};
use anello::time::{sleep, timeout};
use anello::{Worker, Workers};

use crate::driver_flags::DriverFlags;
use crate::{cores, duration, limits};

/// Serve TCP echo (RFC 862): everything received is sent back.
///
/// Prints one line when it is ready, with the address, the driver and the kernel features in use. SIGINT and SIGTERM
/// stop accepting, echo what has arrived and close; a second signal ends it at once. Exits 0 then.
#[derive(clap::Args)]
pub struct Arguments {
    /// The address to listen on; port 0 lets the kernel choose.
    #[arg(long, default_value = "127.0.0.1:7000")]
    addr: SocketAddr,

    /// The cores to use, a pinned worker on each, as in 0 or 0,2-3; by default one worker, not pinned.
    #[arg(long, value_name = "LIST", value_parser = cores::parse)]
    cores: Option<cores::Cores>,

    /// Most connections at a time, over all workers; further ones are accepted and closed.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    max_connections: usize,

    /// Close connections on which nothing arrives for so long, as in 60s; never by default.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    idle_timeout: Option<Duration>,

    /// How long connections may take to end after a signal.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    drain: Duration,

    #[command(flatten)]
    driver: DriverFlags,
}

/// What the workers share.
struct Service {
    addr: SocketAddr,
    reuse_port: bool,
    max_connections: usize,
    connections: AtomicUsize,
    idle_timeout: Option<Duration>,
    drain: Duration,
}

/// Serves until a signal.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    limits::raise_open_files();
    let cores = arguments.cores.map(|cores| cores.0);
    let workers = cores.as_ref().map_or(1, Vec::len);
    // Several listeners must agree on a port before they share it: this socket holds it until they do.
    let held = if workers > 1 { Some(limits::hold_port(arguments.addr)?) } else { None };
    let addr = held.as_ref().map_or(Ok(arguments.addr), |(_, addr)| Ok::<_, io::Error>(*addr))?;
    let service = Arc::new(Service {
        addr,
        reuse_port: workers > 1,
        max_connections: arguments.max_connections,
        connections: AtomicUsize::new(0),
        idle_timeout: arguments.idle_timeout,
        drain: arguments.drain,
    });
    let builder = arguments.driver.builder();
    let Some(cores) = cores else {
        let only = Worker { index: 0, count: 1, core: None };
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
async fn serve(service: Arc<Service>, worker: Worker) -> io::Result<()> {
    let listener = TcpListener::builder().reuse_port(service.reuse_port).bind(service.addr)?;
    let mut signals = Signals::new(&[INTERRUPT, TERMINATE])?;
    if worker.index == 0 {
        announce(listener.local_addr()?, worker.count)?;
    }
    let open = Rc::new(Open::default());
    let accepting = anello::spawn(accept(listener, Arc::clone(&service), Rc::clone(&open)));
    signals.wait().await?;
    accepting.abort();
    open.drain(service.drain, &mut signals).await;
    Ok(())
}

/// The ready line.
fn announce(addr: SocketAddr, workers: usize) -> io::Result<()> {
    let Some(driver) = anello::current_driver() else { return Ok(()) };
    let mut output = io::stdout().lock();
    write!(output, "anello echo ready addr={addr} driver={} features={}", driver.name, driver.features)?;
    writeln!(output, " workers={workers}")?;
    output.flush()?;
    if let Some(reason) = &driver.reason {
        eprintln!("anello: io_uring was not taken: {reason}");
    }
    Ok(())
}

async fn accept(listener: TcpListener, service: Arc<Service>, open: Rc<Open>) {
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
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
        let place = Open::enter(&open, &service, &stream);
        match service.idle_timeout {
            None => anello::spawn(connection(stream, place)).detach(),
            Some(idle) => anello::spawn(connection_with_timeout(stream, idle, place)).detach(),
        }
    }
}

async fn connection(mut stream: TcpStream, _place: Place) {
    if let Err(error) = anello::net::echo(&mut stream).await {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn connection_with_timeout(mut stream: TcpStream, idle: Duration, _place: Place) {
    let echoing = async {
        while let Ok(received) = timeout(idle, stream.recv()).await {
            let Some(chunk) = received? else { return stream.flush().await };
            // A peer that does not take what it is owed is idle, too.
            if timeout(idle, stream.send(chunk)).await.is_err() {
                break;
            }
        }
        stream.flush().await
    };
    if let Err(error) = echoing.await {
        tracing::debug!(%error, "a connection broke");
    }
}

/// The connections of one worker.
#[derive(Default)]
struct Open {
    closers: RefCell<Vec<Option<Closer>>>,
    vacant: RefCell<Vec<usize>>,
    count: Cell<usize>,
}

/// A connection's place among the open ones, given up when dropped.
struct Place {
    open: Rc<Open>,
    service: Arc<Service>,
    index: usize,
}

impl Open {
    fn enter(open: &Rc<Self>, service: &Arc<Service>, stream: &TcpStream) -> Place {
        let mut closers = open.closers.borrow_mut();
        let index = open.vacant.borrow_mut().pop().unwrap_or_else(|| {
            closers.push(None);
            closers.len() - 1
        });
        closers[index] = Some(stream.closer());
        open.count.set(open.count.get() + 1);
        Place { open: Rc::clone(open), service: Arc::clone(service), index }
    }

    /// Ends the receiving side of all, which lets them echo what has arrived, and waits for them.
    async fn drain(&self, deadline: Duration, signals: &mut Signals) {
        for closer in self.closers.borrow().iter().flatten() {
            closer.end_receiving();
        }
        let mut waited = Duration::ZERO;
        const STEP: Duration = Duration::from_millis(5);
        while self.count.get() > 0 && waited < deadline {
            if timeout(STEP, signals.wait()).await.is_ok() {
                break;
            }
            waited += STEP;
        }
        if self.count.get() > 0 {
            tracing::warn!(connections = self.count.get(), "connections were closed before they were done");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.closers.borrow_mut()[self.index] = None;
        self.open.vacant.borrow_mut().push(self.index);
        self.open.count.set(self.open.count.get() - 1);
        self.service.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
