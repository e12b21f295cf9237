//! State shared by the workers of a server.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

use anello::DriverInfo;
use anello_http::ServerOptions;
use anello_http::files::options::FileOptions;
use anello_http::files::{Files, FilesError};
use anello_http::observe::access_log::AccessLogHandle;
use anello_http::observe::health::Health;
use anello_http::observe::metrics::ServerMetrics;
use anello_http::server::TlsConfig;

use super::directory_watch::DirectoryWatch;
use super::flags::Arguments;
use super::notify::ServiceManager;
use super::sandbox::Sandbox;
use super::start_barrier::StartBarrier;
use crate::common::error::{Context, invalid_input};
use crate::common::listening::Listening;

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
    /// Total number of open connections across all workers, used if there are several workers.
    pub connections: Arc<AtomicUsize>,
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
    /// Opened once all workers are listening and the sandbox is sealed.
    pub start_barrier: StartBarrier,
    pub flags: Arguments,
}

/// Opens the document root.
pub fn open(directory: &Path, options: &FileOptions) -> io::Result<Files> {
    match Files::open(directory, options.clone()) {
        Err(FilesError::Folder(error)) => Err(error).context_and_remedy(
            format_args!("cannot open document root {}", directory.display()),
            "must be a directory readable by this user",
        ),
        result => result.map_err(invalid_input),
    }
}
