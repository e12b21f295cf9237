//! Startup and shutdown of the server.

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anello::net::TcpListener;
use anello::server::{ListenerGroup, PendingConnections, Rebalancer};
use anello_http::ServerOptions;
use anello_http::files::options::FileOptions;
use anello_http::observe::access_log::{AccessLog, AccessLogHandle};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};

use super::check;
use super::config::Configuration;
use super::descriptors::Descriptors;
use super::directory_watch::{self, DirectoryWatch};
use super::flags::Arguments;
use super::identity::{Identity, is_single_threaded};
use super::reload::ReloadSignals;
use super::sandbox::Sandbox;
use super::sockets::{Sockets, Startup};
use super::worker::{Service, open, serve};
use crate::common::admin::{self, Health};
use crate::common::cpu_limits::{self, GroupLimits};
use crate::common::error::Context;
use crate::common::listening::SocketFile;
use crate::common::notify::ServiceManager;
use crate::common::{activation, output, process};

/// Serves until a signal arrives or a successor process has taken over.
pub fn run(mut arguments: Arguments, configuration: &Configuration) -> io::Result<ExitCode> {
    arguments.select_single_file();
    if arguments.check {
        return check::run(&arguments, configuration);
    }
    let workers = arguments.worker_count();
    let files = arguments.files.options(workers);
    configuration.reject_if_invalid(&files.validation_errors(), &arguments.problems())?;
    let identity = arguments.identity.resolve()?;
    // Must be called before the process opens any descriptor.
    let passed = activation::take()?;
    process::raise_open_files();
    process::disable_huge_pages();
    let Sockets { listening, metrics: admin_listener, startup } = Sockets::open(&arguments, workers, passed)?;
    listening.set_distribution(arguments.distribution, arguments.workers.cores.as_ref())?;
    // Checked before any worker starts, so that an error is reported only once.
    open(&arguments.directory, &files)?;
    let directory_watch = Arc::new(DirectoryWatch::new(&arguments.directory)?);
    let tls = arguments.tls.read()?;
    let admin_addr = admin_listener.as_ref().map(StdTcpListener::local_addr).transpose()?;
    // Must run before the process enters the sandbox, which denies connect(2).
    let manager = ServiceManager::find();
    // Must be opened before the process enters the sandbox.
    let group_limits = GroupLimits::open(Path::new("/"));
    let reload_signals = ReloadSignals::install()?;
    let socket_files: Vec<_> = listening.files.iter().map(|file| &*file.path).collect();
    if let Some(identity) = &identity {
        switch_user(identity, &arguments, &socket_files, &files)?;
    }
    debug_assert!(is_single_threaded(), "Landlock applies to this thread and its future child threads");
    let sandbox = Sandbox::enter(arguments.sandbox, &arguments.allowed_paths(socket_files.into_iter())?)?;
    let descriptors = Descriptors::of_process(workers, admin_listener.is_some());
    let options = server_options(&arguments, &descriptors);
    let mut metrics_options = MetricsOptions::default();
    metrics_options.workers = workers;
    // Threads are started from here on.
    let log = arguments.observer.start_log()?;
    let service = Arc::new(Service {
        workers,
        listening,
        driver: OnceLock::new(),
        directory_watch,
        files,
        options,
        connections: Arc::default(),
        // Connections with TLS cannot move.
        rebalancer: (workers > 1 && tls.is_none() && !arguments.no_rebalance)
            .then(|| Rebalancer::new(workers)),
        tls,
        log: log.as_ref().map(AccessLog::handle),
        metrics: admin_listener.as_ref().map(|_| ServerMetrics::new(metrics_options)),
        admin_addr,
        health: Health::default(),
        manager,
        is_stopping: AtomicBool::new(false),
        sandbox,
        flags: arguments,
    });
    let admin = admin_listener.zip(service.metrics.clone()).map(|(listener, metrics)| {
        let log = service.log.clone();
        let render =
            move |text: &mut Vec<u8>| metrics.render(log.as_ref().map(AccessLogHandle::stats).as_ref(), text);
        admin::start(listener, render, service.health.clone(), descriptors.metrics)
    });
    let admin = admin.transpose()?;
    let result = serve_to_end(&service, startup, admin, reload_signals, group_limits);
    if let Some(log) = log {
        log.close()?;
    }
    result?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the workers, lets them accept connections, and waits until they have exited.
fn serve_to_end(
    service: &Arc<Service>,
    startup: Startup,
    admin: Option<ListenerGroup<TcpListener>>,
    reload_signals: ReloadSignals,
    group_limits: GroupLimits,
) -> io::Result<()> {
    let listening = &service.listening;
    let builder = service.flags.workers.builder(service.workers).runtime(service.flags.driver.builder());
    let workers_service = Arc::clone(service);
    let running = builder.start(move |worker| serve(Arc::clone(&workers_service), worker.index))?;
    let startup_result = startup.start_accepting(service, admin);
    match &startup_result {
        Ok((true, exit_guard)) => {
            // Must precede the ready line.
            service.health.set_ready();
            announce(service);
            service.manager.ready(exit_guard.took_over);
            reload_signals.spawn_handler(Arc::clone(service));
            directory_watch::start(Arc::clone(&service.directory_watch), Arc::clone(listening));
            let watched = Arc::clone(listening);
            cpu_limits::watch(group_limits, service.workers, move || watched.is_closed());
        }
        Ok((false, _)) => {}
        Err(_) => {
            // Without READY=1, the service manager must not receive STOPPING=1.
            service.is_stopping.store(true, Ordering::Relaxed);
            listening.close_with(PendingConnections::Leave);
        }
    }
    let result: io::Result<()> = running.join()?.into_iter().collect();
    // Not left to the destructor, because the handover thread also holds a reference and does not exit.
    listening.files.iter().for_each(SocketFile::remove);
    // A worker's error takes precedence, because it is the cause of a failed startup.
    result.and(startup_result.map(drop))
}

/// Switches to the configured user, after checking that this user can access all files that the server needs.
fn switch_user(
    identity: &Identity,
    arguments: &Arguments,
    socket_files: &[&Path],
    files: &FileOptions,
) -> io::Result<()> {
    let handover = arguments.handover.as_deref();
    let all_files = || socket_files.iter().copied().chain(handover);
    // Checked while the process still runs as root, so that a failed startup can be undone without affecting a running
    // server.
    let permission_error = |reason| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    identity.run_as(|| {
        open(&arguments.directory, files)?;
        check::check_searchable(&arguments.directory).map_err(permission_error)?;
        arguments.tls.read().remedy(
            "to allow reloads on SIGHUP, make it readable by this user or its groups, for example with chgrp and \
             chmod g+r",
        )?;
        all_files().try_for_each(check::check_can_create).map_err(permission_error)
    })?;
    let has_owner = arguments.socket_owner.is_some();
    let own_files = all_files().filter(|file| !has_owner || Some(*file) == handover);
    own_files.into_iter().try_for_each(|file| identity.chown_socket_file(file))?;
    identity.assume_process_wide()
}

/// Returns the workers' options, adjusted to the number of available descriptors.
fn server_options(arguments: &Arguments, descriptors: &Descriptors) -> ServerOptions {
    let mut options = arguments.connections.options();
    // The handlers of files end on their own, and simple clients such as netcat shut down their write direction.
    options.half_close = true;
    let max_connections = arguments.connections.max_connections();
    descriptors.fit(&mut options, max_connections);
    if let Some(reason) = descriptors.problem(max_connections) {
        output::print_stderr(format_args!("anello: {reason}"));
    }
    options
}

/// Prints the ready line, which reports the addresses and a URL, and a line with the configuration in use.
fn announce(service: &Service) {
    let Some(driver) = service.driver.get() else { return };
    let metrics = admin::ready_field(service.admin_addr);
    let url = service.listening.url(service.tls.is_some());
    let url = url.map(|url| format!(" url={url}")).unwrap_or_default();
    output::announce(&format!(
        "anello http ready addr={}{url} driver={} workers={}{metrics}\n\
         anello http uses {} sandbox={} features={}\n",
        service.listening.addresses,
        driver.name,
        service.workers,
        service.listening.summary(service.flags.distribution),
        service.sandbox,
        driver.features,
    ));
    service.flags.driver.report_fallback(driver);
}
