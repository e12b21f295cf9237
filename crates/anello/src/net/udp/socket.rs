//! UDP sockets: addresses, conversions and readiness.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::task::Context;

use crate::driver::{DatagramSocket, Interest, PollIo, Ready, with_context};
use crate::executor::{Shared, current};
use crate::net::datagram_readiness::{datagram_readiness, direction};
use crate::net::resolve::{Host, ToSocketAddrs};
use crate::readiness::Registration;

/// UDP socket, bound to this thread's runtime.
///
/// Any number of tasks can use a socket at the same time: all methods take `&self`. To share it between tasks, put it
/// into an `Rc`. Datagrams are received in the order of arrival, each by one task.
///
/// # Connected sockets
/// After [`connect`](Self::connect), [`send`](Self::send) and [`recv`](Self::recv) exchange datagrams with one peer,
/// and the kernel discards those of others. If the peer's host reports that no socket is bound to the port, the next
/// call returns `ConnectionRefused`, once; no datagram is lost by the error, and the socket stays usable.
///
/// # Batches
/// [`recv_batch`](Self::recv_batch) and [`send_batch`](Self::send_batch) transfer up to 64 datagrams with one system
/// call (`recvmmsg(2)`, `sendmmsg(2)`). With segmentation offload
/// ([`OutgoingDatagram::with_segment_size`](crate::net::OutgoingDatagram::with_segment_size) and
/// [`set_gro`](Self::set_gro)), each of these can consist of up to 64 datagrams on
/// the network.
///
/// # System calls
/// Each call first tries the system call, with `MSG_DONTWAIT`. Only if the socket is not ready does it wait for
/// readiness: with a poll on io_uring (`IORING_OP_POLL_ADD`, Linux 5.13) and `epoll_wait(2)` on epoll. Payloads are
/// borrowed, because the kernel copies them during the call. All futures are cancel-safe: a future that is dropped has
/// received or sent nothing, unless documented otherwise.
///
/// # Differences from tokio
/// - [`bind`](Self::bind) is not asynchronous, and does not resolve host names; use [`bind_host`](Self::bind_host).
/// - The poll functions receive into a slice instead of a `ReadBuf`.
/// - Buffers are always slices; there is no `recv_buf`.
///
/// ```
/// # anello::example! {
/// use anello::net::UdpSocket;
///
/// let server = UdpSocket::bind("127.0.0.1:0")?;
/// let client = UdpSocket::bind("127.0.0.1:0")?;
/// client.connect(server.local_addr()?).await?;
/// client.send(b"ciao").await?;
///
/// let mut buffer = [0; 1500];
/// let (bytes, peer) = server.recv_from(&mut buffer).await?;
/// server.send_to(&buffer[..bytes], peer).await?;
/// assert_eq!(client.recv(&mut buffer).await?, 4);
/// # }
/// ```
pub struct UdpSocket {
    /// Released before the socket.
    pub(super) registration: Registration,
    pub(super) socket: DatagramSocket,
    /// Set if the network device cannot split payloads.
    pub(super) splits_payloads: Cell<bool>,
}

/// Code of the application, which may panic, never runs while the state is being changed.
impl UnwindSafe for UdpSocket {}
impl RefUnwindSafe for UdpSocket {}

impl UdpSocket {
    pub(super) fn new(shared: Rc<Shared>, socket: DatagramSocket) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let key = shared.driver.borrow_mut().register_datagrams(&socket, interest)?;
        let registration = Registration::from_key(shared, key);
        Ok(Self { registration, socket, splits_payloads: Cell::new(false) })
    }

    /// Converts a standard library socket. Sets it to non-blocking mode.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be switched to non-blocking mode, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::from_std(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// assert_eq!(socket.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    #[track_caller]
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::import(socket.into())
    }

    #[track_caller]
    fn import(descriptor: OwnedFd) -> io::Result<Self> {
        let shared = current();
        let imported = shared.driver.borrow_mut().import_udp(descriptor)?;
        Self::new(shared, imported)
    }

    /// Converts the socket into a standard library socket in blocking mode.
    ///
    /// # Errors
    /// Returns an error if the mode cannot be changed, or on the simulated driver.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// let socket: std::net::UdpSocket = socket.into_std()?;
    /// assert_eq!(socket.local_addr()?, address);
    /// # }
    /// ```
    pub fn into_std(self) -> io::Result<std::net::UdpSocket> {
        drop(self.registration);
        self.socket.export().map(Into::into)
    }

    /// Returns the descriptor. Use it to set options for which there is no method. Transfer data only in
    /// [`try_io`](Self::try_io).
    ///
    /// # Errors
    /// Returns `Unsupported` on the simulated driver, whose sockets have no descriptors.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let descriptor = socket.try_as_fd()?;
    /// socket2::SockRef::from(&descriptor).set_recv_buffer_size(1 << 16)?;
    /// # }
    /// ```
    pub fn try_as_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    // ---- Addresses -----------------------------------------------------------------------------------------------

    /// Sets the peer (`connect(2)`). Datagrams that arrived before are still received. Connecting again replaces the
    /// peer. Completes immediately, except for the resolution of a host name. If there are several addresses, the first
    /// one that the kernel accepts is used. Cancel-safe: a dropped future has not changed the peer.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved, or the kernel accepts none of the addresses, for example
    /// because there is no route. The error contains the address.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect("127.0.0.1:53").await?;
    /// assert_eq!(socket.peer_addr()?.port(), 53);
    /// # }
    /// ```
    pub async fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        let addresses = match address.to_host()? {
            Host::Address(peer) => vec![peer],
            host => host.resolve().await?,
        };
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "host has no addresses");
        for peer in addresses {
            match self.socket.connect(peer) {
                Ok(()) => return Ok(()),
                Err(error) => failed = with_context(format_args!("cannot connect to {peer}"), error),
            }
        }
        Err(failed)
    }

    /// Returns the local address (`getsockname(2)`).
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(socket.local_addr()?.ip().is_loopback());
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the address of the peer (`getpeername(2)`).
    ///
    /// # Errors
    /// Returns `NotConnected` if the socket is not connected.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// assert_eq!(socket.peer_addr()?, socket.local_addr()?);
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Returns and clears the pending error (`SO_ERROR`), which the next call would return otherwise.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(socket.take_error()?.is_none());
    /// # }
    /// ```
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }
}

datagram_readiness! {
    UdpSocket,
    "use anello::net::UdpSocket;"
    ""
    "let socket = UdpSocket::bind(\"127.0.0.1:0\")?;"
    "let peer = UdpSocket::bind(\"127.0.0.1:0\")?;"
    "peer.connect(socket.local_addr()?).await?;"
    "socket.connect(peer.local_addr()?).await?;"
}

/// Panics on the simulated driver, whose sockets have no descriptors; see [`UdpSocket::try_as_fd`].
impl AsFd for UdpSocket {
    #[track_caller]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.socket.descriptor() {
            Ok(descriptor) => descriptor,
            Err(error) => panic!("cannot return descriptor: {error}"),
        }
    }
}

/// Returns -1 on the simulated driver, whose sockets have no descriptors.
impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.descriptor().map_or(-1, |descriptor| descriptor.as_raw_fd())
    }
}

/// Converts a descriptor, and sets it to non-blocking mode.
///
/// # Errors
/// Returns `InvalidInput` if the descriptor is not a UDP socket. Otherwise see [`UdpSocket::from_std`].
///
/// # Panics
/// Panics if no runtime is running on this thread.
impl TryFrom<OwnedFd> for UdpSocket {
    type Error = io::Error;

    #[track_caller]
    fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
        Self::import(descriptor)
    }
}

/// See [`UdpSocket::from_std`].
impl TryFrom<std::net::UdpSocket> for UdpSocket {
    type Error = io::Error;

    #[track_caller]
    fn try_from(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("UdpSocket");
        if let Ok(address) = self.local_addr() {
            fields.field("local", &address);
        }
        if let Ok(address) = self.peer_addr() {
            fields.field("peer", &address);
        }
        fields.finish_non_exhaustive()
    }
}
