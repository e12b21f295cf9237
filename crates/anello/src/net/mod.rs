//! TCP: listeners and streams.
//!
//! Nothing here lends memory of the program to the kernel, so every future may be dropped at any await point: bytes
//! received stay with the stream, bytes accepted are sent.

mod echo;
mod linger;
mod tcp_listener;
mod tcp_stream;

pub use echo::echo;
pub use tcp_listener::{TcpListener, TcpListenerBuilder};
pub use tcp_stream::{Closer, ReadHalf, TcpStream, WriteHalf};

pub use crate::driver::Outgoing;
pub use crate::driver::buffer::Chunk;
pub(crate) use linger::Lingering;
