//! What `anello http` touches while it serves, for its sandbox to leave open.

use std::io;
use std::path::{Path, PathBuf};

use super::flags::{ObserverFlags, TlsFlags};
use crate::listening::Listening;
use crate::sandbox::{Reach, Sandbox, Wish};

/// Gives up what serving does not need. To be called when sockets have been bound and files looked at, and before there is
/// any other thread.
pub fn enter(
    wish: Wish,
    folder: &Path,
    listening: &Listening,
    tls: &TlsFlags,
    observer: &ObserverFlags,
) -> io::Result<Sandbox> {
    debug_assert!(is_only_thread(), "Landlock holds for this thread and those that it starts");
    let files = |files: Vec<&Path>| files.into_iter().map(PathBuf::from).collect();
    let reach = Reach {
        served: folder.canonicalize()?,
        read_again: files(tls.files()),
        appended: files(observer.access_log_file().into_iter().collect()),
        sockets: files(listening.socket_file().into_iter().collect()),
        ports: listening.port_to_bind().into_iter().collect(),
    };
    Sandbox::enter(wish, &reach)
}

/// True where the kernel does not tell.
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() == 1)
}
