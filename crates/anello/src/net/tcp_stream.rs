//! TCP connections.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::connection::Connection;
use super::family::Tcp;
use super::happy_eyeballs::connect_to_first;
use super::resolve::{Host, ToSocketAddrs};
use super::stream_socket::StreamSocket;
use crate::driver::StreamOption;
use crate::executor::current;

/// TCP connection, bound to this thread's runtime.
///
/// [`StreamSocket`] documents the methods and guarantees of all streams. `TCP_NODELAY` is on by default. Urgent data is
/// received in order with the other data (`SO_OOBINLINE`). On io_uring, it may be delayed until the peer sends further
/// bytes; see [`one_shot_receive`](crate::DriverOptions::one_shot_receive).
pub type TcpStream = StreamSocket<Tcp>;

impl StreamSocket<Tcp> {
    /// Connects to the first address that responds (`IORING_OP_CONNECT`, Linux 5.5; `connect(2)` on epoll).
    ///
    /// A name is resolved on a thread in the blocking pool. If there are several addresses, attempts alternate between
    /// the address families. Each attempt starts when the previous one has failed or has been pending for 250 ms. The
    /// first successful attempt cancels the others (Happy Eyeballs, RFC 8305). Cancel-safe: dropping the future
    /// abandons the connection.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved, or if all attempts fail. The error includes all addresses.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_to_any(None, address).await
    }

    /// Connects from a local address (`bind(2)`), otherwise like [`connect`](Self::connect).
    ///
    /// If the port in `source` is 0, the kernel selects the port when the peer is known (`IP_BIND_ADDRESS_NO_PORT`,
    /// Linux 4.2), so one local port can be used for connections to different peers. Cancel-safe: dropping the future
    /// abandons the connection.
    ///
    /// # Errors
    /// See [`connect`](Self::connect). Also returns `InvalidInput` if `source` is not a local address, and
    /// `AddrNotAvailable` if no local port is available for the peer.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub async fn connect_from(source: SocketAddr, address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_to_any(Some(source), address).await
    }

    async fn connect_to_any(source: Option<SocketAddr>, address: impl ToSocketAddrs) -> io::Result<Self> {
        match address.to_host()? {
            Host::Address(peer) => Self::connect_to(source, peer).await,
            host => connect_to_first(host.resolve().await?, |peer| Self::connect_to(source, peer)).await,
        }
    }

    async fn connect_to(source: Option<SocketAddr>, peer: SocketAddr) -> io::Result<Self> {
        let shared = current();
        let started = shared.driver.borrow_mut().connect(peer, source);
        let key = started.map_err(|error| with_addresses(peer, source, error))?;
        let stream = Self::new(Connection::new(shared, key));
        let connected = poll_fn(|context| stream.connection.poll_connect(context)).await;
        connected.map_err(|error| with_addresses(peer, source, error))?;
        Ok(stream)
    }

    /// Sets whether small messages are sent immediately instead of being coalesced (`TCP_NODELAY`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.connection.set(StreamOption::NoDelay(on))
    }

    /// Sets the idle time after which the kernel probes the peer (`SO_KEEPALIVE`, `TCP_KEEPIDLE`). `None` disables
    /// probes.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        self.connection.set(StreamOption::KeepAlive(idle))
    }

    /// Sets how the kernel closes the connection (`SO_LINGER`). A zero duration resets it.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.connection.set(StreamOption::Linger(linger))
    }

    /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles the value).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.connection.set(StreamOption::ReceiveBufferBytes(bytes))
    }
}

/// Prefixes a connect error with its addresses. An error that concerns only the source already includes the source
/// address.
fn with_addresses(peer: SocketAddr, source: Option<SocketAddr>, error: io::Error) -> io::Error {
    let text = match source {
        Some(_) if error.get_ref().is_some() => return error,
        None => format!("{peer}: {error}"),
        Some(source) if source.port() == 0 => format!("{peer} from {}: {error}", source.ip()),
        Some(source) => format!("{peer} from {source}: {error}"),
    };
    io::Error::new(error.kind(), text)
}
