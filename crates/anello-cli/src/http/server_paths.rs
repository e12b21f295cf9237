//! Determines the paths that `anello http` needs while serving, and enters the sandbox.

use std::io;
use std::path::{Path, PathBuf};

use super::flags::{ObserverFlags, TlsFlags};
use super::identity::is_single_threaded;
use super::sandbox::{AllowedPaths, Sandbox, SandboxMode};

/// Paths from the command line that the server accesses while serving.
pub struct ServerPaths<'a> {
    pub directory: &'a Path,
    pub socket_file: Option<&'a Path>,
    pub handover: Option<&'a Path>,
    pub tls: &'a TlsFlags,
    pub observer: &'a ObserverFlags,
}

/// Enters the sandbox. Must be called after sockets are bound and files are checked, and before any other thread is
/// started.
pub fn enter(mode: SandboxMode, server_paths: &ServerPaths<'_>) -> io::Result<Sandbox> {
    debug_assert!(is_single_threaded(), "Landlock applies to this thread and its future child threads");
    Sandbox::enter(mode, &server_paths.allowed_paths()?)
}

impl ServerPaths<'_> {
    pub fn allowed_paths(&self) -> io::Result<AllowedPaths> {
        let files = |files: Vec<&Path>| files.into_iter().map(PathBuf::from).collect();
        Ok(AllowedPaths {
            served: self.directory.canonicalize()?,
            reloaded: files(self.tls.files()),
            appended: files(self.observer.access_log_file().into_iter().collect()),
            sockets: files(self.socket_file.into_iter().chain(self.handover).collect()),
        })
    }
}
