//! Copying between streams, in-memory streams, buffered reading, the standard streams of the process, and
//! readiness of descriptors.
//!
//! [`copy`](copy()) and [`copy_bidirectional`] move the received buffers from one stream to the other without copying
//! their bytes. They accept every type that implements [`AsyncRecv`], [`AsyncSend`] and [`AsyncSplit`]: TCP and Unix
//! streams and their halves, [pipes](crate::net::pipe), those of [child processes](crate::process),
//! [files](crate::fs::File), the standard streams ([`stdin`]), the in-memory streams of [`duplex`], and [`BufReader`].
//!
//! [`AsyncFd`] reports the readiness of descriptors that the runtime does not own.
//!
//! # Several buffers
//!
//! Owned buffers that are sent in succession form one stream of bytes: a header and a body need not be copied into one
//! buffer. Short slices are sent as one message, in one system call, with
//! [`write_vectored`](crate::net::StreamSocket::write_vectored).
//!
//! # Traits of other crates
//!
//! Programs that need `AsyncRead` and `AsyncWrite` enable a feature of [`compat`](crate::compat).
//!
//! ```
//! use anello::io::{BufReader, copy, duplex};
//!
//! // Receives a line, and copies what follows it.
//! anello::Runtime::new()?.block_on(async {
//!     let (mut client, server) = duplex(64);
//!     client.send("header\nbody").await?;
//!     drop(client);
//!     let (mut reader, mut header) = (BufReader::new(server), String::new());
//!     reader.read_line(&mut header).await?;
//!     let (mut file, mut body) = duplex(64);
//!     assert_eq!(copy(&mut reader, &mut body).await?, 4);
//!     assert_eq!((&*header, file.recv().await?.as_deref()), ("header\n", Some(&b"body"[..])));
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod async_fd;
mod buffered;
mod copy;
mod duplex;
mod duplex_halves;
mod pipes;
mod stdio;
mod stream;
mod traits;

pub use async_fd::{AsyncFd, AsyncFdReadyGuard, AsyncFdReadyMutGuard, AsyncFdTryNewError, TryIoError};
pub use buffered::{BufReader, DEFAULT_MAX_LINE_BYTES, Lines};
pub use copy::{copy, copy_bidirectional};
pub use duplex::{DuplexStream, duplex};
pub use duplex_halves::{DuplexReadHalf, DuplexWriteHalf};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
pub use traits::{AsyncRecv, AsyncSend, AsyncSplit};

pub use crate::driver::{Interest, Ready};
