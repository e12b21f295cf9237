//! Pipes and FIFOs, with the interface of tokio's `net::unix::pipe`.
//!
//! Reads and writes are system calls on a descriptor in non-blocking mode (`read(2)`, `write(2)`). If they would block,
//! the task waits for readiness: a multishot poll on io_uring (Linux 5.13), edge-triggered epoll otherwise. All methods
//! take `&self`, so several tasks can use the same end. The simulated driver has no pipes.
//!
//! A write to a pipe without a reader fails with `BrokenPipe`, because Rust programs ignore `SIGPIPE` by default.
//!
//! ```
//! use anello::net::pipe;
//!
//! anello::Runtime::new()?.block_on(async {
//!     let (sender, receiver) = pipe::pipe()?;
//!     sender.write_all(b"one pipe").await?;
//!     drop(sender);
//!     let mut text = Vec::new();
//!     receiver.read_to_end(&mut text).await?;
//!     assert_eq!(text, b"one pipe");
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod check;
mod common;
mod open;
mod receiver;
mod sender;

use std::io;

use rustix::pipe::PipeFlags;

pub use self::open::OpenOptions;
pub use self::receiver::Receiver;
pub use self::sender::Sender;
use crate::readiness::PipeEnd;

/// Creates a pipe (`pipe2(2)`), and returns its write end and its read end.
///
/// # Errors
/// Returns an error if the process has no descriptors left, or on the simulated driver (`Unsupported`).
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// # anello::example! {
/// let (sender, receiver) = anello::net::pipe::pipe()?;
/// sender.write_all(b"ciao").await?;
/// let mut buffer = [0; 16];
/// assert_eq!(receiver.read(&mut buffer).await?, 4);
/// assert_eq!(&buffer[..4], b"ciao");
/// # }
/// ```
#[track_caller]
pub fn pipe() -> io::Result<(Sender, Receiver)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((Sender(PipeEnd::new_write(write)?), Receiver(PipeEnd::new_read(read)?)))
}
