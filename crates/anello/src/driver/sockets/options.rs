//! Socket options with integer values, and options for which no dependency provides a safe call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use socket2::{SockAddr, SockRef};

/// A socket option whose value is an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SocketOption {
    NoDelay,
    /// Seconds, or a negative value if the option is off.
    Linger,
    KeepAlive,
    /// Seconds.
    KeepAliveTime,
    /// Seconds.
    KeepAliveInterval,
    KeepAliveRetries,
    /// Milliseconds.
    UserTimeout,
    QuickAck,
    MaxSegment,
    /// Length of a listener's queue of fast-open requests.
    FastOpen,
    FastOpenConnect,
    TimeToLive,
    TypeOfService,
    HopLimit,
    TrafficClass,
    OnlyV6,
    ReuseAddress,
    ReusePort,
    ReceiveBufferBytes,
    SendBufferBytes,
    /// Receive urgent data inline, in order with all other data.
    UrgentInline,
    /// Defer the choice of the local port to `connect(2)` (Linux 4.2).
    BindAddressNoPort,
    Broadcast,
    MulticastLoopV4,
    MulticastLoopV6,
    MulticastTtlV4,
    MulticastHopsV6,
    /// Address of the interface, in network byte order.
    MulticastInterfaceV4,
    /// Index of the interface.
    MulticastInterfaceV6,
    MtuDiscoveryV4,
    MtuDiscoveryV6,
    /// Path MTU of a connected socket. Can only be read.
    MtuV4,
    MtuV6,
    /// Report the destination of received datagrams.
    PacketInfoV4,
    PacketInfoV6,
    /// Report the traffic class of received datagrams.
    ReceiveTypeOfService,
    ReceiveTrafficClass,
    /// Merge received datagrams (Linux 5.0).
    Gro,
}

impl SocketOption {
    /// Returns the level and the name for `getsockopt(2)`.
    fn level_and_name(self) -> (libc::c_int, libc::c_int) {
        match self {
            Self::NoDelay => (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            Self::Linger => (libc::SOL_SOCKET, libc::SO_LINGER),
            Self::KeepAlive => (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            Self::KeepAliveTime => (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
            Self::KeepAliveInterval => (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
            Self::KeepAliveRetries => (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
            Self::UserTimeout => (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
            Self::QuickAck => (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
            Self::MaxSegment => (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
            Self::FastOpen => (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
            Self::FastOpenConnect => (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
            Self::TimeToLive => (libc::IPPROTO_IP, libc::IP_TTL),
            Self::TypeOfService => (libc::IPPROTO_IP, libc::IP_TOS),
            Self::HopLimit => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
            Self::TrafficClass => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            Self::OnlyV6 => (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
            Self::ReuseAddress => (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            Self::ReusePort => (libc::SOL_SOCKET, libc::SO_REUSEPORT),
            Self::ReceiveBufferBytes => (libc::SOL_SOCKET, libc::SO_RCVBUF),
            Self::SendBufferBytes => (libc::SOL_SOCKET, libc::SO_SNDBUF),
            Self::UrgentInline => (libc::SOL_SOCKET, libc::SO_OOBINLINE),
            Self::BindAddressNoPort => (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
            Self::Broadcast => (libc::SOL_SOCKET, libc::SO_BROADCAST),
            Self::MulticastLoopV4 => (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
            Self::MulticastLoopV6 => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
            Self::MulticastTtlV4 => (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL),
            Self::MulticastHopsV6 => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
            Self::MulticastInterfaceV4 => (libc::IPPROTO_IP, libc::IP_MULTICAST_IF),
            Self::MulticastInterfaceV6 => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF),
            Self::MtuDiscoveryV4 => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            Self::MtuDiscoveryV6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            Self::MtuV4 => (libc::IPPROTO_IP, libc::IP_MTU),
            Self::MtuV6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
            Self::PacketInfoV4 => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            Self::PacketInfoV6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            Self::ReceiveTypeOfService => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            Self::ReceiveTrafficClass => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
            Self::Gro => (libc::SOL_UDP, libc::UDP_GRO),
        }
    }

    /// Returns `true` if the option exists only on IPv6 sockets.
    pub fn is_ipv6_only(self) -> bool {
        self.level_and_name().0 == libc::IPPROTO_IPV6
    }
}

/// Sets an option (`setsockopt(2)`).
pub(in crate::driver) fn set(socket: &impl AsFd, option: SocketOption, value: i32) -> io::Result<()> {
    let (level, name) = option.level_and_name();
    if option == SocketOption::Linger {
        let value = libc::linger { l_onoff: i32::from(value >= 0), l_linger: value.max(0) };
        set_value(socket, level, name, &value)
    } else {
        set_value(socket, level, name, &value)
    }
}

/// Returns the value of an option (`getsockopt(2)`).
pub(in crate::driver) fn get(socket: &impl AsFd, option: SocketOption) -> io::Result<i32> {
    let (level, name) = option.level_and_name();
    if option == SocketOption::Linger {
        let value = get_value(socket, level, name, libc::linger { l_onoff: 0, l_linger: 0 })?;
        Ok(if value.l_onoff == 0 { -1 } else { value.l_linger })
    } else {
        get_value(socket, level, name, 0)
    }
}

/// A type that consists of integers only, so that every sequence of bytes is a valid value.
trait Plain: Copy {}

impl Plain for u8 {}
impl Plain for libc::c_int {}
impl Plain for libc::linger {}
impl Plain for libc::ucred {}

fn set_value<T: Plain>(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes from `value`, which has that size, and only during the call.
    let result = unsafe { libc::setsockopt(socket, level, name, std::ptr::from_ref(value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get_value<T: Plain>(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    mut value: T,
) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has that size, and only during the call. All
    // bytes are valid, because the type is `Plain`.
    let result = unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Returns whether a FIN has arrived, or the connection is broken (`TCP_INFO`, of which the first byte is the state).
pub fn has_received_fin(socket: &impl AsFd) -> bool {
    // `include/net/tcp_states.h`
    const TIME_WAIT: u8 = 6;
    const CLOSE: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    let state = get_value::<u8>(socket, libc::IPPROTO_TCP, libc::TCP_INFO, 0);
    matches!(state, Err(_) | Ok(TIME_WAIT | CLOSE | CLOSE_WAIT | LAST_ACK | CLOSING))
}

/// Returns the address of the peer, also if the connection is broken: `getpeername(2)` then fails, but `SO_PEERNAME`
/// does not. A client can reset its connection before the server has accepted it.
pub(in crate::driver) fn peer_address(socket: &impl AsFd) -> io::Result<SockAddr> {
    let error = match SockRef::from(socket).peer_addr() {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => error,
        known => return known,
    };
    let local = SockRef::from(socket).local_addr()?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes, which is the length of an address of this family, and only during
    // the call. It fails if it has fewer bytes.
    let named = unsafe {
        SockAddr::try_init(|address, length| {
            *length = local.len();
            match libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERNAME, address.cast(), length) {
                0 => Ok(()),
                _ => Err(error),
            }
        })
    };
    named.map(|((), address)| address)
}

/// Credentials of a Unix stream's peer, as recorded by the kernel when the stream was connected. On the connecting
/// side, these are the credentials of the listener at the time of its `listen(2)` call.
///
/// ```
/// # anello::example! {
/// use anello::net::{PeerCredentials, UnixStream};
///
/// /// Returns whether the peer is a process of the same user.
/// fn is_same_user(peer: PeerCredentials) -> bool {
///     peer.uid == rustix::process::geteuid().as_raw()
/// }
/// let (one, _other) = UnixStream::pair()?;
/// assert!(is_same_user(one.peer_cred()?));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process ID, or `None` if the peer is in another PID namespace and not visible from this one. By now, the
    /// process may have exited and its ID may belong to another process.
    pub pid: Option<u32>,
    /// The effective user ID.
    pub uid: u32,
    /// The effective group ID.
    pub gid: u32,
}

/// Returns the credentials of a Unix stream's peer (`SO_PEERCRED`).
pub(crate) fn peer_credentials(socket: &impl AsFd) -> io::Result<PeerCredentials> {
    let none = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let credentials = get_value(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, none)?;
    Ok(PeerCredentials::from(credentials))
}

impl From<libc::ucred> for PeerCredentials {
    fn from(credentials: libc::ucred) -> Self {
        Self {
            pid: u32::try_from(credentials.pid).ok().filter(|process| *process != 0),
            uid: credentials.uid,
            gid: credentials.gid,
        }
    }
}

/// `SO_PEERPIDFD`, which libc does not define.
const SO_PEERPIDFD: libc::c_int =
    if cfg!(any(target_arch = "sparc", target_arch = "sparc64")) { 0x56 } else { 77 };

/// Returns a new pidfd of a Unix stream's peer (`SO_PEERPIDFD`).
pub(in crate::driver) fn peer_pidfd(socket: &impl AsFd) -> io::Result<OwnedFd> {
    let descriptor = get_value(socket, libc::SOL_SOCKET, SO_PEERPIDFD, -1)?;
    // SAFETY: the call has succeeded, so the kernel has opened this descriptor for the caller, which owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
