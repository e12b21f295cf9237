//! Copying between streams, in-memory streams, buffered reading, the standard streams of the process, and
//! readiness of descriptors.
//!
//! [`copy`](copy()) and [`copy_bidirectional`] move the received buffers from one stream to the other without copying
//! their bytes. They accept every type that implements [`AsyncRecv`], [`AsyncSend`] and [`AsyncSplit`]: TCP and Unix
//! streams and their halves, [pipes](crate::net::pipe), those of [child
//! processes](crate::process), the standard streams ([`stdin`]), the in-memory streams of [`duplex`] and
//! [`simplex`], and the wrappers [`BufReader`] and [`Join`].
//!
//! [`AsyncFd`] reports the readiness of descriptors that the runtime does not own.
//!
//! # Several buffers
//!
//! Owned buffers that are sent one after the other form one stream of bytes: a header and a body need not be copied
//! into one buffer. Short slices are sent as one message, in one system call, with
//! [`write_vectored`](crate::net::StreamSocket::write_vectored).
//!
//! # Traits of other crates
//!
//! Programs that need `AsyncRead` and `AsyncWrite` enable a feature of [`compat`](crate::compat).

mod async_fd;
mod buffered;
mod copy;
mod join;
mod memory;
mod pipes;
mod stdio;
mod stream;
mod traits;

pub use async_fd::{AsyncFd, AsyncFdReadyGuard, AsyncFdReadyMutGuard, AsyncFdTryNewError, TryIoError};
pub use buffered::{BufReader, DEFAULT_MAX_LINE_BYTES, Lines};
pub use copy::{copy, copy_bidirectional};
pub use join::{Join, join};
pub use memory::{DuplexStream, SimplexReader, SimplexWriter, duplex, simplex};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
pub use traits::{AsyncRecv, AsyncSend, AsyncSplit};

pub use crate::driver::{Interest, Ready};
