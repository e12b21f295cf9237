//! `anello http`: the files of a folder by HTTP/1.1.
//!
//! One worker per core, each with a listener and a cache of its own. A signal ends it politely: nothing more is accepted,
//! requests that have begun are answered; a second signal, or the deadline, ends it at once. What serving does not need is
//! given up before the first request ([`Sandbox`]).

mod check;
pub mod config;
mod flags;
mod gate;
mod observing;
mod sandboxing;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anello::net::{TcpListener, UnixListener};
use anello::signal::{HANG_UP, INTERRUPT, Signals, TERMINATE};
use anello::{Builder, Worker, Workers};
use anello_http::files::options::FileOptions;
use anello_http::files::{Files, FilesError};
use anello_http::observe::access_log::{AccessLog, AccessLogHandle};
use anello_http::observe::health::Health;
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::server::Accept;
use anello_http::{Options, Request, Server};

use self::config::Configuration;
use self::flags::{ConnectionFlags, FileFlags, ObserverFlags, TlsFlags};
use self::gate::{Gate, Place};
use self::observing::Told;
use crate::address::Address;
use crate::driver_flags::DriverFlags;
use crate::listening::Listening;
use crate::sandbox::{Sandbox, Wish};
use crate::{cores, limits};

/// Serve the files of a folder by HTTP/1.1.
///
/// Prints one line when it is ready, with the address, the driver and the kernel features in use. SIGINT and SIGTERM
/// stop accepting and answer what has begun; a second signal ends it at once. Exits 0 then.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder; it may be left out if the file of --config names it.
    #[arg(required = false, required_unless_present = "config")]
    folder: PathBuf,

    /// Read flags from a TOML file: each long flag is a key, without its dashes, and `folder` is the folder. Flags that
    /// are given here, too, count instead. Names of files in it count from where anello is started, as here.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Look at everything that is needed to serve, and serve nothing: tells all that is wrong and exits 1, or what is not
    /// as by default, as a file for --config, and exits 0.
    #[arg(long)]
    check: bool,

    /// The address to listen on: IP:PORT, where port 0 lets the kernel choose; unix:/path, a socket file, which must not
    /// exist and is removed at the end; or unix:@name, an abstract one.
    #[arg(long, default_value = "127.0.0.1:8080")]
    addr: Address,

    /// The cores to use, a pinned worker on each, as in 0 or 0,2-3; by default one worker, not pinned.
    #[arg(long, value_name = "LIST", value_parser = cores::parse)]
    cores: Option<cores::Cores>,

    /// Give up what serving does not need: files outside of the folder, connections to others, most system calls.
    ///
    /// auto gives up what the kernel lets it (Landlock, seccomp, no_new_privs), and says what it could not; on fails then.
    #[arg(long, value_enum, value_name = "WISH", default_value_t = Wish::Auto)]
    sandbox: Wish,

    #[command(flatten)]
    files: FileFlags,

    #[command(flatten)]
    connections: ConnectionFlags,

    #[command(flatten)]
    tls: TlsFlags,

    #[command(flatten)]
    observer: ObserverFlags,

    #[command(flatten)]
    driver: DriverFlags,
}

/// What the workers share.
struct Service {
    listening: Listening,
    folder: PathBuf,
    files: FileOptions,
    options: Options,
    tls: TlsFlags,
    log: Option<AccessLogHandle>,
    metrics: Option<ServerMetrics>,
    /// Where that and the health are told.
    observed_at: Option<SocketAddr>,
    health: Health,
    sandbox: Sandbox,
    /// Opened, and the sandbox sealed, when all workers listen.
    gate: Gate,
}

/// Serves until a signal.
pub fn run(arguments: Arguments, configuration: &Configuration) -> io::Result<ExitCode> {
    if arguments.check {
        return check::run(&arguments, configuration);
    }
    configuration.refuse_faults()?;
    limits::raise_open_files();
    let cores = arguments.cores.map(|cores| cores.0);
    let workers = cores.as_ref().map_or(1, Vec::len);
    let listening = Listening::prepare(&arguments.addr, workers)?;
    let observed = arguments.observer.metrics_addr.map(observing::bind).transpose()?;
    let files = arguments.files.into_options();
    // Before any worker, so that what is wrong is said once.
    open(&arguments.folder, &files)?;
    arguments.tls.read()?;
    let metrics = arguments.observer.metrics_addr.map(|_| {
        let mut options = MetricsOptions::default();
        options.workers = workers;
        ServerMetrics::new(options)
    });
    let (folder, tls, observer) = (&arguments.folder, &arguments.tls, &arguments.observer);
    let sandbox = sandboxing::enter(arguments.sandbox, folder, &listening, tls, observer)?;
    // Threads begin here.
    let log = arguments.observer.start_log()?;
    let health = Health::new();
    let mut observed_at = None;
    if let (Some(metrics), Some(listener)) = (&metrics, observed) {
        let (metrics, health) = (metrics.clone(), health.clone());
        let told = Told { metrics, health, log: log.as_ref().map(AccessLog::handle) };
        observed_at = Some(observing::start(listener, told)?);
    }
    let service = Arc::new(Service {
        listening,
        folder: arguments.folder,
        files,
        options: arguments.connections.options(workers),
        tls: arguments.tls,
        log: log.as_ref().map(AccessLog::handle),
        metrics,
        observed_at,
        health,
        sandbox,
        gate: Gate::new(workers),
    });
    let served = serve_on(cores, arguments.driver.builder(), service);
    if let Some(log) = log {
        log.close()?;
    }
    served
}

/// Serves on these cores, or on one worker that is not pinned.
fn serve_on(cores: Option<Vec<usize>>, builder: Builder, service: Arc<Service>) -> io::Result<ExitCode> {
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

fn open(folder: &Path, options: &FileOptions) -> io::Result<Files> {
    Files::open(folder, options.clone()).map_err(|error| match error {
        FilesError::Folder(error) => {
            let message = format!("{}: {error}: give a folder that this user may read", folder.display());
            io::Error::new(error.kind(), message)
        }
        other => io::Error::new(io::ErrorKind::InvalidInput, other),
    })
}

/// One worker.
async fn serve(service: Arc<Service>, worker: Worker) -> io::Result<()> {
    let place = service.gate.place();
    serve_from(&service, worker, &place).await.inspect_err(|error| place.fail(error))
}

async fn serve_from(service: &Arc<Service>, worker: Worker, place: &Place<'_>) -> io::Result<()> {
    match &service.listening {
        Listening::Internet { address, shared, .. } => {
            let listener = TcpListener::builder().reuse_port(*shared).bind(*address)?;
            let address = Address::Internet(listener.local_addr()?);
            serve_at(listener, &address, service, worker, place).await
        }
        Listening::Unix { address, listener, .. } => {
            let listener = UnixListener::from_std(listener.try_clone()?)?;
            serve_at(listener, &Address::Unix(address.clone()), service, worker, place).await
        }
    }
}

/// Serves until a signal, then drains. Waits for the other workers, and the sandbox, before.
async fn serve_at(
    listener: impl Accept,
    address: &Address,
    service: &Arc<Service>,
    worker: Worker,
    place: &Place<'_>,
) -> io::Result<()> {
    let mut signals = Signals::new(&[INTERRUPT, TERMINATE])?;
    let hangups = Signals::new(&[HANG_UP]);
    let mut files = open(&service.folder, &service.files)?;
    let mut builder = Server::builder().options(service.options.clone());
    if let Some(tls) = service.tls.read()? {
        builder = builder.tls(tls);
    }
    if let Some(metrics) = service.metrics.as_ref().and_then(|metrics| metrics.worker(worker.index)) {
        let metrics = Rc::new(metrics);
        builder = builder.metrics(Rc::clone(&metrics));
        files = files.with_metrics(metrics);
    }
    if let Some(log) = &service.log {
        builder = builder.access_log(log.worker(worker.index));
    }
    let (server, files) = (builder.build(), Rc::new(files));
    let on_io_uring = anello::current_driver().is_some_and(|driver| driver.name == "uring");
    service.sandbox.listening(on_io_uring)?;
    place.pass(|| service.sandbox.seal())?;
    let reloading =
        anello::spawn(reload_on_hangup(Arc::clone(service), server.clone(), worker.index, hangups));
    let accepting = server.serve(listener, async move |request: Request| files.answer(&request).await);
    if worker.index == 0 {
        announce(address, worker.count, service)?;
        service.health.ready();
    }
    signals.wait().await?;
    service.health.drain();
    reloading.abort();
    accepting.abort();
    let draining = anello::spawn({
        let server = server.clone();
        async move { server.drain().await }
    });
    let second = anello::spawn(async move {
        let signal = signals.wait().await;
        server.end();
        signal
    });
    let cut = draining.await?;
    second.abort();
    if cut > 0 {
        tracing::warn!(connections = cut, "connections were closed before they were done");
    }
    Ok(())
}

/// Reads certificates anew, and has the log opened anew, at each SIGHUP.
async fn reload_on_hangup(service: Arc<Service>, server: Server, index: usize, hangups: io::Result<Signals>) {
    let Ok(mut hangups) = hangups else {
        return tracing::error!("SIGHUP cannot be waited for: certificates and the log stay as they are");
    };
    while hangups.wait().await.is_ok() {
        if let (Some(log), 0) = (&service.log, index) {
            log.reopen();
        }
        let tls = service.tls.clone();
        match anello::spawn_blocking(move || tls.read()).await.unwrap_or_else(|error| Err(error.into())) {
            Ok(Some(config)) => server.set_tls(config),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "TLS goes on with the certificate that it has"),
        }
    }
}

/// The ready line.
fn announce(address: &Address, workers: usize, service: &Service) -> io::Result<()> {
    let Some(driver) = anello::current_driver() else { return Ok(()) };
    let mut output = io::stdout().lock();
    write!(output, "anello http ready addr={address} driver={} features={}", driver.name, driver.features)?;
    write!(output, " workers={workers}")?;
    if let Some(observed_at) = service.observed_at {
        write!(output, " metrics={observed_at}")?;
    }
    writeln!(output, " sandbox={}", service.sandbox)?;
    output.flush()?;
    if let Some(reason) = &driver.reason {
        eprintln!("anello: io_uring was not taken: {reason}");
    }
    Ok(())
}
