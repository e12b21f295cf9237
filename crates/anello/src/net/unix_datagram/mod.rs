//! Unix datagram sockets.

mod transfer;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::SocketAddr;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::rc::Rc;
use std::task::Context;

use super::datagram_readiness::{datagram_readiness, direction};
use super::family::{Sealed as _, Unix};
use super::unix::{name, path_address};
use crate::driver::{
    Direction, End, Interest, PeerCredentials, PollIo, Ready, UnixDatagramSocket, with_context,
};
use crate::executor::{Shared, current};
use crate::readiness::Registration;

/// Unix datagram socket (`AF_UNIX`, `SOCK_DGRAM`), bound to this thread's runtime. Datagrams are reliable and keep
/// their order; a sender waits while the receiver's queue is full.
///
/// Any number of tasks can use a socket at the same time: all methods take `&self`. System calls and waiting work as
/// for [`UdpSocket`](super::UdpSocket). All futures are cancel-safe: a future that is dropped has received or sent
/// nothing.
///
/// Dropping the socket does not remove its socket file. The application that created the file must remove it, or
/// binding to the path again fails with `AddrInUse`. On the simulated driver, a path is only a name: no file is created,
/// and it is free again when the socket is closed.
///
/// ```
/// # anello::example! {
/// use anello::net::UnixDatagram;
///
/// let (one, other) = UnixDatagram::pair()?;
/// one.send(b"ciao").await?;
/// let mut buffer = [0; 16];
/// assert_eq!(other.recv(&mut buffer).await?, 4);
/// # }
/// ```
pub struct UnixDatagram {
    /// Released before the socket.
    registration: Registration,
    socket: UnixDatagramSocket,
    /// Set once the read direction has been shut down. Non-blocking calls then still return `EAGAIN` instead of 0.
    is_read_shut: Cell<bool>,
}

/// Code of the application, which may panic, never runs while the state is being changed.
impl UnwindSafe for UnixDatagram {}
impl RefUnwindSafe for UnixDatagram {}

/// Metadata of a datagram that was received with [`UnixDatagram::recv_with_fds`].
///
/// ```
/// # anello::example! {
/// use anello::net::UnixDatagram;
///
/// let (one, other) = UnixDatagram::pair()?;
/// one.send(b"ciao").await?;
/// let info = other.recv_with_fds(&mut [0; 2], &mut Vec::new()).await?;
/// assert!(info.bytes == 2 && info.is_truncated && info.source.is_unnamed());
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnixDatagramInfo {
    /// Number of bytes in the buffer.
    pub bytes: usize,
    /// Address of the sender, which is unnamed if its socket is not bound.
    pub source: SocketAddr,
    /// True if the datagram was longer than the buffer. The kernel has discarded the rest.
    pub is_truncated: bool,
    /// True if the kernel has discarded descriptors, for example because the process had no free descriptors.
    pub are_fds_truncated: bool,
    /// Credentials of the sender. Reported with [`set_passcred`](UnixDatagram::set_passcred).
    pub credentials: Option<PeerCredentials>,
}

impl UnixDatagram {
    fn new(shared: Rc<Shared>, socket: UnixDatagramSocket) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let key = shared.driver.borrow_mut().register_unix_datagram(&socket, interest)?;
        let registration = Registration::from_key(shared, key);
        Ok(Self { registration, socket, is_read_shut: Cell::new(false) })
    }

    #[track_caller]
    fn import(descriptor: OwnedFd) -> io::Result<Self> {
        let shared = current();
        let imported = shared.driver.borrow_mut().import_unix_datagram(descriptor)?;
        Self::new(shared, imported)
    }

    /// Binds to a path, which must not exist, or to an abstract name if the path begins with a zero byte. See
    /// [`bind_addr`](Self::bind_addr) for details and panics.
    ///
    /// # Errors
    /// Returns the errors of `bind_addr`, and `InvalidInput` if the path exceeds the kernel's limit of 107 bytes.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixDatagram;
    ///
    /// let path = std::env::temp_dir().join(format!("anello-{}.sock", std::process::id()));
    /// let receiver = UnixDatagram::bind(&path)?;
    /// let sender = UnixDatagram::unbound()?;
    /// sender.send_to(b"ciao", &path).await?;
    /// assert_eq!(receiver.recv(&mut [0; 16]).await?, 4);
    /// std::fs::remove_file(&path)?;
    /// # }
    /// ```
    #[track_caller]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_addr(&path_address(path.as_ref())?)
    }

    /// Binds to a path or an abstract name (`socket(2)`, `bind(2)`).
    ///
    /// # Errors
    /// Returns `AddrInUse` if the path exists or the name is in use, and other errors of `bind(2)` if the socket file
    /// cannot be created. The error contains the address.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// use std::os::linux::net::SocketAddrExt;
    /// use std::os::unix::net::SocketAddr;
    ///
    /// use anello::net::UnixDatagram;
    ///
    /// let address = SocketAddr::from_abstract_name(format!("anello-datagram-{}", std::process::id()))?;
    /// let receiver = UnixDatagram::bind_addr(&address)?;
    /// let sender = UnixDatagram::unbound()?;
    /// sender.connect_addr(&address)?;
    /// sender.send(b"ciao").await?;
    /// assert_eq!(receiver.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    #[track_caller]
    pub fn bind_addr(address: &SocketAddr) -> io::Result<Self> {
        let shared = current();
        let socket = shared.driver.borrow_mut().open_unix_datagram()?;
        socket
            .bind(address)
            .map_err(|error| with_context(format_args!("cannot bind {}", name(address)), error))?;
        Self::new(shared, socket)
    }

    /// Creates a socket that is not bound (`socket(2)`). It can send, but peers have no address to send to.
    ///
    /// # Errors
    /// Returns the error from `socket(2)`, for example if no descriptors are left.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// let socket = UnixDatagram::unbound()?;
    /// assert!(socket.local_addr()?.is_unnamed());
    /// # }
    /// ```
    #[track_caller]
    pub fn unbound() -> io::Result<Self> {
        let shared = current();
        let socket = shared.driver.borrow_mut().open_unix_datagram()?;
        Self::new(shared, socket)
    }

    /// Creates two sockets that are connected to each other (`socketpair(2)`).
    ///
    /// # Errors
    /// Returns the error from `socketpair(2)`, for example if no descriptors are left.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// assert_eq!(other.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let shared = current();
        let (one, other) = shared.driver.borrow_mut().pair_unix_datagrams()?;
        let (one, other) = (Self::new(Rc::clone(&shared), one)?, Self::new(Rc::clone(&shared), other)?);
        for socket in [&one, &other] {
            shared.driver.borrow_mut().set_ready(socket.registration.key(), Direction::Write);
        }
        Ok((one, other))
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
    /// # use anello::net::UnixDatagram;
    /// let (one, other) = std::os::unix::net::UnixDatagram::pair()?;
    /// let one = UnixDatagram::from_std(one)?;
    /// other.send(b"ciao")?;
    /// assert_eq!(one.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    #[track_caller]
    pub fn from_std(socket: std::os::unix::net::UnixDatagram) -> io::Result<Self> {
        Self::import(socket.into())
    }

    /// Converts the socket into a standard library socket in blocking mode.
    ///
    /// # Errors
    /// Returns an error if the mode cannot be changed, or on the simulated driver.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixDatagram;
    ///
    /// let (one, other) = UnixDatagram::pair()?;
    /// let one: std::os::unix::net::UnixDatagram = one.into_std()?;
    /// other.send(b"ciao").await?;
    /// assert_eq!(one.recv(&mut [0; 16])?, 4);
    /// # }
    /// ```
    pub fn into_std(self) -> io::Result<std::os::unix::net::UnixDatagram> {
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
    /// use anello::net::UnixDatagram;
    ///
    /// let (one, _other) = UnixDatagram::pair()?;
    /// let descriptor = one.try_as_fd()?;
    /// socket2::SockRef::from(&descriptor).set_recv_buffer_size(1 << 16)?;
    /// # }
    /// ```
    pub fn try_as_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    // ---- Addresses -----------------------------------------------------------------------------------------------

    /// Sets the peer to the socket at a path (`connect(2)`, which completes immediately). Connecting again replaces it.
    ///
    /// # Errors
    /// Returns the error from `connect(2)`: for example `NotFound` if the path does not exist, or `ConnectionRefused`
    /// if no socket is bound to it. Returns `InvalidInput` if the path exceeds the kernel's limit of 107 bytes.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// let socket = UnixDatagram::unbound()?;
    /// let error = socket.connect("/no/such/socket").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # }
    /// ```
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.connect_addr(&path_address(path.as_ref())?)
    }

    /// Sets the peer to the socket at a path or with an abstract name. See [`connect`](Self::connect).
    ///
    /// # Errors
    /// Returns the error from `connect(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::os::linux::net::SocketAddrExt;
    /// # use std::os::unix::net::SocketAddr;
    /// # use anello::net::UnixDatagram;
    /// let name = format!("anello-datagram-peer-{}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(&name)?;
    /// let receiver = UnixDatagram::bind_addr(&address)?;
    /// let sender = UnixDatagram::unbound()?;
    /// sender.connect_addr(&address)?;
    /// assert_eq!(sender.peer_addr()?.as_abstract_name(), Some(name.as_bytes()));
    /// # }
    /// ```
    pub fn connect_addr(&self, address: &SocketAddr) -> io::Result<()> {
        self.socket
            .connect(address)
            .map_err(|error| with_context(format_args!("cannot connect to {}", name(address)), error))
    }

    /// Returns the local address (`getsockname(2)`).
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// assert!(one.local_addr()?.is_unnamed() && other.local_addr()?.is_unnamed());
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Unix::address(&self.socket.address(End::Local)?)
    }

    /// Returns the address of the peer (`getpeername(2)`).
    ///
    /// # Errors
    /// Returns `NotConnected` if the socket is not connected.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// assert!(one.peer_addr()?.is_unnamed() && other.peer_addr()?.is_unnamed());
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Unix::address(&self.socket.address(End::Peer)?)
    }

    /// Returns the credentials of the process that created a [pair](Self::pair) (`SO_PEERCRED`). The kernel does not
    /// record credentials when other datagram sockets are connected: their process ID is `None`. For these, use
    /// [`set_passcred`](Self::set_passcred).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixDatagram;
    ///
    /// let (one, _other) = UnixDatagram::pair()?;
    /// assert_eq!(one.peer_cred()?.pid, Some(std::process::id()));
    /// # }
    /// ```
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        self.socket.peer_credentials()
    }

    /// Sets whether [`recv_with_fds`](Self::recv_with_fds) reports the credentials of the sender of each datagram
    /// (`SO_PASSCRED`). The default is `false`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixDatagram;
    ///
    /// let (one, other) = UnixDatagram::pair()?;
    /// other.set_passcred(true)?;
    /// one.send(b"ciao").await?;
    /// let info = other.recv_with_fds(&mut [0; 16], &mut Vec::new()).await?;
    /// assert_eq!(info.credentials.and_then(|sender| sender.pid), Some(std::process::id()));
    /// # }
    /// ```
    pub fn set_passcred(&self, on: bool) -> io::Result<()> {
        self.socket.set_passcred(on)
    }

    /// Returns whether the credentials of senders are reported (`SO_PASSCRED`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.set_passcred(true)?;
    /// assert!(one.passcred()? && !other.passcred()?);
    /// # }
    /// ```
    pub fn passcred(&self) -> io::Result<bool> {
        self.socket.passcred()
    }

    /// Returns and clears the pending error (`SO_ERROR`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// assert!(one.take_error()?.is_none() && other.take_error()?.is_none());
    /// # }
    /// ```
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// Shuts down one or both directions (`shutdown(2)`). Receives, also those that wait, then return 0, and sends fail
    /// with `BrokenPipe`. A send that waits for a full queue fails at once if both directions are shut down, otherwise
    /// when the queue has room. A send of the peer also fails, but the kernel does not wake a peer that is receiving.
    ///
    /// # Errors
    /// Returns `NotConnected` if the socket is not connected.
    ///
    /// ```
    /// # anello::example! {
    /// use std::net::Shutdown;
    ///
    /// use anello::net::UnixDatagram;
    ///
    /// let (one, other) = UnixDatagram::pair()?;
    /// one.shutdown(Shutdown::Both)?;
    /// assert_eq!(one.recv(&mut [0; 16]).await?, 0);
    /// assert_eq!(other.send(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    /// # }
    /// ```
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)?;
        self.is_read_shut.set(self.is_read_shut.get() || how != Shutdown::Write);
        Ok(())
    }
}

datagram_readiness! {
    UnixDatagram,
    "use anello::net::UnixDatagram;"
    ""
    "let (socket, peer) = UnixDatagram::pair()?;"
}

/// Returns -1 on the simulated driver, whose sockets have no descriptors.
impl AsRawFd for UnixDatagram {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.descriptor().map_or(-1, |descriptor| descriptor.as_raw_fd())
    }
}

/// Panics on the simulated driver, whose sockets have no descriptors; see [`UnixDatagram::try_as_fd`].
impl AsFd for UnixDatagram {
    #[track_caller]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.socket.descriptor() {
            Ok(descriptor) => descriptor,
            Err(error) => panic!("cannot return descriptor: {error}"),
        }
    }
}

/// Converts a descriptor, and sets it to non-blocking mode.
///
/// # Errors
/// Returns `InvalidInput` if the descriptor is not a Unix datagram socket. Otherwise see [`UnixDatagram::from_std`].
///
/// # Panics
/// Panics if no runtime is running on this thread.
impl TryFrom<OwnedFd> for UnixDatagram {
    type Error = io::Error;

    #[track_caller]
    fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
        Self::import(descriptor)
    }
}

/// See [`UnixDatagram::from_std`].
impl TryFrom<std::os::unix::net::UnixDatagram> for UnixDatagram {
    type Error = io::Error;

    #[track_caller]
    fn try_from(socket: std::os::unix::net::UnixDatagram) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl fmt::Debug for UnixDatagram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("UnixDatagram");
        if let Ok(address) = self.local_addr() {
            fields.field("local", &address);
        }
        fields.finish_non_exhaustive()
    }
}
