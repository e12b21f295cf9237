//! What `anello http` touches while it serves, for its sandbox to leave open.

use std::io;
use std::path::{Path, PathBuf};

use super::flags::{ObserverFlags, TlsFlags};
use crate::sandbox::{AllowedPaths, Sandbox, SandboxMode};

/// What the server was told to touch.
pub struct ServerPaths<'a> {
    pub folder: &'a Path,
    pub socket_file: Option<&'a Path>,
    pub handover: Option<&'a Path>,
    pub tls: &'a TlsFlags,
    pub observer: &'a ObserverFlags,
}

/// Gives up what serving does not need. To be called when sockets have been bound and files looked at, and before there is
/// any other thread.
pub fn enter(mode: SandboxMode, server_paths: &ServerPaths<'_>) -> io::Result<Sandbox> {
    debug_assert!(is_single_threaded(), "Landlock holds for this thread and those that it starts");
    Sandbox::enter(mode, &server_paths.allowed_paths()?)
}

impl ServerPaths<'_> {
    pub fn allowed_paths(&self) -> io::Result<AllowedPaths> {
        let files = |files: Vec<&Path>| files.into_iter().map(PathBuf::from).collect();
        Ok(AllowedPaths {
            served: self.folder.canonicalize()?,
            reloaded: files(self.tls.files()),
            appended: files(self.observer.access_log_file().into_iter().collect()),
            sockets: files(self.socket_file.into_iter().chain(self.handover).collect()),
        })
    }
}

/// True where the kernel does not tell.
pub fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() == 1)
}
