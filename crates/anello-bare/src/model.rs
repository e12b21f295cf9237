//! The I/O models.

/// I/O model: how the server waits until it can receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Model {
    /// io_uring: multishot accept, multishot receive into provided buffers, one io_uring_enter(2) per turn. Linux 6.0.
    Uring,
    /// epoll_wait(2), edge-triggered, with speculative system calls. Linux 2.6.17.
    Epoll,
    /// poll(2), level-triggered.
    Poll,
    /// select(2), level-triggered; supports only descriptors below 1024.
    Select,
    /// One blocking thread per connection.
    Threads,
}
