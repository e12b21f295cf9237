//! UDP sockets.

mod builder;
mod metadata;
mod multicast;
mod options;
mod receive;
mod send;
mod socket;

pub use builder::UdpSocketBuilder;
pub use options::MtuDiscovery;
pub use socket::UdpSocket;
