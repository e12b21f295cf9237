//! Socket options of streams, listeners and unconnected sockets.

use std::io;
use std::time::Duration;

use crate::driver::{Driver, SocketOption, Target};

/// Keep-alive probes of a TCP connection.
///
/// Parameters that are not set keep their current values: initially those of the system (`net.ipv4.tcp_keepalive_*`;
/// 2 hours, 75 seconds and 9 probes unless changed).
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::time::Duration;
///
/// use anello::net::{TcpKeepalive, TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let stream = TcpStream::connect(listener.local_addr()?).await?;
/// let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_retries(3);
/// stream.set_tcp_keepalive(&keepalive)?;
/// assert!(stream.keepalive()?);
/// let keepalive = stream.tcp_keepalive()?;
/// assert_eq!((keepalive.time(), keepalive.retries()), (Some(Duration::from_secs(60)), Some(3)));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpKeepalive {
    time: Option<Duration>,
    interval: Option<Duration>,
    retries: Option<u32>,
}

impl TcpKeepalive {
    /// Returns parameters of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the idle time after which the first probe is sent (`TCP_KEEPIDLE`), rounded up to seconds, from 1 to
    /// 32,767 seconds.
    pub fn with_time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the time between two probes (`TCP_KEEPINTVL`), rounded up to seconds, from 1 to 32,767 seconds.
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Sets the number of unanswered probes after which the connection is reset (`TCP_KEEPCNT`), from 1 to 127.
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = Some(retries);
        self
    }

    /// Returns the idle time after which the first probe is sent.
    pub fn time(&self) -> Option<Duration> {
        self.time
    }

    /// Returns the time between two probes.
    pub fn interval(&self) -> Option<Duration> {
        self.interval
    }

    /// Returns the number of unanswered probes after which the connection is reset.
    pub fn retries(&self) -> Option<u32> {
        self.retries
    }

    pub(super) fn from_options(time: i32, interval: i32, retries: u32) -> Self {
        Self {
            time: Some(from_seconds(time)),
            interval: Some(from_seconds(interval)),
            retries: Some(retries),
        }
    }

    /// Returns the options that enable these probes.
    pub(super) fn to_options(&self) -> Vec<(SocketOption, i32)> {
        let options = [
            (SocketOption::KeepAlive, Some(1)),
            (SocketOption::KeepAliveTime, self.time.map(seconds)),
            (SocketOption::KeepAliveInterval, self.interval.map(seconds)),
            (SocketOption::KeepAliveRetries, self.retries.map(saturating)),
        ];
        options.into_iter().filter_map(|(option, value)| Some((option, value?))).collect()
    }
}

/// Rounds up to seconds, because zero often has a special meaning.
pub(super) fn seconds(duration: Duration) -> i32 {
    saturating(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}

/// Rounds up to milliseconds.
pub(super) fn milliseconds(duration: Duration) -> i32 {
    saturating(duration.as_nanos().div_ceil(1_000_000))
}

pub(super) fn saturating(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

pub(super) fn from_seconds(seconds: i32) -> Duration {
    Duration::from_secs(seconds.max(0).unsigned_abs().into())
}

/// Access to the socket in the driver.
pub(super) trait SocketAccess {
    fn access<T>(&self, call: impl FnOnce(&Driver, Target<'_>) -> io::Result<T>) -> io::Result<T>;

    fn access_mut<T>(&self, call: impl FnOnce(&mut Driver, Target<'_>) -> io::Result<T>) -> io::Result<T>;

    fn option(&self, option: SocketOption) -> io::Result<i32> {
        self.access(|driver, target| driver.option(target, option))
    }

    fn set(&self, option: SocketOption, value: i32) -> io::Result<()> {
        self.access(|driver, target| driver.set_option(target, option, value))
    }

    fn unsigned(&self, option: SocketOption) -> io::Result<u32> {
        Ok(self.option(option)?.max(0).unsigned_abs())
    }

    fn is_on(&self, option: SocketOption) -> io::Result<bool> {
        Ok(self.option(option)? != 0)
    }
}

/// Implements the options that exist on sockets of every family.
macro_rules! common_options {
    ([$($parameter:tt)*] $type:ty) => {
        impl $($parameter)* $type {
            /// Returns the size of the kernel's send buffer in bytes (`SO_SNDBUF`), which is twice the size that was
            /// set.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn send_buffer_size(&self) -> io::Result<usize> {
                Ok(self.unsigned($crate::driver::SocketOption::SendBufferBytes)? as usize)
            }

            /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles the value). On a
            /// Unix stream, this size limits the bytes in flight to the peer, because Unix sockets have no separate
            /// receive buffer.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
                self.set($crate::driver::SocketOption::SendBufferBytes, super::options::saturating(bytes))
            }

            /// Returns a new descriptor of the socket (`fcntl(2)` with `F_DUPFD_CLOEXEC`).
            ///
            /// Both descriptors refer to the same socket: options set through one apply to the other, and a socket is
            /// closed when all its descriptors are. The driver owns its descriptor and closes it when the runtime is
            /// dropped or the connection is reset through a handle, even if this object still exists. Therefore this
            /// type does not implement `AsFd`. Do not read or write through the new descriptor while the driver uses
            /// the socket, because the driver may already have received bytes. Do not change `O_NONBLOCK`: it is set
            /// on epoll and cleared on io_uring.
            ///
            /// ```
            /// # anello::Runtime::new()?.block_on(async {
            /// use anello::net::UnixStream;
            /// use socket2::SockRef;
            ///
            /// let (stream, _peer) = UnixStream::pair()?;
            /// let descriptor = stream.try_clone_to_owned()?;
            /// SockRef::from(&descriptor).set_passcred(true)?;
            /// # Ok::<(), std::io::Error>(()) })?;
            /// # Ok::<(), std::io::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the error from `fcntl(2)`, and an error on the simulated driver.
            pub fn try_clone_to_owned(&self) -> io::Result<std::os::fd::OwnedFd> {
                self.access_mut($crate::driver::Driver::duplicate)
            }

            /// Returns and clears the pending error of the socket (`SO_ERROR`). If the io_uring driver has already
            /// received the error, later receives return it again.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.access($crate::driver::Driver::take_error)
            }
        }
    };
}

/// Implements `AsRawFd`.
macro_rules! raw_descriptor {
    ([$($parameter:tt)*] $type:ty) => {
        /// The number is valid while the driver owns the descriptor: until this object or the runtime is dropped, or
        /// the connection is reset. It is -1 afterwards and on the simulated driver.
        /// `try_clone_to_owned` returns a descriptor that stays valid.
        impl $($parameter)* std::os::fd::AsRawFd for $type {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.access($crate::driver::Driver::raw_fd).unwrap_or(-1)
            }
        }
    };
}

pub(super) use common_options;
pub(super) use raw_descriptor;

/// Implements the options of TCP sockets. Connections inherit them from the listener that accepts them.
macro_rules! tcp_options {
    ($($type:ty),*) => {$(
        impl $type {
            /// Returns whether small messages are sent immediately instead of being coalesced (`TCP_NODELAY`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn nodelay(&self) -> io::Result<bool> {
                self.is_on($crate::driver::SocketOption::NoDelay)
            }

            /// Sets whether small messages are sent immediately instead of being coalesced (`TCP_NODELAY`). The default
            /// is `true`.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
                self.set($crate::driver::SocketOption::NoDelay, nodelay.into())
            }

            /// Returns whether the kernel probes an idle peer (`SO_KEEPALIVE`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn keepalive(&self) -> io::Result<bool> {
                self.is_on($crate::driver::SocketOption::KeepAlive)
            }

            /// Sets whether the kernel probes an idle peer (`SO_KEEPALIVE`).
            /// [`set_tcp_keepalive`](Self::set_tcp_keepalive) also sets the times.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
                self.set($crate::driver::SocketOption::KeepAlive, keepalive.into())
            }

            /// Returns the parameters of keep-alive probes (`TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`), all of
            /// which are set, whether or not probes are enabled.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn tcp_keepalive(&self) -> io::Result<super::options::TcpKeepalive> {
                Ok(super::options::TcpKeepalive::from_options(
                    self.option($crate::driver::SocketOption::KeepAliveTime)?,
                    self.option($crate::driver::SocketOption::KeepAliveInterval)?,
                    self.unsigned($crate::driver::SocketOption::KeepAliveRetries)?,
                ))
            }

            /// Enables keep-alive probes and sets their parameters. See
            /// [`TcpKeepalive`](crate::net::TcpKeepalive) for an example.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`: `InvalidInput` if a parameter is out of range.
            pub fn set_tcp_keepalive(&self, keepalive: &super::options::TcpKeepalive) -> io::Result<()> {
                keepalive.to_options().into_iter().try_for_each(|(option, value)| self.set(option, value))
            }

            /// Returns how long sent data may stay unacknowledged before the kernel resets the connection
            /// (`TCP_USER_TIMEOUT`). `None` means the system's default, which depends on the number of
            /// retransmissions.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn tcp_user_timeout(&self) -> io::Result<Option<std::time::Duration>> {
                let milliseconds = self.unsigned($crate::driver::SocketOption::UserTimeout)?;
                Ok((milliseconds > 0).then(|| std::time::Duration::from_millis(milliseconds.into())))
            }

            /// Sets how long sent data may stay unacknowledged before the kernel resets the connection
            /// (`TCP_USER_TIMEOUT`), rounded up to milliseconds. `None` restores the system's default.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_tcp_user_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
                self.set($crate::driver::SocketOption::UserTimeout, timeout.map_or(0, super::options::milliseconds))
            }

            /// Returns how the kernel closes the connection (`SO_LINGER`). See [`set_linger`](Self::set_linger).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn linger(&self) -> io::Result<Option<std::time::Duration>> {
                let seconds = self.option($crate::driver::SocketOption::Linger)?;
                Ok((seconds >= 0).then(|| super::options::from_seconds(seconds)))
            }

            /// Sets how the kernel closes the connection (`SO_LINGER`). With a duration of zero, the kernel resets the
            /// connection and discards unsent bytes. With a longer duration, rounded up to seconds, `close(2)` waits
            /// until the peer has acknowledged all bytes, and blocks the worker for up to this time. Use
            /// [`flush`](super::StreamSocket::flush) and an acknowledgement by the application instead.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_linger(&self, linger: Option<std::time::Duration>) -> io::Result<()> {
                self.set($crate::driver::SocketOption::Linger, linger.map_or(-1, super::options::seconds))
            }

            /// Returns whether acknowledgements are sent immediately (`TCP_QUICKACK`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn quickack(&self) -> io::Result<bool> {
                self.is_on($crate::driver::SocketOption::QuickAck)
            }

            /// Sets whether acknowledgements are sent immediately instead of with the next data (`TCP_QUICKACK`). The
            /// option is not permanent: the kernel changes it with the traffic.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
                self.set($crate::driver::SocketOption::QuickAck, quickack.into())
            }

            /// Returns the maximum segment size in bytes (`TCP_MAXSEG`). Before the connection is established, this is
            /// the kernel's default of 536.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn mss(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::MaxSegment)
            }

            /// Sets the maximum segment size in bytes (`TCP_MAXSEG`), which has an effect only before the connection is
            /// established.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`: `InvalidInput` if the value is not between 88 and 32,767.
            pub fn set_mss(&self, bytes: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::MaxSegment, super::options::saturating(bytes))
            }

            /// Returns the time to live of IPv4 packets (`IP_TTL`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn ttl(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::TimeToLive)
            }

            /// Sets the time to live of IPv4 packets (`IP_TTL`), from 1 to 255.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::TimeToLive, super::options::saturating(ttl))
            }

            /// Returns the type of service of IPv4 packets (`IP_TOS`): the DSCP in the upper six bits, and ECN.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn tos_v4(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::TypeOfService)
            }

            /// Sets the type of service of IPv4 packets (`IP_TOS`). On TCP sockets, the kernel ignores the two ECN bits.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::TypeOfService, super::options::saturating(tos))
            }

            /// Returns the hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`, for example if this is an IPv4 socket.
            pub fn unicast_hops_v6(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::HopLimit)
            }

            /// Sets the hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`), from 1 to 255.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`, for example if this is an IPv4 socket.
            pub fn set_unicast_hops_v6(&self, hops: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::HopLimit, super::options::saturating(hops))
            }

            /// Returns the traffic class of IPv6 packets (`IPV6_TCLASS`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`, for example if this is an IPv4 socket.
            pub fn tclass_v6(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::TrafficClass)
            }

            /// Sets the traffic class of IPv6 packets (`IPV6_TCLASS`). On TCP sockets, the kernel ignores the two ECN
            /// bits.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`, for example if this is an IPv4 socket.
            pub fn set_tclass_v6(&self, traffic_class: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::TrafficClass, super::options::saturating(traffic_class))
            }

            /// Returns whether an IPv6 socket accepts only IPv6 and no IPv4 connections (`IPV6_V6ONLY`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`, for example if this is an IPv4 socket.
            pub fn only_v6(&self) -> io::Result<bool> {
                self.is_on($crate::driver::SocketOption::OnlyV6)
            }

            /// Returns the size of the kernel's receive buffer in bytes (`SO_RCVBUF`), which is twice the size that was
            /// set.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn recv_buffer_size(&self) -> io::Result<usize> {
                Ok(self.unsigned($crate::driver::SocketOption::ReceiveBufferBytes)? as usize)
            }

            /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles the value). A
            /// fixed size disables the kernel's automatic tuning.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
                self.set($crate::driver::SocketOption::ReceiveBufferBytes, super::options::saturating(bytes))
            }

            /// Returns the network interface to which the socket is bound (`SO_BINDTODEVICE`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
                self.access($crate::driver::Driver::device)
            }

            /// Binds the socket to a network interface, such as `b"eth0"` (`SO_BINDTODEVICE`), or removes the binding.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`: for example `ENODEV` if the interface does not exist, and
            /// `PermissionDenied` if the socket is already bound to an interface and the process lacks `CAP_NET_RAW`.
            pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
                self.access(|driver, target| driver.bind_device(target, interface))
            }
        }
    )*};
}

pub(super) use tcp_options;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up() {
        let nanosecond = Duration::from_nanos(1);
        assert_eq!([Duration::ZERO, nanosecond, Duration::from_secs(2)].map(seconds), [0, 1, 2]);
        assert_eq!([Duration::ZERO, nanosecond, Duration::from_millis(2)].map(milliseconds), [0, 1, 2]);
        assert_eq!((seconds(Duration::MAX), milliseconds(Duration::MAX)), (i32::MAX, i32::MAX));
    }
}
