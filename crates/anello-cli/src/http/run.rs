//! Startup and shutdown of the server.

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use anello::Workers;
use anello_http::files::options::FileOptions;
use anello_http::observe::access_log::AccessLog;
use anello_http::observe::health::Health;
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};

use super::admin::{self, AdminState};
use super::check;
use super::config::Configuration;
use super::descriptors::Descriptors;
use super::directory_watch::{self, DirectoryWatch};
use super::flags::Arguments;
use super::identity::Identity;
use super::notify::ServiceManager;
use super::reload::ReloadSignals;
use super::server_paths::{self, ServerPaths};
use super::service::{Service, open, usable_cores};
use super::sockets::{SocketRequest, Sockets};
use super::start_barrier::StartBarrier;
use super::worker::serve;
use crate::common::cores::Cores;
use crate::common::driver_flags::DriverFlags;
use crate::common::listening::SocketFile;
use crate::common::{activation, limits, output};

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
    let directory_watch = Arc::new(DirectoryWatch::new(&arguments.directory)?);
    let tls = arguments.tls.read()?;
    let metrics = admin_listener.as_ref().map(|_| {
        let mut options = MetricsOptions::default();
        options.workers = workers;
        ServerMetrics::new(options)
    });
    let admin_addr = admin_listener.as_ref().map(StdTcpListener::local_addr).transpose()?;
    let server_paths = ServerPaths {
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
    let sandbox = server_paths::enter(arguments.sandbox, &server_paths)?;
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
            directory_watch::start(Arc::clone(&service.directory_watch), Arc::clone(&listening));
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
fn switch_user(identity: &Identity, server_paths: &ServerPaths<'_>, files: &FileOptions) -> io::Result<()> {
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
    flags.report_fallback(driver);
}
