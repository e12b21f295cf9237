//! `anello http`: a static file server for HTTP/1.1.
//!
//! Each worker has its own listener and file cache. On a signal, the server stops accepting and completes the requests
//! in flight. A second signal or the drain timeout closes the connections immediately. Privileges that serving does
//! not need are dropped before the first request ([`Sandbox`]).

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

/// Serve the files of a directory over HTTP/1.1
///
/// Prints one ready line with the address, the driver and the kernel features in use. SIGINT and SIGTERM stop
/// accepting and complete the requests in flight; a second signal closes the connections immediately. The exit code is
/// 0, or 1 if access log lines were lost. If a service manager passes sockets (LISTEN_FDS, for example systemd),
/// they are used and --addr must be omitted.
#[derive(clap::Args)]
pub struct Arguments {
    /// Document root; optional if the --config file sets `directory`
    #[arg(required = false, required_unless_present = "config")]
    directory: PathBuf,

    /// Read flags from a TOML file
    ///
    /// Each long flag is a key, without its dashes, and `directory` is the document root. Flags on the command line
    /// override the file. Relative paths are relative to the working directory, as on the command line.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Validate the configuration without serving
    ///
    /// Prints all problems and exits 1, or prints the non-default settings as a --config file and exits 0.
    #[arg(long)]
    check: bool,

    /// Address to listen on [default: 127.0.0.1:8080]
    ///
    /// IP:PORT, where port 0 lets the kernel choose the port; unix:/path for a socket file; or unix:@name for an
    /// abstract Unix address. A stale socket file is replaced at startup, and the file is removed at exit.
    #[arg(long)]
    addr: Option<Address>,

    /// Replace the server running with the same PATH without losing a request, and allow the next server to do the
    /// same
    ///
    /// The old server drains and exits. PATH is a Unix socket that only this user may connect to.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,

    /// Cores to use, with one pinned worker each, as in 0 or 0,2-3, or all
    ///
    /// By default, there is one unpinned worker for each core that the CPU affinity and the cgroup quota allow.
    #[arg(long, value_name = "LIST", value_parser = cores::parse)]
    cores: Option<cores::Cores>,

    /// How connections are distributed over the workers
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Distribution::Balanced)]
    distribution: Distribution,

    /// Drop privileges that serving does not need: files outside the document root, outgoing connections, most system
    /// calls
    ///
    /// auto applies what the kernel supports (Landlock, seccomp, no_new_privs) and reports what is missing; on fails
    /// instead.
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

/// State shared by the workers.
struct Service {
    listening: Arc<Listening>,
    /// Driver of the first worker.
    driver: OnceLock<DriverInfo>,
    directory: PathBuf,
    directory_watch: DirectoryWatch,
    files: FileOptions,
    options: ServerOptions,
    /// Number of open connections of all workers, used if there are several workers.
    connections: Arc<AtomicUsize>,
    /// TLS configuration at startup, and the flags to reload it.
    tls: Option<TlsConfig>,
    tls_files: TlsFlags,
    log: Option<AccessLogHandle>,
    metrics: Option<ServerMetrics>,
    /// Address of the /metrics and /health endpoints.
    admin_addr: Option<SocketAddr>,
    health: Health,
    manager: ServiceManager,
    /// Set once a worker has reported the shutdown to the service manager.
    is_stopping: AtomicBool,
    sandbox: Sandbox,
    /// Opened once all workers are listening and the sandbox is sealed.
    start_barrier: StartBarrier,
}

/// Returns the number of cores that the CPU affinity (`sched_getaffinity(2)`) and the cgroup quota allow.
fn usable_cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Serves until a signal, or until a successor process has taken over.
pub fn run(arguments: Arguments, configuration: &Configuration) -> io::Result<ExitCode> {
    if arguments.check {
        return check::run(&arguments, configuration);
    }
    let workers = arguments.cores.as_ref().map_or_else(usable_cores, |cores| cores.0.len());
    let files = arguments.files.into_options(workers);
    configuration.reject_if_invalid(&files.validation_errors(), arguments.cores.as_ref())?;
    let identity = arguments.identity.resolve()?;
    // Must run before the process opens any descriptor.
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
    // Checked before any worker starts, so that an error is reported once.
    open(&arguments.directory, &files)?;
    let directory_watch = DirectoryWatch::new(&arguments.directory)?;
    let tls = arguments.tls.read()?;
    let metrics = admin_listener.as_ref().map(|_| {
        let mut options = MetricsOptions::default();
        options.workers = workers;
        ServerMetrics::new(options)
    });
    let admin_addr = admin_listener.as_ref().map(StdTcpListener::local_addr).transpose()?;
    let server_paths = sandbox_setup::ServerPaths {
        directory: &arguments.directory,
        socket_file: listening.file().map(SocketFile::path),
        handover: arguments.handover.as_deref(),
        tls: &arguments.tls,
        observer: &arguments.observer,
    };
    // Must run before the sandbox is entered, which denies connect(2).
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
    if let Some(reason) = descriptors.problem(max_connections) {
        output::print_stderr(format_args!("anello: {reason}"));
    }
    // Threads are started from here on.
    let log = arguments.observer.start_log()?;
    let service = Arc::new(Service {
        listening: Arc::clone(&listening),
        driver: OnceLock::new(),
        directory: arguments.directory,
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
            // Before the ready line is printed.
            service.health.set_ready();
            announce(&service, workers, &arguments.driver);
            service.manager.ready(exit_guard.took_over);
            reload_signals.spawn_handler(Arc::clone(&service));
            directory_watch::start(Arc::clone(&service));
        }
        Ok((false, _)) => {}
        Err(_) => listening.close_now(),
    }
    let result: io::Result<()> = running.join()?.into_iter().collect();
    // The handover thread also holds a reference and does not exit.
    listening.file().into_iter().for_each(SocketFile::remove);
    if let Some(log) = log {
        log.close()?;
    }
    // The error of a worker takes precedence: it is the cause of a failed startup.
    result.and(startup_result)?;
    Ok(ExitCode::SUCCESS)
}

/// Changes to the configured user, after checking that this user can use everything that root could.
fn switch_user(
    identity: &Identity,
    server_paths: &sandbox_setup::ServerPaths<'_>,
    files: &FileOptions,
) -> io::Result<()> {
    // Checked while still root, so that a failed startup can be undone without effects on a running server.
    let permission_error = |reason| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    identity.run_as(|| {
        open(server_paths.directory, files)?;
        check::check_searchable(server_paths.directory).map_err(permission_error)?;
        server_paths.tls.read().map_err(|error| {
            let remedy =
                "SIGHUP reloads it: make it readable for this user or its groups, e.g. chgrp and chmod g+r";
            io::Error::new(error.kind(), format!("{error} ({remedy})"))
        })?;
        server_paths
            .socket_file
            .into_iter()
            .chain(server_paths.handover)
            .try_for_each(check::check_can_remove)
            .map_err(permission_error)
    })?;
    for file in server_paths.socket_file.into_iter().chain(server_paths.handover) {
        identity.chown_socket_file(file)?;
    }
    identity.assume_process_wide()
}

fn open(directory: &Path, options: &FileOptions) -> io::Result<Files> {
    Files::open(directory, options.clone()).map_err(|error| match error {
        FilesError::Folder(error) => {
            let message = format!(
                "cannot open document root {}: {error} (must be a directory readable by this user)",
                directory.display()
            );
            io::Error::new(error.kind(), message)
        }
        other => io::Error::new(io::ErrorKind::InvalidInput, other),
    })
}

/// Prints the ready line.
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
        output::print_stderr(format_args!("anello: io_uring unavailable, using epoll: {reason}"));
    }
    flags.report_ignored(driver.name);
}
