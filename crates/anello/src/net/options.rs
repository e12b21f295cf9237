//! Socket options of streams, listeners and unconnected sockets.

use std::io;
use std::time::Duration;

use crate::driver::{Driver, SocketOption, Target};

/// Parameters of the keep-alive probes of a TCP connection.
///
/// Parameters that are not set keep their current values: initially those of the system (`net.ipv4.tcp_keepalive_*`;
/// 2 hours, 75 seconds and 9 probes unless changed).
///
/// ```
/// # anello::example! {
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
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpKeepalive {
    time: Option<Duration>,
    interval: Option<Duration>,
    retries: Option<u32>,
}

impl TcpKeepalive {
    /// Returns a value without any parameter set.
    ///
    /// ```
    /// # use anello::net::TcpKeepalive;
    /// let keepalive = TcpKeepalive::new();
    /// assert_eq!((keepalive.time(), keepalive.interval(), keepalive.retries()), (None, None, None));
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the idle time after which the first probe is sent (`TCP_KEEPIDLE`), rounded up to seconds, from 1 to
    /// 32,767 seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::net::TcpKeepalive;
    /// let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60));
    /// assert_eq!(keepalive.time(), Some(Duration::from_secs(60)));
    /// ```
    pub fn with_time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the time between two probes (`TCP_KEEPINTVL`), rounded up to seconds, from 1 to 32,767 seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::net::TcpKeepalive;
    /// let keepalive = TcpKeepalive::new().with_interval(Duration::from_secs(5));
    /// assert_eq!(keepalive.interval(), Some(Duration::from_secs(5)));
    /// ```
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Sets the number of unanswered probes after which the connection is reset (`TCP_KEEPCNT`), from 1 to 127.
    ///
    /// ```
    /// # use anello::net::TcpKeepalive;
    /// let keepalive = TcpKeepalive::new().with_retries(3);
    /// assert_eq!(keepalive.retries(), Some(3));
    /// ```
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = Some(retries);
        self
    }

    /// Returns the idle time after which the first probe is sent.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::net::TcpKeepalive;
    /// assert_eq!(TcpKeepalive::new().time(), None);
    /// let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60));
    /// assert_eq!(keepalive.time(), Some(Duration::from_secs(60)));
    /// ```
    pub fn time(&self) -> Option<Duration> {
        self.time
    }

    /// Returns the time between two probes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::net::TcpKeepalive;
    /// assert_eq!(TcpKeepalive::new().interval(), None);
    /// let keepalive = TcpKeepalive::new().with_interval(Duration::from_secs(5));
    /// assert_eq!(keepalive.interval(), Some(Duration::from_secs(5)));
    /// ```
    pub fn interval(&self) -> Option<Duration> {
        self.interval
    }

    /// Returns the number of unanswered probes after which the connection is reset.
    ///
    /// ```
    /// # use anello::net::TcpKeepalive;
    /// assert_eq!(TcpKeepalive::new().retries(), None);
    /// assert_eq!(TcpKeepalive::new().with_retries(3).retries(), Some(3));
    /// ```
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
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert!(socket.send_buffer_size()? > 0);
            /// # }
            /// ```
            pub fn send_buffer_size(&self) -> io::Result<usize> {
                Ok(self.unsigned($crate::driver::SocketOption::SendBufferBytes)? as usize)
            }

            /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles the value). On a
            /// Unix stream, this size limits the bytes in flight to the peer, because Unix sockets have no separate
            /// receive buffer.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_send_buffer_size(20_000)?;
            /// assert_eq!(socket.send_buffer_size()?, 40_000);
            /// # }
            /// ```
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
            /// # anello::example! {
            /// use anello::net::UnixStream;
            /// use socket2::SockRef;
            ///
            /// let (stream, _peer) = UnixStream::pair()?;
            /// let descriptor = stream.try_clone_to_owned()?;
            /// SockRef::from(&descriptor).set_passcred(true)?;
            /// # }
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
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert!(socket.take_error()?.is_none());
            /// # }
            /// ```
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
