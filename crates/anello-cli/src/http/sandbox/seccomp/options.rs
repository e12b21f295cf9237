//! Options of the filter.

/// Conditions for optional parts of the list.
#[derive(Clone, Copy, Debug)]
pub struct FilterOptions {
    /// Whether a worker uses io_uring.
    pub rings: bool,
    /// Whether there are Unix socket files.
    pub socket_files: bool,
}
