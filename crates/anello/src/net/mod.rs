//! TCP and Unix stream sockets: listeners and streams.
//!
//! No future in this module lends memory of the application to the kernel. Every future can therefore be dropped at
//! any await point: received bytes stay with the stream, and accepted bytes are still sent.

mod echo;
mod happy_eyeballs;
mod linger;
mod listener;
mod listener_group;
mod resolve;
pub(crate) mod stream;
mod tcp_listener;
mod tcp_stream;
mod unix_listener;
mod unix_stream;
mod wait_queue;

pub use echo::{Echo, echo};
pub use listener_group::{Distribution, GroupListener, GroupMember, ListenerGroup, PendingConnections};
pub use resolve::{ToSocketAddrs, lookup_host};
pub use stream::{OwnedReadHalf, OwnedWriteHalf, OwnedWriter, ReadHalf, ShutdownHandle, Stream, WriteHalf};
pub use tcp_listener::{TcpListener, TcpListenerBuilder};
pub use tcp_stream::TcpStream;
pub use unix_listener::UnixListener;
pub use unix_stream::UnixStream;

pub use crate::driver::buffer::Chunk;
pub use crate::driver::{PeerCredentials, SendBuf};
