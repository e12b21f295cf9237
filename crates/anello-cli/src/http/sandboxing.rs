//! What `anello http` touches while it serves, for its sandbox to leave open.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use super::flags::{ObserverFlags, TlsFlags};
use crate::sandbox::{Reach, Sandbox, Wish};

/// What the server was told to touch.
pub struct Served<'a> {
    pub folder: &'a Path,
    pub socket_file: Option<&'a Path>,
    pub handover: Option<&'a Path>,
    pub tls: &'a TlsFlags,
    pub observer: &'a ObserverFlags,
}

/// Gives up what serving does not need. To be called when sockets have been bound and files looked at, and before there is
/// any other thread.
pub fn enter(wish: Wish, served: &Served<'_>) -> io::Result<Sandbox> {
    debug_assert!(is_only_thread(), "Landlock holds for this thread and those that it starts");
    let files = |files: Vec<&Path>| files.into_iter().map(PathBuf::from).collect();
    let reach = Reach {
        served: served.folder.canonicalize()?,
        read_again: files(served.tls.files()),
        appended: files(served.observer.access_log_file().into_iter().collect()),
        sockets: files(served.socket_file.into_iter().chain(served.handover).collect()),
        notifies: env::var_os("NOTIFY_SOCKET").is_some(),
    };
    Sandbox::enter(wish, &reach)
}

/// True where the kernel does not tell.
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() == 1)
}
