//! Paths of Unix sockets.

use std::ffi::OsString;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a name that no other test or set-up uses.
pub fn unique(name: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("anello-{}-{name}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns an abstract name as a path, which begins with a zero byte.
pub fn path_of(address: &SocketAddr) -> PathBuf {
    OsString::from_vec([b"\0", address.as_abstract_name().unwrap()].concat()).into()
}

/// Path in the temporary directory. The file is removed on drop.
pub struct SocketPath(pub PathBuf);

impl SocketPath {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(unique(name));
        // An earlier process with the same id can have left it.
        fs::remove_file(&path).ok();
        Self(path)
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}
