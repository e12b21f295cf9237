//! `anello http`: the files of a folder by HTTP/1.1.
//!
//! One worker, or one for each core that is named, each with a listener and a cache of its own. A signal ends it politely:
//! nothing more is accepted, requests that have begun are answered; a second signal, or the deadline, ends it at once. What
//! serving does not need is given up before the first request ([`Sandbox`]).

mod admin;
mod check;
pub mod config;
mod descriptors;
mod directory_watch;
mod flags;
mod handover;
mod identity;
mod reload;
mod sandbox_setup;
mod sockets;
mod start_barrier;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread;

use anello::{DriverInfo, Workers};
use anello_http::ServerOptions;
use anello_http::files::options::FileOptions;
use anello_http::files::{Files, FilesError};
use anello_http::observe::access_log::{AccessLog, AccessLogHandle};
use anello_http::observe::health::Health;
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::server::TlsConfig;

use self::admin::AdminState;
use self::config::Configuration;
use self::descriptors::Descriptors;
use self::directory_watch::DirectoryWatch;
use self::flags::{ConnectionFlags, FileFlags, ObserverFlags, TlsFlags};
use self::identity::{Identity, IdentityFlags};
use self::reload::ReloadSignals;
use self::sockets::{SocketRequest, Sockets};
use self::start_barrier::StartBarrier;
use self::worker::serve;
use crate::address::Address;
use crate::cores::{self, Cores};
use crate::driver_flags::DriverFlags;
use crate::listening::{Distribution, Listening, SocketFile};
use crate::notify::ServiceManager;
use crate::sandbox::{Sandbox, SandboxMode};
use crate::{activation, limits, output};

/// Serve the files of a folder by HTTP/1.1.
///
/// Prints one line when it is ready, with the address, the driver and the kernel features in use. SIGINT and SIGTERM
/// stop accepting and answer what has begun; a second signal ends it at once. Exits 0 then, or 1 if the access log lost lines.
/// Sockets that a service manager passes (LISTEN_FDS, as systemd does) are listened on; --addr is to be left out then.
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

    /// The address to listen on: IP:PORT, where port 0 lets the kernel choose; unix:/path, a socket file, which replaces one
    /// that a dead server has left, and is removed at the end; or unix:@name, an abstract one. By default 127.0.0.1:8080.
    #[arg(long)]
    addr: Option<Address>,

    /// Take over, without a request lost, from the server that runs with the same PATH, which drains and ends then; and
    /// hand over to the next one. The path is that of a Unix socket, which only this user may connect to.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,

    /// The cores to use, a pinned worker on each, as in 0 or 0,2-3, or all that the process may run on: all. By default there
    /// is a worker for each core that the process may use, as its affinity and the quota of its cgroup have it, and none is
    /// pinned.
    #[arg(long, value_name = "LIST", value_parser = cores::parse)]
    cores: Option<cores::Cores>,

    /// How connections are distributed over the workers.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Distribution::Balanced)]
    distribution: Distribution,

    /// Give up what serving does not need: files outside of the folder, connections to others, most system calls.
    ///
    /// auto gives up what the kernel lets it (Landlock, seccomp, no_new_privs), and says what it could not; on fails then.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = SandboxMode::Auto)]
    sandbox: SandboxMode,

    #[command(flatten)]
    identity: IdentityFlags,

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
    listening: Arc<Listening>,
    /// What the first worker runs on.
    driver: OnceLock<DriverInfo>,
    folder: PathBuf,
    directory_watch: DirectoryWatch,
    files: FileOptions,
    options: ServerOptions,
    /// Connections of all workers, where there are several.
    connections: Arc<AtomicUsize>,
    /// What all workers speak, and where it comes from.
    tls: Option<TlsConfig>,
    tls_files: TlsFlags,
    log: Option<AccessLogHandle>,
    metrics: Option<ServerMetrics>,
    /// Where that and the health are told.
    admin_addr: Option<SocketAddr>,
    health: Health,
    manager: ServiceManager,
    /// A worker has told the manager that the server ends.
    is_stopping: AtomicBool,
    sandbox: Sandbox,
    /// Opened, and the sandbox sealed, when all workers listen.
    start_barrier: StartBarrier,
}

/// How many cores this process may use, as its affinity (`sched_getaffinity(2)`) and the quota of its cgroup have it.
fn usable_cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Serves until a signal, or until another has taken over.
pub fn run(arguments: Arguments, configuration: &Configuration) -> io::Result<ExitCode> {
    if arguments.check {
        return check::run(&arguments, configuration);
    }
    let workers = arguments.cores.as_ref().map_or_else(usable_cores, |cores| cores.0.len());
    let files = arguments.files.into_options(workers);
    configuration.reject_if_invalid(&files.validation_errors(), arguments.cores.as_ref())?;
    let identity = arguments.identity.resolve()?;
    // Before anything opens descriptors.
    let passed = activation::take()?;
    limits::raise_open_files();
    let request = SocketRequest {
        address: arguments.addr.as_ref(),
        metrics: arguments.observer.metrics_addr,
        handover: arguments.handover.as_deref(),
        workers,
    };
    let Sockets { listening, metrics: admin_listener, startup } = Sockets::open(&request, passed)?;
    listening.set_distribution(arguments.distribution);
    // Before any worker, so that what is wrong is said once.
    open(&arguments.folder, &files)?;
    let directory_watch = DirectoryWatch::new(&arguments.folder)?;
    let tls = arguments.tls.read()?;
    let metrics = admin_listener.as_ref().map(|_| {
        let mut options = MetricsOptions::default();
        options.workers = workers;
        ServerMetrics::new(options)
    });
    let admin_addr = admin_listener.as_ref().map(StdTcpListener::local_addr).transpose()?;
    let server_paths = sandbox_setup::ServerPaths {
        folder: &arguments.folder,
        socket_file: listening.file().map(SocketFile::path),
        handover: arguments.handover.as_deref(),
        tls: &arguments.tls,
        observer: &arguments.observer,
    };
    // Before the sandbox, which lets nothing be connected to.
    let manager = ServiceManager::find();
    let reload_signals = ReloadSignals::install()?;
    if let Some(identity) = &identity {
        switch_user(identity, &server_paths, &files)?;
    }
    let sandbox = sandbox_setup::enter(arguments.sandbox, &server_paths)?;
    let descriptors = Descriptors::of_process(workers, metrics.is_some());
    let mut options = arguments.connections.options();
    let max_connections = arguments.connections.max_connections();
    descriptors.fit(&mut options, max_connections);
    if let Some(why) = descriptors.problem(max_connections) {
        output::print_stderr(format_args!("anello: {why}"));
    }
    // Threads begin here.
    let log = arguments.observer.start_log()?;
    let service = Arc::new(Service {
        listening: Arc::clone(&listening),
        driver: OnceLock::new(),
        folder: arguments.folder,
        directory_watch,
        files,
        options,
        connections: Arc::default(),
        tls,
        tls_files: arguments.tls,
        log: log.as_ref().map(AccessLog::handle),
        metrics,
        admin_addr,
        health: Health::new(),
        manager,
        is_stopping: AtomicBool::new(false),
        sandbox,
        start_barrier: StartBarrier::new(workers),
    });
    let admin = match (admin_listener, &service.metrics) {
        (Some(listener), Some(metrics)) => {
            let (metrics, health) = (metrics.clone(), service.health.clone());
            let state = AdminState { metrics, health, log: log.as_ref().map(AccessLog::handle) };
            Some(admin::start(listener, state, descriptors.metrics)?)
        }
        _ => None,
    };
    let builder = Workers::builder().runtime(arguments.driver.builder());
    let builder = match arguments.cores {
        Some(Cores(cores)) => builder.cores(cores),
        None => builder.unpinned_workers(workers),
    };
    let running = builder.start({
        let service = Arc::clone(&service);
        move |worker| serve(Arc::clone(&service), worker)
    })?;
    let startup_result = startup.start_accepting(&listening, admin, workers);
    match &startup_result {
        Ok((true, exit_guard)) => {
            // Before the line that says so.
            service.health.set_ready();
            announce(&service, workers, &arguments.driver);
            service.manager.ready(exit_guard.took_over);
            reload_signals.spawn_handler(Arc::clone(&service));
            directory_watch::start(Arc::clone(&service));
        }
        Ok((false, _)) => {}
        Err(_) => listening.close_now(),
    }
    let ended: io::Result<()> = running.join()?.into_iter().collect();
    // The thread at the door has it, too, and does not end.
    listening.file().into_iter().for_each(SocketFile::remove);
    if let Some(log) = log {
        log.close()?;
    }
    // What a worker has failed for is why it could not begin.
    ended.and(startup_result)?;
    Ok(ExitCode::SUCCESS)
}

/// Changes to the user, who has to be able to use everything that root could.
fn switch_user(
    identity: &Identity,
    server_paths: &sandbox_setup::ServerPaths<'_>,
    files: &FileOptions,
) -> io::Result<()> {
    // While it is root, it can still take back what it has made, and nothing of a running server has been changed.
    let denied = |why| io::Error::new(io::ErrorKind::PermissionDenied, why);
    identity.run_as(|| {
        open(server_paths.folder, files)?;
        check::check_searchable(server_paths.folder).map_err(denied)?;
        server_paths.tls.read().map_err(|error| {
            let remedy = "SIGHUP reads it again: let this user or its groups read it (chgrp, chmod g+r)";
            io::Error::new(error.kind(), format!("{error}: {remedy}"))
        })?;
        server_paths
            .socket_file
            .into_iter()
            .chain(server_paths.handover)
            .try_for_each(check::check_can_remove)
            .map_err(denied)
    })?;
    for file in server_paths.socket_file.into_iter().chain(server_paths.handover) {
        identity.chown_socket_file(file)?;
    }
    identity.assume_process_wide()
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

/// The ready line.
fn announce(service: &Service, workers: usize, flags: &DriverFlags) {
    let Some(driver) = service.driver.get() else { return };
    let metrics = service.admin_addr.map(|address| format!(" metrics={address}")).unwrap_or_default();
    output::announce(&format!(
        "anello http ready addr={} driver={} features={} workers={workers} {}{metrics} sandbox={}\n",
        service.listening,
        driver.name,
        driver.features,
        service.listening.summary(),
        service.sandbox
    ));
    if let Some(reason) = &driver.fallback_reason {
        output::print_stderr(format_args!("anello: io_uring was not taken: {reason}"));
    }
    flags.report_ignored(driver.name);
}
