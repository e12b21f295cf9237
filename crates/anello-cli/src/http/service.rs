//! State shared by the workers of a server.

use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread;

use anello::DriverInfo;
use anello_http::ServerOptions;
use anello_http::files::options::FileOptions;
use anello_http::files::{Files, FilesError};
use anello_http::observe::access_log::AccessLogHandle;
use anello_http::observe::health::Health;
use anello_http::observe::metrics::ServerMetrics;
use anello_http::server::TlsConfig;

use super::directory_watch::DirectoryWatch;
use super::flags::TlsFlags;
use super::notify::ServiceManager;
use super::sandbox::Sandbox;
use super::start_barrier::StartBarrier;
use crate::common::listening::Listening;

/// State shared by the workers.
pub struct Service {
    pub listening: Arc<Listening>,
    /// Driver of the first worker.
    pub driver: OnceLock<DriverInfo>,
    pub directory: PathBuf,
    pub directory_watch: Arc<DirectoryWatch>,
    pub files: FileOptions,
    pub options: ServerOptions,
    /// Number of open connections of all workers, used if there are several workers.
    pub connections: Arc<AtomicUsize>,
    /// TLS configuration at startup, and the flags to reload it.
    pub tls: Option<TlsConfig>,
    pub tls_files: TlsFlags,
    pub log: Option<AccessLogHandle>,
    pub metrics: Option<ServerMetrics>,
    /// Address of the /metrics and /health endpoints.
    pub admin_addr: Option<SocketAddr>,
    pub health: Health,
    pub manager: ServiceManager,
    /// Set once a worker has reported the shutdown to the service manager.
    pub is_stopping: AtomicBool,
    pub sandbox: Sandbox,
    /// Opened once all workers are listening and the sandbox is sealed.
    pub start_barrier: StartBarrier,
}

/// Returns the number of cores that the CPU affinity (`sched_getaffinity(2)`) and the cgroup quota allow.
pub fn usable_cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Opens the document root.
pub fn open(directory: &Path, options: &FileOptions) -> io::Result<Files> {
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
