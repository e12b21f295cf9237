//! TCP and Unix stream sockets: listeners and streams.
//!
//! No future in this module lends application memory to the kernel. Every future can therefore be dropped at any await
//! point: received bytes stay with the stream, and accepted bytes are still sent.

mod connection;
mod echo;
mod family;
mod happy_eyeballs;
mod linger;
mod listener;
mod listener_group;
mod resolve;
mod stream;
mod stream_socket;
mod tcp;
mod unix;
mod wait_queue;

pub use connection::ShutdownHandle;
pub use echo::{Echo, echo};
pub use family::{StreamFamily, Tcp, Unix};
pub use listener::StreamListener;
pub use listener_group::{Distribution, GroupListener, GroupMember, ListenerGroup, PendingConnections};
pub use resolve::{ToSocketAddrs, lookup_host};
pub use stream::{OwnedReadHalf, OwnedWriteHalf, OwnedWriter, ReadHalf, Stream, WriteHalf};
pub use stream_socket::{IntoStdError, StreamSocket};
pub use tcp::{TcpListener, TcpListenerBuilder, TcpStream};
pub use unix::{UnixListener, UnixStream};

pub use crate::driver::buffer::Chunk;
pub use crate::driver::{PeerCredentials, SendBuf};
#[cfg(any(feature = "compat-futures-io", feature = "compat-hyper", feature = "compat-tokio"))]
pub(crate) use {connection::Connection, stream::Sealed};
