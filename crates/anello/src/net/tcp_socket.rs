//! TCP sockets that are configured before they are connected.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;

use super::connection::Connection;
use super::family::{Sealed, Tcp};
use super::options::{SocketAccess, common_options, raw_descriptor};
use super::stream_socket::StreamSocket;
use super::tcp_options::tcp_options;
use crate::driver::{AnySocket, Driver, End, Family, SocketOption, Target, check_socket, with_context};
use crate::executor::{Shared, current};

/// TCP socket that is not connected yet, bound to this thread's runtime.
///
/// Use this type to set options, or to bind a local address, before the connection is established.
/// [`TcpStream::connect`](super::TcpStream::connect) suffices for the default options. A socket that listens is
/// configured with [`TcpListener::builder`](super::TcpListener::builder). `SO_REUSEADDR` is off, as in tokio, and as on
/// all TCP sockets of this crate, `TCP_NODELAY` is on.
///
/// ```
/// # anello::example! {
/// use anello::net::{TcpListener, TcpSocket};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let socket = TcpSocket::new_v4()?;
/// socket.set_send_buffer_size(64 * 1024)?;
/// socket.set_ttl(32)?;
/// let mut client = socket.connect(listener.local_addr()?).await?;
/// let mut server = listener.accept().await?;
/// client.write_all(b"ciao").await?;
/// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
pub struct TcpSocket {
    pub(super) shared: Rc<Shared>,
    pub(super) socket: AnySocket,
}

/// Code of the application, which may panic, never runs while the state is being changed.
impl UnwindSafe for TcpSocket {}
impl RefUnwindSafe for TcpSocket {}

impl TcpSocket {
    /// Creates an IPv4 socket (`socket(2)`).
    ///
    /// # Errors
    /// Returns the error from `socket(2)`, for example if no descriptors are left.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v4()?;
    /// assert!(socket.local_addr()?.is_ipv4());
    /// # }
    /// ```
    #[track_caller]
    pub fn new_v4() -> io::Result<Self> {
        Self::open(false)
    }

    /// Creates an IPv6 socket (`socket(2)`).
    ///
    /// # Errors
    /// Returns the error from `socket(2)`, for example if the kernel does not support IPv6.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v6()?;
    /// assert!(socket.local_addr()?.is_ipv6());
    /// # }
    /// ```
    #[track_caller]
    pub fn new_v6() -> io::Result<Self> {
        Self::open(true)
    }

    #[track_caller]
    fn open(is_ipv6: bool) -> io::Result<Self> {
        let shared = current();
        let socket = shared.driver.borrow_mut().open_tcp(is_ipv6)?;
        Ok(Self { shared, socket })
    }

    /// Binds the socket to a local address (`bind(2)`).
    ///
    /// # Errors
    /// Returns the error from `bind(2)` with the address: for example `AddrInUse`, or `InvalidInput` if the socket is
    /// already bound.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v4()?;
    /// socket.bind("127.0.0.1:0".parse().unwrap())?;
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # }
    /// ```
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let bound = self.shared.driver.borrow_mut().bind(&self.socket, address);
        bound.map_err(|error| with_context(format_args!("cannot bind {address}"), error))
    }

    /// Connects to an address (`IORING_OP_CONNECT`, Linux 5.5; `connect(2)` on epoll). Cancel-safe: dropping the future
    /// abandons the connection.
    ///
    /// # Errors
    /// Returns the error of the connection attempt with the address.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpSocket};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let socket = TcpSocket::new_v4()?;
    /// socket.set_nodelay(false)?;
    /// let stream = socket.connect(listener.local_addr()?).await?;
    /// assert!(!stream.nodelay()?);
    /// # }
    /// ```
    pub async fn connect(self, peer: SocketAddr) -> io::Result<StreamSocket<Tcp>> {
        let Self { shared, socket } = self;
        let context = |error| with_context(format_args!("cannot connect to {peer}"), error);
        let started = shared.driver.borrow_mut().connect_socket(socket, peer);
        let key = started.map_err(context)?;
        let stream = StreamSocket::new(Connection::new(Rc::clone(&shared), key));
        let connected = poll_fn(|context| shared.driver.borrow_mut().poll_connect(key, context.waker()));
        connected.await.map_err(context)?;
        Ok(stream)
    }

    /// Returns the local address (`getsockname(2)`), with the assigned port if the socket was bound to port 0.
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v4()?;
    /// assert_eq!(socket.local_addr()?, "0.0.0.0:0".parse().unwrap());
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Tcp::address(&self.access(|driver, target| driver.address(target, End::Local))?)
    }

    /// Returns whether the address can be bound while connections of an earlier listener still exist (`SO_REUSEADDR`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v4()?;
    /// assert!(!socket.reuseaddr()?);
    /// # }
    /// ```
    pub fn reuseaddr(&self) -> io::Result<bool> {
        self.is_on(SocketOption::ReuseAddress)
    }

    /// Sets whether the address can be bound while connections of an earlier listener still exist (`SO_REUSEADDR`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v4()?;
    /// socket.set_reuseaddr(true)?;
    /// assert!(socket.reuseaddr()?);
    /// # }
    /// ```
    pub fn set_reuseaddr(&self, reuseaddr: bool) -> io::Result<()> {
        self.set(SocketOption::ReuseAddress, reuseaddr.into())
    }

    /// Returns whether several sockets can have the same local address (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v4()?;
    /// assert!(!socket.reuseport()?);
    /// # }
    /// ```
    pub fn reuseport(&self) -> io::Result<bool> {
        self.is_on(SocketOption::ReusePort)
    }

    /// Sets whether several sockets can have the same local address (`SO_REUSEPORT`), such as a listener and the sockets
    /// that connect from its port. All of them must have this option.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpSocket};
    /// let listener = TcpListener::builder().reuse_port(true).bind("127.0.0.1:0")?;
    /// let socket = TcpSocket::new_v4()?;
    /// socket.set_reuseport(true)?;
    /// socket.bind(listener.local_addr()?)?;
    /// # }
    /// ```
    pub fn set_reuseport(&self, reuseport: bool) -> io::Result<()> {
        self.set(SocketOption::ReusePort, reuseport.into())
    }

    /// Returns whether [`connect`](Self::connect) uses TCP Fast Open.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpSocket;
    /// let socket = TcpSocket::new_v4()?;
    /// assert!(!socket.fastopen_connect()?);
    /// # }
    /// ```
    pub fn fastopen_connect(&self) -> io::Result<bool> {
        self.is_on(SocketOption::FastOpenConnect)
    }

    /// Sets whether [`connect`](Self::connect) uses TCP Fast Open (`TCP_FASTOPEN_CONNECT`, Linux 4.11).
    ///
    /// If the kernel has a cookie of the peer, `connect` completes immediately, and the first bytes are sent in the SYN
    /// packet. They may be delivered twice, so they must be idempotent. A connection error is then returned by the
    /// first send or receive. Only a client that sends first can use this option: without a send, no connection is
    /// established. The first bit of `net.ipv4.tcp_fastopen` must be set, which is the default.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`: `Unsupported` if the system does not permit TCP Fast Open.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpSocket};
    /// let listener = TcpListener::builder().fastopen(16).bind("127.0.0.1:0")?;
    /// let socket = TcpSocket::new_v4()?;
    /// socket.set_fastopen_connect(true)?;
    /// let mut client = socket.connect(listener.local_addr()?).await?;
    /// client.write_all(b"ciao").await?;
    /// let mut server = listener.accept().await?;
    /// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn set_fastopen_connect(&self, fastopen: bool) -> io::Result<()> {
        self.set(SocketOption::FastOpenConnect, fastopen.into())
    }
}

impl SocketAccess for TcpSocket {
    fn access<T>(&self, call: impl FnOnce(&Driver, Target<'_>) -> io::Result<T>) -> io::Result<T> {
        call(&self.shared.driver.borrow(), Target::Unattached(&self.socket))
    }

    fn access_mut<T>(&self, call: impl FnOnce(&mut Driver, Target<'_>) -> io::Result<T>) -> io::Result<T> {
        call(&mut self.shared.driver.borrow_mut(), Target::Unattached(&self.socket))
    }
}

common_options!([] TcpSocket);
raw_descriptor!([] TcpSocket);

/// Panics on the simulated driver, whose sockets have no descriptors.
impl AsFd for TcpSocket {
    #[track_caller]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.socket.descriptor() {
            Ok(descriptor) => descriptor,
            Err(error) => panic!("cannot return descriptor: {error}"),
        }
    }
}

tcp_options!(TcpSocket);

/// Converts a descriptor, for example that of a socket on which options were set with another crate. Sets
/// `SO_OOBINLINE`, and `O_NONBLOCK` as the driver requires; `TCP_NODELAY` is not changed.
///
/// # Errors
/// Returns `InvalidInput` if the descriptor is not a TCP socket or the socket listens, and `Unsupported` on the
/// simulated driver.
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// # anello::example! {
/// use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
///
/// use anello::net::{TcpListener, TcpSocket};
/// use rustix::net::{AddressFamily, SocketType};
///
/// let descriptor: OwnedFd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
/// let socket = TcpSocket::try_from(descriptor)?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = socket.connect(listener.local_addr()?).await?;
/// assert_eq!(listener.accept().await?.peer_addr()?, client.local_addr()?);
/// # }
/// ```
impl TryFrom<OwnedFd> for TcpSocket {
    type Error = io::Error;

    #[track_caller]
    fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
        let shared = current();
        check_socket(&descriptor, Family::Internet, false)?;
        let socket = shared.driver.borrow_mut().import_tcp(descriptor)?;
        Ok(Self { shared, socket })
    }
}

impl fmt::Debug for TcpSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TcpSocket")
            .field("local_addr", &self.local_addr().ok())
            .finish_non_exhaustive()
    }
}
