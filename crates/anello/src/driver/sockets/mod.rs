//! Sockets and non-blocking system calls on them, shared by the io_uring and epoll drivers.
//!
//! The trait [`Sockets`] separates the drivers from the kernel. [`OsSockets`] implements it for Linux; the simulated
//! network has its own implementation.

mod address;
pub(super) mod detached;
mod linger;
pub(super) mod messages;
pub(super) mod options;
pub(super) mod reuse_port;
pub(super) mod udp;
pub(crate) mod unix_datagrams;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::FileType;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use self::address::kernel_address;
pub(crate) use self::address::unix_name;
use self::detached::{AnySocket, DetachedSocket};
pub(crate) use self::linger::check_linger;
use self::linger::{set_may_linger, stop_lingering_if_set};
use self::messages::ReceivedFds;
use self::options::{self as socket_options, PeerCredentials, SocketOption};
use crate::driver::errors::context::with_text;
use crate::driver::errors::log::log_event;
use crate::driver::memory::key::Key;
use crate::driver::wait::clock::Clock;

#[derive(Clone, Debug, Default)]
pub(crate) struct ListenOptions {
    pub backlog: u32,
    /// Options to set before the socket is bound.
    pub options: Vec<(SocketOption, i32)>,
    /// Name of the network interface to bind to.
    pub device: Option<Vec<u8>>,
}

/// Stream socket families, which the drivers treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Internet,
    /// Unix sockets. Their data is received with `recv(2)` when they are readable, because some kernels miss EOF in a
    /// multishot receive on AF_UNIX (CVE-2026-23473). A read also stops after file descriptors that the peer has sent
    /// with the data, so a short read does not always mean that the socket is drained. The kernel does not support
    /// zero-copy sends on these sockets.
    Unix,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Local,
    Peer,
}

/// A socket on which an option is read or set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    Stream(Key),
    Listener(Key),
    Unattached(&'a AnySocket),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FileRange<'a> {
    pub file: BorrowedFd<'a>,
    pub offset: u64,
    pub length: usize,
}

/// Maximum number of slices per call (`IOV_MAX`).
pub(crate) const MAX_IO_SLICES: usize = 1024;

/// The sockets of a real or simulated kernel. Calls never block; a call that would block returns `WouldBlock` instead.
pub(crate) trait Sockets {
    /// An owned socket, closed when dropped.
    type Socket: fmt::Debug + 'static;

    /// Opens a TCP socket that is neither bound nor connected, with the options that all streams use.
    fn open(&mut self, is_ipv6: bool) -> io::Result<Self::Socket>;
    fn bind(&mut self, socket: &Self::Socket, address: SocketAddr) -> io::Result<()>;
    fn start_listening(&mut self, socket: &Self::Socket, backlog: u32) -> io::Result<()>;
    /// Opens a socket bound to `source` if given. If the source port is zero, the kernel chooses the port.
    fn open_stream(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<Self::Socket>;
    fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<Self::Socket>;
    /// Connects without blocking. `WouldBlock` means that the listener's backlog is full.
    fn connect_unix(&mut self, peer: &UnixAddress) -> io::Result<Self::Socket>;
    /// Creates two Unix streams that are connected to each other.
    fn pair_unix(&mut self) -> io::Result<(Self::Socket, Self::Socket)>;
    fn accept(&mut self, listener: &Self::Socket) -> io::Result<Self::Socket>;
    /// Accepts and closes pending connections, using the reserve descriptor. Returns their number.
    fn reject_pending(&mut self, listener: &Self::Socket) -> usize;
    fn connect(&mut self, socket: &Self::Socket, peer: SocketAddr) -> io::Result<()>;
    /// Returns the result of a pending connect. Called when the socket has become writable.
    fn connect_result(&mut self, socket: &Self::Socket) -> io::Result<()>;
    fn receive(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;
    /// Receives without removing the bytes from the socket (`MSG_PEEK`).
    fn peek(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;
    /// Sends bytes and descriptors through a Unix stream (`SCM_RIGHTS`). Fails without sending, or sends at least one
    /// byte and all descriptors.
    fn send_with_fds(
        &mut self,
        socket: &Self::Socket,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<usize>;
    /// Receives bytes, and the descriptors that were sent with them, from a Unix stream.
    fn receive_with_fds(
        &mut self,
        socket: &Self::Socket,
        buffer: &mut [u8],
        descriptors: &mut ReceivedFds,
    ) -> io::Result<usize>;
    fn peer_pidfd(&self, socket: &Self::Socket) -> io::Result<OwnedFd>;
    /// Returns `true` if received bytes are available (`FIONREAD`).
    fn has_bytes(&self, socket: &Self::Socket) -> bool;
    /// Returns `true` if neither direction of the connection can be used any more (`POLLHUP`).
    fn is_hung_up(&self, socket: &Self::Socket) -> bool;
    /// Returns `true` if the peer sends no more bytes: a FIN has arrived or the connection is broken, or the peer of a
    /// Unix socket has closed it. A local shutdown makes no difference, as it would to `POLLRDHUP`.
    fn is_peer_closed(&self, socket: &Self::Socket, family: Family) -> bool;
    /// Returns `true` if the connection is broken, or closed in both directions.
    fn is_broken(&self, socket: &Self::Socket, family: Family) -> bool;
    fn send(&mut self, socket: &Self::Socket, data: &[u8]) -> io::Result<usize>;
    /// Sends data that will soon be followed by more data or a shutdown (`MSG_MORE`).
    fn send_more(&mut self, socket: &Self::Socket, data: &[u8]) -> io::Result<usize>;
    /// Makes later calls to [`send_file`](Self::send_file) non-blocking. Has no other effect.
    fn prepare_send_file(&mut self, socket: &Self::Socket) -> io::Result<()>;
    /// Returns 0 at the end of the file or if the length is 0. Does not block after a call to `prepare_send_file`.
    fn send_file(&mut self, socket: &Self::Socket, family: Family, range: FileRange<'_>)
    -> io::Result<usize>;
    /// Sends at most [`MAX_IO_SLICES`] slices with one call.
    fn send_slices(&mut self, socket: &Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    fn shutdown(&self, socket: &Self::Socket, how: Shutdown) -> io::Result<()>;
    fn set_option(&self, socket: &Self::Socket, option: SocketOption, value: i32) -> io::Result<()>;
    fn option(&self, socket: &Self::Socket, option: SocketOption) -> io::Result<i32>;
    /// Binds the socket to a network interface (`SO_BINDTODEVICE`).
    fn bind_device(&self, socket: &Self::Socket, device: Option<&[u8]>) -> io::Result<()>;
    fn device(&self, socket: &Self::Socket) -> io::Result<Option<Vec<u8>>>;
    /// Returns and clears the pending error (`SO_ERROR`).
    fn take_error(&self, socket: &Self::Socket) -> io::Result<Option<io::Error>>;
    fn address(&self, socket: &Self::Socket, end: End) -> io::Result<SockAddr>;
    fn peer_credentials(&self, socket: &Self::Socket) -> io::Result<PeerCredentials>;
    /// Returns a new descriptor of the socket. Simulated kernels return an error.
    fn duplicate(&self, socket: &Self::Socket) -> io::Result<OwnedFd>;
    /// Returns the descriptor. Simulated kernels return an error.
    fn descriptor<'a>(&self, socket: &'a Self::Socket) -> io::Result<BorrowedFd<'a>>;
    /// Returns the number of the descriptor, or -1 on simulated kernels.
    fn raw_fd(&self, socket: &Self::Socket) -> RawFd;
    /// Takes ownership of a socket of the same kernel; others return an error.
    fn import(&mut self, socket: DetachedSocket) -> io::Result<(Self::Socket, Family)>;
    /// Converts an operating system descriptor into a readiness source. Returns an error if its file cannot be polled,
    /// and on simulated kernels.
    fn import_source(&mut self, descriptor: Rc<OwnedFd>) -> io::Result<Rc<Self::Socket>>;
    /// Returns whether there is urgent data or another exceptional condition (`POLLPRI`).
    fn is_priority_ready(&self, socket: &Self::Socket) -> bool;
    /// Detaches a socket. Its descriptor is in blocking mode afterwards.
    fn export(&mut self, socket: Self::Socket) -> io::Result<DetachedSocket>;
    /// Closes a connected socket without blocking.
    fn close(&self, socket: Self::Socket) {
        drop(socket);
    }
    /// Returns the clock used by the timers. It can be read while the driver is borrowed.
    fn clock(&self) -> Clock;
    fn now_ns(&self) -> u64 {
        self.clock().now_ns()
    }
}

#[derive(Debug)]
pub(crate) struct OsSockets {
    /// Whether `O_NONBLOCK` is set on new sockets. io_uring needs sockets without this flag: on a non-blocking socket,
    /// an accept, connect, read or write does not wait. Sends and receives check only their own flags, except those
    /// with a `msghdr`, which the ring does not use. Direct calls pass `MSG_DONTWAIT` in both cases.
    nonblocking: bool,
    /// Closed when the process has no descriptors left, so that pending connections can be rejected.
    reserve: Option<OwnedFd>,
    started: Instant,
}

/// Number of bytes that the kernel transfers in one round of `sendfile(2)`: its internal pipe has 16 pages.
const SENDFILE_ROUND_BYTES: usize = 16 * 4096;

/// Maximum number of connections that one call rejects.
const MAX_REJECTIONS_PER_CALL: usize = 256;

/// Held while a thread sets the mode of a listening socket and relies on it. `O_NONBLOCK` is shared by all descriptors
/// of a socket, workers may share a socket, and `accept4(2)` has no flag for a non-blocking call. Without the lock, an
/// accept could block forever because another worker cleared the flag before the call.
static LISTENERS_MODE: Mutex<()> = Mutex::new(());

fn lock_listeners_mode() -> MutexGuard<'static, ()> {
    LISTENERS_MODE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OsSockets {
    pub fn new(nonblocking: bool) -> Self {
        Self { nonblocking, reserve: reserve_descriptor(), started: Instant::now() }
    }

    /// Creates a TCP socket with the options that all streams use. Accepted sockets inherit them from their listener,
    /// which saves system calls for each connection.
    fn tcp_socket(domain: Domain) -> io::Result<Socket> {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_out_of_band_inline(true)?;
        Ok(socket)
    }
}

#[inline]
fn send(socket: &OwnedFd, data: &[u8], flags: SendFlags) -> io::Result<usize> {
    let flags = flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| rustix::net::send(socket, data, flags))?)
}

impl Sockets for OsSockets {
    type Socket = OwnedFd;

    fn open(&mut self, is_ipv6: bool) -> io::Result<OwnedFd> {
        let socket = Self::tcp_socket(if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 })?;
        socket.set_nonblocking(self.nonblocking)?;
        Ok(socket.into())
    }

    fn bind(&mut self, socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
        SockRef::from(socket).bind(&SockAddr::from(address))
    }

    fn start_listening(&mut self, socket: &OwnedFd, backlog: u32) -> io::Result<()> {
        SockRef::from(socket).listen(i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    fn open_stream(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<OwnedFd> {
        let socket = Self::tcp_socket(Domain::for_address(peer))?;
        if let Some(source) = source {
            bind_source(&socket, source)?;
        }
        socket.set_nonblocking(self.nonblocking)?;
        Ok(socket.into())
    }

    fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<OwnedFd> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        rustix::net::bind(&socket, &kernel_address(address)?)?;
        socket.set_nonblocking(self.nonblocking)?;
        let socket = socket.into();
        self.start_listening(&socket, backlog)?;
        Ok(socket)
    }

    fn connect_unix(&mut self, peer: &UnixAddress) -> io::Result<OwnedFd> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_out_of_band_inline(true)?;
        socket.set_nonblocking(true)?;
        rustix::net::connect(&socket, &kernel_address(peer)?)?;
        if !self.nonblocking {
            socket.set_nonblocking(false)?;
        }
        Ok(socket.into())
    }

    fn pair_unix(&mut self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (one, other) = UnixStream::pair()?;
        Ok((self.import(one.into())?.0, self.import(other.into())?.0))
    }

    fn accept(&mut self, listener: &OwnedFd) -> io::Result<OwnedFd> {
        let mode = if self.nonblocking { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
        Ok(rustix::net::accept_with(listener, mode | SocketFlags::CLOEXEC)?)
    }

    fn reject_pending(&mut self, listener: &OwnedFd) -> usize {
        let (mode, listener) = (lock_listeners_mode(), SockRef::from(listener));
        if self.reserve.take().is_none() || listener.set_nonblocking(true).is_err() {
            self.reserve = reserve_descriptor();
            return 0;
        }
        let mut rejected = 0;
        while rejected < MAX_REJECTIONS_PER_CALL
            && let Ok(connection) = rustix::net::accept_with(&*listener, SocketFlags::CLOEXEC)
        {
            self.close(connection);
            rejected += 1;
        }
        let restored = listener.set_nonblocking(self.nonblocking);
        // A subscriber can import a listener, which takes the lock.
        drop(mode);
        if let Err(error) = restored {
            log_event!(WARN, %error, "cannot restore the blocking mode of the listening socket");
        }
        self.reserve = reserve_descriptor();
        rejected
    }

    fn connect(&mut self, socket: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
        match rustix::net::connect(socket, &peer) {
            Err(Errno::INPROGRESS) => Err(io::ErrorKind::WouldBlock.into()),
            other => Ok(other?),
        }
    }

    fn connect_result(&mut self, socket: &OwnedFd) -> io::Result<()> {
        self.take_error(socket)?.map_or(Ok(()), Err)
    }

    #[inline]
    fn receive(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT))?;
        Ok(count)
    }

    fn peek(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let (count, _) = retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, flags))?;
        Ok(count)
    }

    fn send_with_fds(
        &mut self,
        socket: &OwnedFd,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<usize> {
        messages::send_with_fds(socket.as_fd(), &[IoSlice::new(data)], descriptors, None)
    }

    fn receive_with_fds(
        &mut self,
        socket: &OwnedFd,
        buffer: &mut [u8],
        descriptors: &mut ReceivedFds,
    ) -> io::Result<usize> {
        let fds = &mut descriptors.fds;
        let message = messages::recv_with_fds(socket.as_fd(), &mut [IoSliceMut::new(buffer)], fds)?;
        descriptors.are_truncated |= message.are_fds_truncated;
        Ok(message.bytes)
    }

    fn peer_pidfd(&self, socket: &OwnedFd) -> io::Result<OwnedFd> {
        socket_options::peer_pidfd(socket)
    }

    fn has_bytes(&self, socket: &OwnedFd) -> bool {
        rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
    }

    fn is_hung_up(&self, socket: &OwnedFd) -> bool {
        let mut polled = [PollFd::new(socket, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::HUP)
    }

    fn is_peer_closed(&self, socket: &OwnedFd, family: Family) -> bool {
        match family {
            Family::Internet => options::has_received_fin(socket),
            Family::Unix => self.is_hung_up(socket),
        }
    }

    fn is_broken(&self, socket: &OwnedFd, family: Family) -> bool {
        match family {
            Family::Internet => SockRef::from(socket).peer_addr().is_err(),
            Family::Unix => self.is_hung_up(socket),
        }
    }

    #[inline]
    fn send(&mut self, socket: &OwnedFd, data: &[u8]) -> io::Result<usize> {
        send(socket, data, SendFlags::empty())
    }

    fn send_more(&mut self, socket: &OwnedFd, data: &[u8]) -> io::Result<usize> {
        send(socket, data, SendFlags::MORE)
    }

    fn prepare_send_file(&mut self, socket: &OwnedFd) -> io::Result<()> {
        // sendfile(2) has no flag for a non-blocking call; it uses the mode of the socket.
        if self.nonblocking { Ok(()) } else { Ok(rustix::io::ioctl_fionbio(socket, true)?) }
    }

    fn send_file(
        &mut self,
        socket: &OwnedFd,
        family: Family,
        FileRange { file, offset, length }: FileRange<'_>,
    ) -> io::Result<usize> {
        // Without the cork, the kernel sends a partial segment if an acknowledgement arrives between two rounds, which
        // adds nearly one segment per 300 KiB on loopback.
        let corked = family == Family::Internet
            && length > SENDFILE_ROUND_BYTES
            && rustix::net::sockopt::set_tcp_cork(socket, true).is_ok();
        let mut next = offset;
        let sent = retry_on_intr(|| rustix::fs::sendfile(socket, file, Some(&mut next), length));
        if corked {
            // Clearing the option cannot fail if setting it succeeded.
            rustix::net::sockopt::set_tcp_cork(socket, false).ok();
        }
        Ok(sent?)
    }

    fn send_slices(&mut self, socket: &OwnedFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // send(2) is cheaper than sendmsg(2).
        if let [data] = slices {
            return self.send(socket, data);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = retry_on_intr(|| {
            rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)
        });
        Ok(sent?)
    }

    fn shutdown(&self, socket: &OwnedFd, how: Shutdown) -> io::Result<()> {
        SockRef::from(socket).shutdown(how)
    }

    fn set_option(&self, socket: &OwnedFd, option: SocketOption, value: i32) -> io::Result<()> {
        if option == SocketOption::Linger && value > 0 {
            set_may_linger();
        }
        socket_options::set(socket, option, value)
    }

    fn option(&self, socket: &OwnedFd, option: SocketOption) -> io::Result<i32> {
        socket_options::get(socket, option)
    }

    fn bind_device(&self, socket: &OwnedFd, device: Option<&[u8]>) -> io::Result<()> {
        SockRef::from(socket).bind_device(device)
    }

    fn device(&self, socket: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
        SockRef::from(socket).device()
    }

    fn take_error(&self, socket: &OwnedFd) -> io::Result<Option<io::Error>> {
        SockRef::from(socket).take_error()
    }

    fn address(&self, socket: &OwnedFd, end: End) -> io::Result<SockAddr> {
        match end {
            End::Local => SockRef::from(socket).local_addr(),
            End::Peer => socket_options::peer_address(socket),
        }
    }

    fn peer_credentials(&self, socket: &OwnedFd) -> io::Result<PeerCredentials> {
        socket_options::peer_credentials(socket)
    }

    fn duplicate(&self, socket: &OwnedFd) -> io::Result<OwnedFd> {
        socket.try_clone()
    }

    fn descriptor<'a>(&self, socket: &'a OwnedFd) -> io::Result<BorrowedFd<'a>> {
        Ok(socket.as_fd())
    }

    fn raw_fd(&self, socket: &OwnedFd) -> RawFd {
        socket.as_raw_fd()
    }

    fn import(&mut self, socket: DetachedSocket) -> io::Result<(OwnedFd, Family)> {
        let descriptor = socket.into_descriptor()?;
        let socket = SockRef::from(&descriptor);
        let family = match socket.domain()? {
            Domain::IPV4 | Domain::IPV6 => Family::Internet,
            _ => Family::Unix,
        };
        socket.set_out_of_band_inline(true)?;
        // The socket may be a listening socket that is shared with other workers.
        let _mode = lock_listeners_mode();
        socket.set_nonblocking(self.nonblocking)?;
        Ok((descriptor, family))
    }

    fn import_source(&mut self, descriptor: Rc<OwnedFd>) -> io::Result<Rc<OwnedFd>> {
        // io_uring would report a file that the kernel cannot poll as always ready. epoll rejects it.
        let is_checked_by_driver = self.nonblocking;
        match FileType::from_raw_mode(rustix::fs::fstat(&descriptor)?.st_mode) {
            FileType::Socket | FileType::Fifo => Ok(descriptor),
            _ if is_checked_by_driver || can_poll(&descriptor)? => Ok(descriptor),
            _ => Err(not_pollable()),
        }
    }

    fn is_priority_ready(&self, socket: &OwnedFd) -> bool {
        let mut polled = [PollFd::new(socket, PollFlags::PRI)];
        // If the call fails, one spurious wake-up is harmless.
        poll(&mut polled, Some(&Timespec::default())).is_err() || polled[0].revents().contains(PollFlags::PRI)
    }

    fn export(&mut self, socket: OwnedFd) -> io::Result<DetachedSocket> {
        SockRef::from(&socket).set_nonblocking(false)?;
        Ok(socket.into())
    }

    #[inline]
    fn close(&self, socket: OwnedFd) {
        stop_lingering_if_set(&socket);
    }

    #[inline]
    fn clock(&self) -> Clock {
        Clock::Monotonic(self.started)
    }
}

/// Accepts one connection from a socket that does not belong to a driver, and leaves that socket in non-blocking mode.
/// Returns `WouldBlock` if no connection is pending.
pub(crate) fn try_accept(listener: &DetachedSocket) -> io::Result<DetachedSocket> {
    let listener = match listener {
        DetachedSocket::Os(listener) => listener,
        DetachedSocket::Simulated(listener) => return listener.try_accept(),
    };
    let _mode = lock_listeners_mode();
    SockRef::from(listener).set_nonblocking(true)?;
    loop {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Err(errno) if is_per_connection_error(errno.raw_os_error()) => {}
            // The kernel reserves a descriptor before it checks for a pending connection.
            Err(Errno::MFILE | Errno::NFILE)
                if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&Timespec::default()))? == 0 =>
            {
                return Err(Errno::AGAIN.into());
            }
            accepted => return Ok(accepted?.into()),
        }
    }
}

/// Returns `true` if an accept failed only because of one particular connection or an interruption. The next accept may
/// succeed.
pub(crate) fn is_per_connection_error(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::ECONNABORTED | libc::EPROTO)
}

/// Returns `true` if sending from a file failed because of the file. The connection is unaffected.
pub(crate) fn is_file_error(error: &io::Error) -> bool {
    use libc::{EACCES, EBADF, EINVAL, EIO, EISDIR, ENOMEM, ENOSYS, EOPNOTSUPP, EOVERFLOW, EPERM, ESPIPE};
    let errors = [EACCES, EBADF, EINVAL, EIO, EISDIR, ENOMEM, ENOSYS, EOPNOTSUPP, EOVERFLOW, EPERM, ESPIPE];
    error.raw_os_error().is_some_and(|errno| errors.contains(&errno))
}

/// Returns `true` if the peer is on this machine. The kernel then copies the data even for zero-copy sends.
pub(crate) fn is_loopback(socket: BorrowedFd<'_>) -> bool {
    match SockRef::from(&socket).peer_addr().ok().and_then(|address| address.as_socket()) {
        Some(address) => address.ip().to_canonical().is_loopback(),
        None => true,
    }
}

/// Checks that a descriptor is a stream socket of the family, and whether it listens.
pub(crate) fn check_socket(descriptor: &OwnedFd, family: Family, listens: bool) -> io::Result<()> {
    let socket = SockRef::from(descriptor);
    let is_internet = matches!(socket.domain()?, Domain::IPV4 | Domain::IPV6);
    let is_family = match family {
        Family::Internet => is_internet,
        Family::Unix => socket.domain()? == Domain::UNIX,
    };
    if is_family && socket.r#type()? == Type::STREAM && socket.is_listener()? == listens {
        return Ok(());
    }
    let family = if family == Family::Internet { "TCP" } else { "Unix" };
    let kind = if listens { "listener" } else { "stream" };
    let text = format!("cannot use descriptor: not a {family} {kind}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn bind_source(socket: &Socket, source: SocketAddr) -> io::Result<()> {
    if source.port() == 0 {
        // The kernel can share a port between connections only if it chooses the port once the peer address is known.
        socket_options::set(socket, SocketOption::BindAddressNoPort, 1)?;
    }
    socket.bind(&SockAddr::from(source)).map_err(|error| {
        let (kind, remedy) = match error.kind() {
            // A connect that finds no free local port fails with AddrNotAvailable.
            io::ErrorKind::AddrNotAvailable => {
                (io::ErrorKind::InvalidInput, " (use an address of this machine; ip address lists them)")
            }
            kind => (kind, ""),
        };
        let name = if source.port() == 0 { source.ip().to_string() } else { source.to_string() };
        with_text(kind, format!("cannot connect from {name}: {error}{remedy}"), error)
    })
}

/// Returns whether the kernel can poll a file, which only epoll reports.
fn can_poll(descriptor: &OwnedFd) -> io::Result<bool> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    match epoll::add(&epoll, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::empty()) {
        Err(Errno::PERM) => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// Any kind of descriptor would do; an eventfd uses few other resources.
fn reserve_descriptor() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// The error for a stale key: the runtime was shut down, or the stream was reset through its shutdown handle.
pub(crate) fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "socket closed: runtime shut down, or connection reset locally",
    )
}

/// The error for a file that cannot be polled. epoll returns `EPERM` for it.
#[cold]
pub(crate) fn not_pollable() -> io::Error {
    with_text(
        io::ErrorKind::PermissionDenied,
        "cannot register descriptor: the kernel cannot poll this kind of file, for example a regular file (use \
         anello::fs or spawn_blocking)"
            .to_owned(),
        Errno::PERM.into(),
    )
}

#[cfg(test)]
mod tests;
