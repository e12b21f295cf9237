//! Implementations of other crates' I/O traits for anello's streams, for libraries that are generic over these traits.
//!
//! | feature | traits | used by |
//! |---|---|---|
//! | `compat-futures-io` | `futures_io::{AsyncRead, AsyncWrite}` | `futures`, `async-tungstenite`, `futures-rustls` |
//! | `compat-tokio` | `tokio::io::{AsyncRead, AsyncWrite}` | `tokio-util`, `tokio-rustls`, `tokio::io::copy` |
//! | `compat-hyper` | `hyper::rt::{Read, Write}`, and `HyperExecutor` and `HyperTimer` | servers and clients of hyper 1 (HTTP/1 and HTTP/2), and thereby any `tower::Service`, such as axum's `Router` and tonic's gRPC services |
//!
//! The feature `compat-rustls` adds `TlsSession`, which runs rustls sessions over streams. The feature `metrics` adds
//! `RuntimeMetrics::record`, which passes counters to the `metrics` crate.
//!
//! All features are off by default. Each adds a dependency on the crate that defines the traits, with none of its
//! features enabled: the tokio runtime and hyper's protocols are not included. The crate `tokio` is always a dependency,
//! for [`sync`](crate::sync).
//!
//! [`TcpStream`](crate::net::TcpStream) and [`UnixStream`](crate::net::UnixStream) implement all of these traits, as
//! do in-memory streams ([`io::duplex`](crate::io::duplex)). Their halves, [`File`](crate::fs::File),
//! [pipes](crate::net::pipe), the pipes to a [child process](crate::process) and the [standard
//! streams](crate::io::stdin) implement the tokio and futures traits; a file also implements `AsyncSeek`. As in tokio,
//! `poll_write` on a file accepts bytes that are then written in the background, and `poll_flush` waits for them.
//!
//! ```
//! # #[cfg(feature = "compat-tokio")]
//! # anello::example! {
//! use anello::net::UnixStream;
//! use tokio::io::AsyncReadExt;
//!
//! let (one, mut other) = UnixStream::pair()?;
//! anello::spawn(async move { tokio::io::copy(&mut &b"ciao"[..], &mut { one }).await }).detach();
//! let mut text = String::new();
//! other.read_to_string(&mut text).await?;
//! assert_eq!(text, "ciao");
//! # }
//! ```
//!
//! # Semantics
//!
//! - The kernel never accesses the caller's memory after a call has returned, so any future can be dropped at any await
//!   point. Received bytes that a read has not returned stay in the stream. A write that returned `Pending` has
//!   accepted no bytes.
//! - `poll_write` appends to the bounded send queue, as [`TcpStream::write`](crate::net::TcpStream::write) does, and
//!   returns `Pending` while the queue is full, which provides backpressure.
//! - A vectored write is sent as one message, as with
//!   [`TcpStream::write_vectored`](crate::net::TcpStream::write_vectored). An HTTP/1 server with short responses saves
//!   a few percent of its instructions with `writev(false)` on hyper's builder: hyper then copies the header section
//!   and the body into one buffer. Do not use this setting for long bodies.
//! - In the tokio and futures traits, `poll_flush` is ready once the kernel has accepted all bytes. In hyper's traits,
//!   it is ready as soon as the remaining bytes are queued for the runtime's next turn, because hyper flushes after
//!   each response and does not need a wake-up for each. It still waits for bytes that the kernel could not accept
//!   because the socket buffer was full. It also waits for the kernel where sends do not complete at submission: on
//!   io_uring before Linux 6.1, with submission polling, and for zero-copy sends.
//! - `poll_close` and `poll_shutdown` shut down the write half after the accepted bytes, as
//!   [`TcpStream::shutdown`](crate::net::TcpStream::shutdown) does. They are ready immediately and do not wait for the
//!   peer to read; flush first to wait until the kernel has accepted all bytes. A dropped stream continues to send
//!   accepted bytes, until it has made no progress for 30 seconds. A connection reset by the peer is an error only if
//!   bytes were lost.
//! - Reads and writes consume the budget of a task like anello's own methods, so a busy connection cannot starve the
//!   others.
//!
//! # Thread safety
//!
//! Streams are not `Send`. They work with libraries that require `AsyncRead + AsyncWrite + Unpin` or hyper's
//! `Read + Write + Unpin`. They do not work with libraries that also require `Send`, for example hyper's upgrades (use
//! `Connection::without_shutdown` to get the stream back) and the pooling client of `hyper_util` (use
//! `hyper::client::conn`).
//!
//! Axum handlers must be `Send`. Values that are not `Send`, such as streams, can be used in a separate task, whose
//! handle is `Send`: `anello::spawn(async { … }).await`. Code that uses the tokio runtime (`tokio::spawn`,
//! `tokio::time`) panics, because no tokio runtime is running.

#[cfg(feature = "compat-futures-io")]
mod futures_io;
#[cfg(feature = "compat-hyper")]
mod hyper;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(any(feature = "compat-futures-io", feature = "compat-tokio"))]
mod pipes;
#[cfg(any(feature = "compat-futures-io", feature = "compat-hyper", feature = "compat-tokio"))]
mod poll;
#[cfg(feature = "compat-rustls")]
mod rustls;
#[cfg(any(feature = "compat-futures-io", feature = "compat-hyper", feature = "compat-tokio"))]
mod streams;
#[cfg(feature = "compat-tokio")]
mod tokio_io;

#[cfg(feature = "compat-hyper")]
pub use self::hyper::{HyperExecutor, HyperTimer};
#[cfg(feature = "compat-rustls")]
pub use self::rustls::TlsSession;
