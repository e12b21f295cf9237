//! TCP, UDP and Unix sockets.
//!
//! No future in this module lends application memory to the kernel. Every future can therefore be dropped at any await
//! point: received bytes stay with the stream, and accepted bytes are still sent.
//!
//! # `recv` and `read`
//!
//! Streams receive in two ways, which differ in the owner of the buffer:
//!
//! - [`recv`](StreamSocket::recv) returns a [`Chunk`]: the driver's buffer, which the kernel has filled. No byte is
//!   copied, and an idle connection holds no buffer, because the driver chooses one when bytes arrive. Dropping the
//!   chunk returns the buffer to the driver, so bytes that are kept for a long time should be copied.
//! - [`read`](StreamSocket::read) copies into a buffer of the caller, like the methods of this name in tokio and in the
//!   standard library.
//!
//! Both return the bytes of a stream: a chunk does not correspond to a message that the peer has sent. In the same way,
//! [`send`](StreamSocket::send) takes ownership of a buffer, and [`write`](StreamSocket::write) copies from a slice.
//! Everything else that receives owned buffers has a method `recv`, too; see [`AsyncRecv`](crate::io::AsyncRecv).
//! Datagram sockets have the methods of the standard library: `recv` and `recv_from` copy one datagram into a buffer of
//! the caller.
//!
//! # Errors
//!
//! Functions that take an address, such as [`TcpStream::connect`], [`TcpListener::bind`] and [`UdpSocket::send_to`],
//! return errors whose message contains the operation and the address: `cannot connect to 127.0.0.1:80: Connection
//! refused (os error 111)`. The kind is that of the failed system call. An [`io::Error`](std::io::Error) contains
//! either an error number or a message, so [`raw_os_error`](std::io::Error::raw_os_error) returns `None` for these
//! errors; the function [`raw_os_error`] returns the error number, and the error of the system call is the source of
//! the error's payload. `WouldBlock`, and the errors of other methods of existing sockets, are those of the system
//! call.
//!
//! ```
//! use anello::net::{TcpListener, TcpStream};
//!
//! anello::Runtime::new()?.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     anello::spawn(async move {
//!         let mut stream = listener.accept().await?;
//!         while let Some(chunk) = stream.recv().await? {
//!             stream.send(chunk).await?;
//!         }
//!         Ok::<(), std::io::Error>(())
//!     });
//!     let mut client = TcpStream::connect(address).await?;
//!     client.write_all(b"ciao").await?;
//!     assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod bind_retry;
mod connection;
mod datagram_readiness;
mod detach_error;
mod family;
mod halves;
mod happy_eyeballs;
mod linger;
mod listener;
mod options;
pub mod pipe;
mod resolve;
mod stream;
mod stream_import;
mod stream_readiness;
mod stream_socket;
mod tcp;
mod tcp_options;
mod tcp_socket;
mod udp;
mod unix;
mod unix_datagram;

pub(crate) use connection::Connection;
pub use connection::ShutdownHandle;
pub use detach_error::DetachError;
pub use family::{StreamFamily, Tcp, Unix};
pub use listener::StreamListener;
pub(crate) use listener::{BACKLOG, EXHAUSTED_RETRY_DELAY, Listener, is_exhausted, warn_exhausted};
pub use options::TcpKeepalive;
pub use resolve::{ToSocketAddrs, lookup_host};
#[cfg(any(feature = "compat-futures-io", feature = "compat-hyper", feature = "compat-tokio"))]
pub(crate) use stream::Sealed;
pub use stream::{ByteStream, OwnedReadHalf, OwnedWriteHalf, OwnedWriter, ReadHalf, ReuniteError, WriteHalf};
pub use stream_socket::StreamSocket;
pub use tcp::{TcpListener, TcpListenerBuilder, TcpStream};
pub use tcp_socket::TcpSocket;
pub use udp::{MtuDiscovery, UdpSocket, UdpSocketBuilder};
pub use unix::{UnixListener, UnixStream, UnixStreamInfo};
pub use unix_datagram::{UnixDatagram, UnixDatagramInfo};

pub use crate::driver::{
    Chunk, DatagramInfo, Ecn, OutgoingDatagram, PeerCredentials, ReceivedDatagram, RecvBatch, SendBuf,
    raw_os_error,
};
