//! Paths that the sandboxed server may access.

use std::path::PathBuf;

/// Paths that the sandboxed server may access.
#[derive(Clone, Debug, Default)]
pub struct AllowedPaths {
    /// Document root; everything below it may be read.
    pub served: PathBuf,
    /// Files that are read again after being replaced; their directories may be read.
    pub reloaded: Vec<PathBuf>,
    /// Files that are appended to and created again after being renamed. Files in their directories may be created and
    /// written.
    pub appended: Vec<PathBuf>,
    /// Unix socket files, which are removed at exit. Any file in their directories may be removed.
    pub sockets: Vec<PathBuf>,
}
