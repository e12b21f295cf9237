//! Sockets and the system calls on them that never wait: what the io_uring and epoll drivers have in common.
//!
//! [`Sockets`] is the seam below which the simulated network lies; [`OsSockets`] is Linux.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::clock::Clock;
use super::socket_options;
pub use super::socket_options::PeerCredentials;

/// How a listener is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenOptions {
    pub backlog: u32,
    pub reuse_port: bool,
    pub nodelay: bool,
}

/// What kind of stream sockets there are, as far as the drivers treat them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Internet,
    /// Received by `recv(2)` on readiness: some kernels miss the end of the stream in a multishot receive on AF_UNIX
    /// (CVE-2026-23473). A read also stops behind descriptors that the peer sent along, so that a short one may not have
    /// drained the socket; and the kernel has no sends without a copy here.
    Unix,
}

/// A setting of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamOption {
    NoDelay(bool),
    KeepAlive(Option<Duration>),
    Linger(Option<Duration>),
    ReceiveBufferBytes(usize),
    SendBufferBytes(usize),
    /// Urgent data comes in order among the rest.
    UrgentInline,
}

/// What one call sends at most (`IOV_MAX`).
pub(crate) const MAX_IO_SLICES: usize = 1024;

/// Sockets of one kernel, real or simulated. Every call returns at once; `WouldBlock` says that it could not proceed.
pub(crate) trait Sockets {
    /// An owned socket, closed when dropped.
    type Socket: std::fmt::Debug;

    fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Self::Socket>;
    /// A socket to connect to `peer` with, from `source` if there is one; a port of zero there leaves it to the kernel.
    fn open_stream(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<Self::Socket>;
    fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<Self::Socket>;
    /// Connects at once, or never: `WouldBlock` says that the listener's backlog is full.
    fn connect_unix(&mut self, peer: &UnixAddress) -> io::Result<Self::Socket>;
    fn accept(&mut self, listener: &Self::Socket) -> io::Result<Self::Socket>;
    /// Accepts and closes connections that wait, with the descriptor kept in reserve, when the process has no other
    /// left. Returns how many were refused.
    fn refuse(&mut self, listener: &Self::Socket) -> usize;
    fn connect(&mut self, socket: &Self::Socket, peer: SocketAddr) -> io::Result<()>;
    /// How a connect that had to wait ended, asked when the socket has become writable.
    fn connect_result(&mut self, socket: &Self::Socket) -> io::Result<()>;
    fn receive(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;
    /// Whether bytes wait to be received (`FIONREAD`).
    fn has_bytes(&self, socket: &Self::Socket) -> bool;
    fn send(&mut self, socket: &Self::Socket, data: &[u8]) -> io::Result<usize>;
    /// Sends what is soon followed by more, or by the end: what does not fill a segment may wait for that (`MSG_MORE`).
    fn send_more(&mut self, socket: &Self::Socket, data: &[u8]) -> io::Result<usize>;
    /// Lets [`send_file`](Self::send_file) return instead of wait, from now on. Nothing else changes.
    fn prepare_send_file(&mut self, socket: &Self::Socket) -> io::Result<()>;
    /// Sends bytes of a file from that place on; zero at its end, or where there is nothing to send. Does not wait when
    /// the socket was prepared for it.
    fn send_file(
        &mut self,
        socket: &Self::Socket,
        family: Family,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> io::Result<usize>;
    /// Sends several slices, of which there are at most [`MAX_IO_SLICES`], by one call.
    fn send_slices(&mut self, socket: &Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    fn shutdown(&self, socket: &Self::Socket, how: Shutdown) -> io::Result<()>;
    fn set_option(&self, socket: &Self::Socket, option: StreamOption) -> io::Result<()>;
    fn local_address(&self, socket: &Self::Socket) -> io::Result<SocketAddr>;
    fn peer_address(&self, socket: &Self::Socket) -> io::Result<SocketAddr>;
    fn family(&self, socket: &Self::Socket) -> io::Result<Family>;
    fn local_unix_address(&self, socket: &Self::Socket) -> io::Result<UnixAddress>;
    fn peer_unix_address(&self, socket: &Self::Socket) -> io::Result<UnixAddress>;
    fn peer_credentials(&self, socket: &Self::Socket) -> io::Result<PeerCredentials>;
    /// Takes over a descriptor of the operating system; an error where there is none.
    fn import(&mut self, descriptor: OwnedFd) -> io::Result<Self::Socket>;
    /// Gives a descriptor up to the operating system, in blocking mode.
    fn export(&mut self, socket: Self::Socket) -> io::Result<OwnedFd>;
    /// Nanoseconds of the clock that the timers run on.
    fn now_ns(&self) -> u64;
    /// That clock, which can be read while the driver is borrowed.
    fn clock(&self) -> Clock;
}

/// Sockets of Linux.
#[derive(Debug)]
pub(crate) struct OsSockets {
    /// Whether sockets carry `O_NONBLOCK` from the start. io_uring wants them without: with it, it refuses to wait in
    /// an accept, a connect, a read or a write; not in a send or a receive, which look at their own flags alone (but those
    /// of `msghdr`s do not: the ring is given none). Direct calls pass `MSG_DONTWAIT` either way.
    nonblocking: bool,
    /// A descriptor to give up when there is no other, so that waiting clients can be refused instead of left.
    reserve: Option<OwnedFd>,
    started: Instant,
}

/// What the kernel moves in one round of a `sendfile(2)`: the pipe in the middle of it has 16 pages.
const SENDFILE_ROUND_BYTES: usize = 16 * 4096;

/// Most connections refused in one go.
const MAX_REFUSALS_PER_CALL: usize = 256;

/// Held by whoever sets the mode of a listening socket and relies on it. `O_NONBLOCK` is one setting of all descriptors of
/// a socket, workers may share one, and `accept4(2)` has no flag for a call that must not wait: it would wait for ever when
/// another worker sets the mode back in between.
static LISTENERS_MODE: Mutex<()> = Mutex::new(());

fn lock_listeners_mode() -> MutexGuard<'static, ()> {
    LISTENERS_MODE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OsSockets {
    pub fn new(nonblocking: bool) -> Self {
        Self { nonblocking, reserve: reserve_descriptor(), started: Instant::now() }
    }

    fn flags(&self) -> SocketFlags {
        if self.nonblocking { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK } else { SocketFlags::CLOEXEC }
    }
}

#[inline]
fn send(socket: &OwnedFd, data: &[u8], flags: SendFlags) -> io::Result<usize> {
    loop {
        match rustix::net::send(socket, data, flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
    }
}

impl Sockets for OsSockets {
    type Socket = OwnedFd;

    fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(options.reuse_port)?;
        // Accepted sockets inherit the settings: no system call per connection.
        socket.set_tcp_nodelay(options.nodelay)?;
        socket.set_out_of_band_inline(true)?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        socket.set_nonblocking(self.nonblocking)?;
        Ok(socket.into())
    }

    fn open_stream(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<OwnedFd> {
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(source) = source {
            bind_source(&socket, source)?;
        }
        socket.set_tcp_nodelay(true)?;
        socket.set_out_of_band_inline(true)?;
        socket.set_nonblocking(self.nonblocking)?;
        Ok(socket.into())
    }

    fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<OwnedFd> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        rustix::net::bind(&socket, &kernel_address(address)?)?;
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        socket.set_nonblocking(self.nonblocking)?;
        Ok(socket.into())
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

    fn accept(&mut self, listener: &OwnedFd) -> io::Result<OwnedFd> {
        Ok(rustix::net::accept_with(listener, self.flags())?)
    }

    fn refuse(&mut self, listener: &OwnedFd) -> usize {
        let (_mode, listener) = (lock_listeners_mode(), SockRef::from(listener));
        if self.reserve.take().is_none() || listener.set_nonblocking(true).is_err() {
            self.reserve = reserve_descriptor();
            return 0;
        }
        let mut refused = 0;
        while refused < MAX_REFUSALS_PER_CALL
            && rustix::net::accept_with(&*listener, SocketFlags::CLOEXEC).is_ok()
        {
            refused += 1;
        }
        if let Err(error) = listener.set_nonblocking(self.nonblocking) {
            super::log(|| tracing::warn!(%error, "the listener could not be set back to its mode"));
        }
        self.reserve = reserve_descriptor();
        refused
    }

    fn connect(&mut self, socket: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
        match rustix::net::connect(socket, &peer) {
            Err(Errno::INPROGRESS) => Err(io::ErrorKind::WouldBlock.into()),
            other => Ok(other?),
        }
    }

    fn connect_result(&mut self, socket: &OwnedFd) -> io::Result<()> {
        SockRef::from(socket).take_error()?.map_or(Ok(()), Err)
    }

    #[inline]
    fn receive(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn has_bytes(&self, socket: &OwnedFd) -> bool {
        rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
    }

    #[inline]
    fn send(&mut self, socket: &OwnedFd, data: &[u8]) -> io::Result<usize> {
        send(socket, data, SendFlags::empty())
    }

    fn send_more(&mut self, socket: &OwnedFd, data: &[u8]) -> io::Result<usize> {
        send(socket, data, SendFlags::MORE)
    }

    fn prepare_send_file(&mut self, socket: &OwnedFd) -> io::Result<()> {
        // sendfile(2) has no flag for a call that must not wait: it looks at the socket.
        if self.nonblocking { Ok(()) } else { Ok(rustix::io::ioctl_fionbio(socket, true)?) }
    }

    fn send_file(
        &mut self,
        socket: &OwnedFd,
        family: Family,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> io::Result<usize> {
        // Without it, an acknowledgement that comes between two rounds sends a segment off that is not full: nearly one
        // more for each 300 KiB on loopback.
        let corked = family == Family::Internet
            && length > SENDFILE_ROUND_BYTES
            && rustix::net::sockopt::set_tcp_cork(socket, true).is_ok();
        let mut next = offset;
        let sent = loop {
            match rustix::fs::sendfile(socket, file, Some(&mut next), length) {
                Err(Errno::INTR) => continue,
                other => break other,
            }
        };
        if corked {
            // It could be set, so that it can be cleared; and what was sent was sent.
            rustix::net::sockopt::set_tcp_cork(socket, false).ok();
        }
        Ok(sent?)
    }

    fn send_slices(&mut self, socket: &OwnedFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // The plain call is the shorter one.
        if let [data] = slices {
            return self.send(socket, data);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn shutdown(&self, socket: &OwnedFd, how: Shutdown) -> io::Result<()> {
        SockRef::from(socket).shutdown(how)
    }

    fn set_option(&self, socket: &OwnedFd, option: StreamOption) -> io::Result<()> {
        let socket = SockRef::from(socket);
        match option {
            StreamOption::NoDelay(on) => socket.set_tcp_nodelay(on),
            StreamOption::KeepAlive(None) => socket.set_keepalive(false),
            StreamOption::KeepAlive(Some(idle)) => {
                socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(idle))
            }
            StreamOption::Linger(linger) => socket.set_linger(linger),
            StreamOption::ReceiveBufferBytes(bytes) => socket.set_recv_buffer_size(bytes),
            StreamOption::SendBufferBytes(bytes) => socket.set_send_buffer_size(bytes),
            StreamOption::UrgentInline => socket.set_out_of_band_inline(true),
        }
    }

    fn local_address(&self, socket: &OwnedFd) -> io::Result<SocketAddr> {
        internet_address(SockRef::from(socket).local_addr()?)
    }

    fn peer_address(&self, socket: &OwnedFd) -> io::Result<SocketAddr> {
        internet_address(SockRef::from(socket).peer_addr()?)
    }

    fn family(&self, socket: &OwnedFd) -> io::Result<Family> {
        match SockRef::from(socket).domain()? {
            Domain::IPV4 | Domain::IPV6 => Ok(Family::Internet),
            _ => Ok(Family::Unix),
        }
    }

    fn local_unix_address(&self, socket: &OwnedFd) -> io::Result<UnixAddress> {
        unix_address(&SockRef::from(socket).local_addr()?)
    }

    fn peer_unix_address(&self, socket: &OwnedFd) -> io::Result<UnixAddress> {
        unix_address(&SockRef::from(socket).peer_addr()?)
    }

    fn peer_credentials(&self, socket: &OwnedFd) -> io::Result<PeerCredentials> {
        socket_options::peer_credentials(socket)
    }

    fn import(&mut self, descriptor: OwnedFd) -> io::Result<OwnedFd> {
        let socket = SockRef::from(&descriptor);
        socket.set_out_of_band_inline(true)?;
        // It may be a listening one that other workers have, too.
        let _mode = lock_listeners_mode();
        socket.set_nonblocking(self.nonblocking)?;
        Ok(descriptor)
    }

    fn export(&mut self, socket: OwnedFd) -> io::Result<OwnedFd> {
        SockRef::from(&socket).set_nonblocking(false)?;
        Ok(socket)
    }

    fn now_ns(&self) -> u64 {
        self.clock().now_ns()
    }

    #[inline]
    fn clock(&self) -> Clock {
        Clock::Monotonic(self.started)
    }
}

/// Accepts one connection, in blocking mode, from a socket that no driver has: `WouldBlock` when none waits there.
///
/// The socket is left in non-blocking mode.
pub(crate) fn try_accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let _mode = lock_listeners_mode();
    SockRef::from(listener).set_nonblocking(true)?;
    loop {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Err(errno) if is_per_connection_error(errno.raw_os_error()) => {}
            // The kernel takes a descriptor before it looks whether one is needed.
            Err(Errno::MFILE | Errno::NFILE) if !is_readable(listener)? => return Err(Errno::AGAIN.into()),
            accepted => return Ok(accepted?),
        }
    }
}

/// Whether there is something to be received, or somebody to be accepted (`poll(2)`).
fn is_readable(socket: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    Ok(poll(&mut polled, Some(&Timespec::default()))? > 0)
}

/// Whether an accept failed for one client, or for nobody: the next may succeed.
pub(crate) fn is_per_connection_error(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::ECONNABORTED | libc::EPROTO)
}

/// Whether sending from a file failed because of the file: the connection is as it was.
pub(crate) fn is_file_error(error: &io::Error) -> bool {
    use libc::{EACCES, EBADF, EINVAL, EIO, EISDIR, ENOMEM, ENOSYS, EOPNOTSUPP, EOVERFLOW, EPERM, ESPIPE};
    let errors = [EACCES, EBADF, EINVAL, EIO, EISDIR, ENOMEM, ENOSYS, EOPNOTSUPP, EOVERFLOW, EPERM, ESPIPE];
    error.raw_os_error().is_some_and(|errno| errors.contains(&errno))
}

/// Whether an address of this socket can only be reached on this machine: there, zero-copy sends copy after all.
pub(crate) fn is_loopback(socket: BorrowedFd<'_>) -> bool {
    match SockRef::from(&socket).peer_addr().ok().and_then(|address| address.as_socket()) {
        Some(address) => address.ip().to_canonical().is_loopback(),
        None => true,
    }
}

fn internet_address(address: SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "not an internet socket"))
}

fn unix_address(address: &SockAddr) -> io::Result<UnixAddress> {
    if !address.is_unix() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not a Unix socket"));
    }
    match (address.as_pathname(), address.as_abstract_namespace()) {
        (Some(path), _) => UnixAddress::from_pathname(path),
        (None, Some(name)) => UnixAddress::from_abstract_name(name),
        // No path at all is how the standard library has an unnamed address.
        (None, None) => UnixAddress::from_pathname(""),
    }
}

/// The address as the kernel takes it.
fn kernel_address(address: &UnixAddress) -> io::Result<SocketAddrUnix> {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => Ok(SocketAddrUnix::new(path)?),
        (None, Some(name)) => Ok(SocketAddrUnix::new_abstract_name(name)?),
        (None, None) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the address has no name: give a path or an abstract name",
        )),
    }
}

/// Binds the address from which a connection is to come.
fn bind_source(socket: &Socket, source: SocketAddr) -> io::Result<()> {
    if source.port() == 0 {
        // Only with the peer's address at hand can the kernel use one port for several connections.
        socket_options::bind_address_no_port(socket)?;
    }
    socket.bind(&SockAddr::from(source)).map_err(|error| {
        let (kind, remedy) = match error.kind() {
            // Apart from a connect for which there is no port left, which has that kind.
            io::ErrorKind::AddrNotAvailable => (
                io::ErrorKind::InvalidInput,
                "; name addresses of this machine as sources (ip address lists them)",
            ),
            kind => (kind, ""),
        };
        let name = if source.port() == 0 { source.ip().to_string() } else { source.to_string() };
        io::Error::new(kind, format!("cannot connect from {name}: {error}{remedy}"))
    })
}

/// Any descriptor will do; this one costs nothing else.
fn reserve_descriptor() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// Makes an error of a negative result of the kernel.
pub(crate) fn kernel_error(result: i32) -> io::Error {
    io::Error::from_raw_os_error(result.wrapping_neg())
}

/// The number of a descriptor, for an entry of the submission queue.
#[inline]
pub(crate) fn raw(socket: &OwnedFd) -> i32 {
    socket.as_raw_fd()
}

#[cfg(test)]
mod tests;
