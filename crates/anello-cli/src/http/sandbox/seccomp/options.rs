//! Options of the filter.

/// Conditions for optional parts of the list.
#[derive(Clone, Copy, Debug)]
pub struct FilterOptions {
    /// Set if a worker uses io_uring.
    pub rings: bool,
    /// Set if there are Unix socket files.
    pub socket_files: bool,
}
