//! What a driver counts: cheap, always on, one set per worker.

/// Counts since the runtime started, of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverMetrics {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because the process had no descriptors left.
    pub refused: u64,
    /// Receives that brought bytes.
    pub receives: u64,
    /// Sends that took all they were given at once.
    pub sends: u64,
    /// Sends that took less, or nothing, and were finished later.
    pub short_sends: u64,
    /// Zero-copy sends.
    pub zero_copy_sends: u64,
    /// Bytes sent from files.
    pub file_bytes: u64,
    /// Times the kernel found no receive buffer (`ENOBUFS`); the bytes were received into other memory.
    pub buffer_exhaustions: u64,
    /// Completions whose operation had already been forgotten: dropped, their resources freed.
    pub late_completions: u64,
    /// Times the completion queue overflowed; nothing is lost, the kernel keeps the rest.
    pub completion_overflows: u64,
    /// System calls that submitted or waited (`io_uring_enter`, `epoll_wait`).
    pub turns: u64,
    /// Sockets that the driver owns now.
    pub sockets: u64,
}
