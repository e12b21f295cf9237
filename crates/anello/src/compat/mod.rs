//! The traits of other worlds on anello's streams, so that what is written for them runs here unchanged.
//!
//! | feature | traits | for |
//! |---|---|---|
//! | `compat-futures-io` | `futures_io::{AsyncRead, AsyncWrite}` | `futures`, `async-tungstenite`, `rustls` by `futures-rustls` |
//! | `compat-tokio` | `tokio::io::{AsyncRead, AsyncWrite}` | `tokio-util`, `tokio-rustls`, `tokio::io::copy` |
//! | `compat-hyper` | `hyper::rt::{Read, Write}`, and `HyperExecutor` and `HyperTimer` | servers and clients of hyper 1, by HTTP/1 and HTTP/2, and with them every `tower::Service`: axum's `Router`, tonic's gRPC |
//!
//! All are off by default: each brings the crate of its traits, without any feature of that crate (no runtime comes with
//! tokio, no protocol with hyper).
//!
//! [`TcpStream`](crate::net::TcpStream) and [`UnixStream`](crate::net::UnixStream) have the traits themselves; their
//! halves have those of the two I/O worlds. Nothing has to be wrapped:
//!
//! ```
//! # #[cfg(feature = "compat-tokio")]
//! # fn main() -> std::io::Result<()> {
//! use anello::net::UnixStream;
//! use tokio::io::AsyncReadExt;
//!
//! anello::Runtime::new()?.block_on(async {
//!     let (one, mut other) = UnixStream::pair()?;
//!     anello::spawn(async move { tokio::io::copy(&mut &b"ciao"[..], &mut { one }).await }).detach();
//!     let mut text = String::new();
//!     other.read_to_string(&mut text).await?;
//!     assert_eq!(text, "ciao");
//!     Ok(())
//! })
//! # }
//! # #[cfg(not(feature = "compat-tokio"))]
//! # fn main() {}
//! ```
//!
//! # What holds in every world
//!
//! - Memory of the program is never lent to the kernel beyond a call: any future may be dropped at any await point.
//!   What a read did not return stays with the stream for the next; a write that was not ready has accepted nothing.
//! - `poll_write` accepts into the bounded send queue
//!   ([`max_send_queue_bytes`](crate::DriverOptions::max_send_queue_bytes)), as [`TcpStream::write`](crate::net::TcpStream::write)
//!   does; long writes go to the kernel at once from where they lie (`send(2)`, `sendmsg(2)`), and only what it refuses
//!   is copied. When the queue is full it waits: back-pressure reaches whoever produces the bytes.
//! - Vectored writes leave as one message: short slices are copied together, long ones passed to `sendmsg(2)`. A server of
//!   HTTP/1 with short answers saves a few percent of its instructions by `writev(false)` on hyper's builder: hyper itself
//!   then puts head and body into one buffer. Long bodies are better not copied.
//! - `poll_flush` of the two I/O worlds is ready when the kernel has taken everything that was accepted. Hyper's is ready
//!   when everything is with the kernel or goes to it with the runtime's next turns, and waits when the kernel has
//!   refused some for want of room: hyper flushes after each response, and a wake-up for each would be for nothing. Where
//!   sends do not complete at submission, it waits until the kernel has taken them, too: on io_uring before Linux 5.17,
//!   with [`SendCompletion::PerSend`](crate::SendCompletion::PerSend), with submission polling, and of what is sent without a copy.
//! - Closing (`poll_close`, `poll_shutdown`) shuts down the write direction behind the accepted bytes, as
//!   [`TcpStream::shutdown`](crate::net::TcpStream::shutdown) does, and is ready at once: it does not wait for the peer to
//!   read. A flush waits until the kernel has taken the bytes. A stream that is dropped before sends on for up to 30
//!   seconds. That the peer has reset the connection is no error, unless bytes were lost by that.
//! - Reads and writes count against the budget of a task as anello's own calls do, so that a busy connection cannot starve
//!   the others.
//!
//! # What stays on its thread
//!
//! Streams are not `Send`. Libraries that only ask for `AsyncRead + AsyncWrite + Unpin` or hyper's `Read + Write + Unpin`
//! are content; those that ask for `Send` as well, to move a connection between threads, are not to be had: among them are
//! hyper's upgrades (take the stream back by `Connection::without_shutdown` instead) and `hyper_util`'s pooling client
//! (use `hyper::client::conn`). Handlers of axum have to be `Send`; what is not, such as a stream, goes into a task of
//! its own, whose handle is: `anello::spawn(async { … }).await`. Code that spawns on or sleeps by the tokio runtime
//! (`tokio::spawn`, `tokio::time`) panics here, because there is none.

#[cfg(feature = "compat-futures-io")]
mod futures_io;
#[cfg(feature = "compat-hyper")]
mod hyper_executor;
#[cfg(feature = "compat-hyper")]
mod hyper_io;
#[cfg(feature = "compat-hyper")]
mod hyper_timer;
#[cfg(feature = "compat-tokio")]
mod tokio_io;

#[cfg(feature = "compat-hyper")]
pub use self::{hyper_executor::HyperExecutor, hyper_timer::HyperTimer};

#[cfg(any(feature = "compat-futures-io", feature = "compat-hyper", feature = "compat-tokio"))]
mod closing {
    use std::io;
    use std::task::Poll;

    use crate::net::stream::Inner;

    /// Shuts down the write direction behind the accepted bytes.
    pub(super) fn poll_close(connection: &Inner) -> Poll<io::Result<()>> {
        Poll::Ready(match connection.shutdown() {
            // The peer has reset the connection: there is no direction left to shut down.
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
            ended => ended,
        })
    }
}
