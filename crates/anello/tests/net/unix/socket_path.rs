//! Paths of Unix sockets.

use std::fs;
use std::path::PathBuf;

/// Path in the temporary directory. The file is removed on drop.
pub struct SocketPath(pub PathBuf);

impl SocketPath {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("anello-{}-{name}.sock", std::process::id()));
        fs::remove_file(&path).ok();
        Self(path)
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}
