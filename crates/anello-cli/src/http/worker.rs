//! A worker: serving, draining and shutdown, and the state that the workers share.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use anello::server::Rebalancer;
use anello::signal::{SignalKind, Signals};
use anello::{DriverInfo, JoinHandle};
use anello_http::files::options::FileOptions;
use anello_http::files::{Files, FilesError};
use anello_http::observe::access_log::AccessLogHandle;
use anello_http::observe::metrics::ServerMetrics;
use anello_http::server::{MovedConnection, TlsConfig};
use anello_http::{Server, ServerOptions};
use futures_util::future::{Either, select};

use super::directory_watch::DirectoryWatch;
use super::flags::Arguments;
use super::sandbox::Sandbox;
use crate::common::admin::Health;
use crate::common::error::{Context, invalid_input};
use crate::common::listening::{Listening, WorkerListeners, finish_accepting, second_signal};
use crate::common::notify::ServiceManager;

/// State shared by the workers.
pub struct Service {
    /// Number of workers, determined before the sandbox denies access to the control group limits.
    pub workers: usize,
    pub listening: Arc<Listening>,
    /// Driver of the first worker.
    pub driver: OnceLock<DriverInfo>,
    pub directory_watch: Arc<DirectoryWatch>,
    pub files: FileOptions,
    pub options: ServerOptions,
    /// Number of open connections across all workers, used if there are several workers.
    pub connections: Arc<AtomicUsize>,
    /// `Some` if connections move between the workers.
    pub rebalancer: Option<Rebalancer<MovedConnection>>,
    /// TLS configuration at startup.
    pub tls: Option<TlsConfig>,
    pub log: Option<AccessLogHandle>,
    pub metrics: Option<ServerMetrics>,
    /// Address of the /metrics and /health endpoints.
    pub admin_addr: Option<SocketAddr>,
    pub health: Health,
    pub manager: ServiceManager,
    /// Whether a worker has reported the shutdown to the service manager.
    pub is_stopping: AtomicBool,
    pub sandbox: Sandbox,
    pub flags: Arguments,
}

pub fn open(directory: &Path, options: &FileOptions) -> io::Result<Files> {
    match Files::open(directory, options.clone()) {
        Err(FilesError::Directory(error)) => Err(error).context_and_remedy(
            format_args!("cannot open document root {}", directory.display()),
            "must be a directory readable by this user",
        ),
        result => result.map_err(invalid_input),
    }
}

/// Serves until a signal arrives or the sockets have been transferred to another process, then drains the connections.
pub async fn serve(service: Arc<Service>, worker: usize) -> io::Result<()> {
    // Joins the group first: a worker that fails later then leaves the group, which makes the startup fail.
    let listeners = service.listening.join(worker);
    let result = serve_listeners(listeners, &service, worker).await;
    result.inspect_err(|error| tracing::error!(worker, %error, "worker failed"))
}

/// Prepares and runs the server. The listeners are paused until all workers are ready and the sandbox is sealed.
async fn serve_listeners(listeners: WorkerListeners, service: &Service, worker: usize) -> io::Result<()> {
    let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate()])?;
    let mut files = open(&service.flags.directory, &service.files)?;
    let mut builder = Server::builder().options(service.options.clone());
    if service.workers > 1 {
        builder = builder.shared_connection_count(Arc::clone(&service.connections));
    }
    if let Some(rebalancer) = &service.rebalancer {
        builder = builder.rebalancer(rebalancer.join(worker));
    }
    if let Some(tls) = &service.tls {
        builder = builder.tls(tls.clone());
    }
    if let Some(metrics) = service.metrics.as_ref().and_then(|metrics| metrics.worker(worker)) {
        let metrics = Rc::new(metrics);
        builder = builder.metrics(Rc::clone(&metrics));
        files = files.with_metrics(metrics);
    }
    if let Some(log) = &service.log {
        builder = builder.access_log(log.worker(worker));
    }
    if let Some(driver) = anello::current_driver() {
        service.sandbox.register_driver(&driver);
        if worker == 0 {
            service.driver.get_or_init(|| driver);
        }
    }
    let server = builder.build();
    let mut accepting = anello_servers::http::serve(&server, listeners.internet, listeners.unix, files);
    let signal_received = service.listening.wait_for_shutdown(&mut signals).await?;
    server.refuse_moved();
    service.health.set_draining();
    service.listening.close();
    let is_transferred = service.listening.is_transferred.load(Ordering::Relaxed);
    if !is_transferred && !service.is_stopping.swap(true, Ordering::Relaxed) {
        service.manager.stopping();
    }
    let drain = async {
        finish_accepting(&mut accepting).await;
        server.drain().await
    };
    let abort_requested = second_signal(&mut signals, signal_received);
    let aborted = if let Either::Left((aborted, _)) = select(pin!(drain), pin!(abort_requested)).await {
        aborted
    } else {
        accepting.iter().for_each(JoinHandle::abort);
        server.abort_and_wait().await
    };
    if aborted > 0 {
        tracing::warn!(connections = aborted, "drain ended early; closed the remaining connections");
    }
    Ok(())
}
