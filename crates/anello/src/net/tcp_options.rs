//! Options of TCP streams, listeners and unconnected sockets.

/// Implements the options of TCP sockets. Accepted connections have the options of their listener.
macro_rules! tcp_options {
    ($($type:ty),*) => {$(
        impl $type {
            /// Returns whether small messages are sent immediately instead of being coalesced (`TCP_NODELAY`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert!(socket.nodelay()?, "on by default");
            /// # }
            /// ```
            pub fn nodelay(&self) -> io::Result<bool> {
                self.is_on($crate::driver::SocketOption::NoDelay)
            }

            /// Sets whether small messages are sent immediately instead of being coalesced (`TCP_NODELAY`). The default
            /// is `true`.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_nodelay(false)?;
            /// assert!(!socket.nodelay()?);
            /// # }
            /// ```
            pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
                self.set($crate::driver::SocketOption::NoDelay, nodelay.into())
            }

            /// Returns whether the kernel probes an idle peer (`SO_KEEPALIVE`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert!(!socket.keepalive()?, "off by default");
            /// # }
            /// ```
            pub fn keepalive(&self) -> io::Result<bool> {
                self.is_on($crate::driver::SocketOption::KeepAlive)
            }

            /// Sets whether the kernel probes an idle peer (`SO_KEEPALIVE`).
            /// [`set_tcp_keepalive`](Self::set_tcp_keepalive) also sets the times.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_keepalive(true)?;
            /// assert!(socket.keepalive()?);
            /// # }
            /// ```
            pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
                self.set($crate::driver::SocketOption::KeepAlive, keepalive.into())
            }

            /// Returns the parameters of keep-alive probes (`TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`), which
            /// have values even if probes are disabled.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use std::time::Duration;
            /// # use anello::net::{TcpKeepalive, TcpSocket};
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_tcp_keepalive(&TcpKeepalive::new().with_interval(Duration::from_secs(5)))?;
            /// // The parameters that were not set have the values of the system.
            /// assert_eq!(socket.tcp_keepalive()?.interval(), Some(Duration::from_secs(5)));
            /// assert!(socket.tcp_keepalive()?.retries().is_some());
            /// # }
            /// ```
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
            ///
            /// ```
            /// # anello::example! {
            /// # use std::time::Duration;
            /// # use anello::net::{TcpKeepalive, TcpSocket};
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(60)))?;
            /// assert!(socket.keepalive()?);
            /// assert_eq!(socket.tcp_keepalive()?.time(), Some(Duration::from_secs(60)));
            /// # }
            /// ```
            pub fn set_tcp_keepalive(&self, keepalive: &super::options::TcpKeepalive) -> io::Result<()> {
                keepalive.to_options().into_iter().try_for_each(|(option, value)| self.set(option, value))
            }

            /// Returns how long sent data may stay unacknowledged before the kernel resets the connection
            /// (`TCP_USER_TIMEOUT`). `None` means the system's default, which depends on the number of
            /// retransmissions.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use std::time::Duration;
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert_eq!(socket.tcp_user_timeout()?, None);
            /// socket.set_tcp_user_timeout(Some(Duration::from_secs(20)))?;
            /// assert_eq!(socket.tcp_user_timeout()?, Some(Duration::from_secs(20)));
            /// # }
            /// ```
            pub fn tcp_user_timeout(&self) -> io::Result<Option<std::time::Duration>> {
                let milliseconds = self.unsigned($crate::driver::SocketOption::UserTimeout)?;
                Ok((milliseconds > 0).then(|| std::time::Duration::from_millis(milliseconds.into())))
            }

            /// Sets how long sent data may stay unacknowledged before the kernel resets the connection
            /// (`TCP_USER_TIMEOUT`), rounded up to milliseconds. `None` restores the system's default.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use std::time::Duration;
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_tcp_user_timeout(Some(Duration::from_micros(1_001)))?;
            /// assert_eq!(socket.tcp_user_timeout()?, Some(Duration::from_millis(2)));
            /// # }
            /// ```
            pub fn set_tcp_user_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
                self.set($crate::driver::SocketOption::UserTimeout, timeout.map_or(0, super::options::milliseconds))
            }

            /// Returns how the kernel closes the connection (`SO_LINGER`). See [`set_linger`](Self::set_linger).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert_eq!(socket.linger()?, None);
            /// # }
            /// ```
            pub fn linger(&self) -> io::Result<Option<std::time::Duration>> {
                let seconds = self.option($crate::driver::SocketOption::Linger)?;
                Ok((seconds >= 0).then(|| super::options::from_seconds(seconds)))
            }

            /// Sets how the kernel closes the connection (`SO_LINGER`). With a duration of zero, the kernel resets the
            /// connection and discards unsent bytes. A longer duration, rounded up to seconds, lets `close(2)` wait until
            /// the peer has acknowledged all bytes. This has an effect only in types of the standard library, into which
            /// a stream is converted: dropping a stream never blocks its worker, and the kernel sends the bytes
            /// afterwards. To wait for the peer, use an acknowledgement by the application.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use std::time::Duration;
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// // The peer of a dropped connection gets a reset.
            /// socket.set_linger(Some(Duration::ZERO))?;
            /// assert_eq!(socket.linger()?, Some(Duration::ZERO));
            /// # }
            /// ```
            pub fn set_linger(&self, linger: Option<std::time::Duration>) -> io::Result<()> {
                self.set($crate::driver::SocketOption::Linger, linger.map_or(-1, super::options::seconds))
            }

            /// Returns whether acknowledgements are sent immediately (`TCP_QUICKACK`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert!(socket.quickack()?);
            /// # }
            /// ```
            pub fn quickack(&self) -> io::Result<bool> {
                self.is_on($crate::driver::SocketOption::QuickAck)
            }

            /// Sets whether acknowledgements are sent immediately instead of with the next data (`TCP_QUICKACK`). The
            /// option is not permanent: the kernel changes it with the traffic.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_quickack(false)?;
            /// assert!(!socket.quickack()?);
            /// # }
            /// ```
            pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
                self.set($crate::driver::SocketOption::QuickAck, quickack.into())
            }

            /// Returns the maximum segment size in bytes (`TCP_MAXSEG`). Before the connection is established, this is
            /// the kernel's default of 536.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert_eq!(socket.mss()?, 536, "not connected");
            /// # }
            /// ```
            pub fn mss(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::MaxSegment)
            }

            /// Sets the maximum segment size in bytes (`TCP_MAXSEG`), which has an effect only before the connection is
            /// established.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`: `InvalidInput` if the value is not between 88 and 32,767.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_mss(1200)?;
            /// assert!(socket.set_mss(80).is_err(), "out of range");
            /// # }
            /// ```
            pub fn set_mss(&self, bytes: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::MaxSegment, super::options::saturating(bytes))
            }

            /// Returns the time to live of IPv4 packets (`IP_TTL`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_ttl(9)?;
            /// assert_eq!(socket.ttl()?, 9);
            /// # }
            /// ```
            pub fn ttl(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::TimeToLive)
            }

            /// Sets the time to live of IPv4 packets (`IP_TTL`), from 1 to 255.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert!(socket.set_ttl(0).is_err(), "out of range");
            /// socket.set_ttl(32)?;
            /// assert_eq!(socket.ttl()?, 32);
            /// # }
            /// ```
            pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::TimeToLive, super::options::saturating(ttl))
            }

            /// Returns the type of service of IPv4 packets (`IP_TOS`): the DSCP in the upper six bits, and ECN.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert_eq!(socket.tos_v4()?, 0);
            /// # }
            /// ```
            pub fn tos_v4(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::TypeOfService)
            }

            /// Sets the type of service of IPv4 packets (`IP_TOS`). On TCP sockets, the kernel ignores the two ECN
            /// bits.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// // Expedited forwarding (DSCP 46).
            /// socket.set_tos_v4(46 << 2)?;
            /// assert_eq!(socket.tos_v4()?, 0xb8);
            /// # }
            /// ```
            pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::TypeOfService, super::options::saturating(tos))
            }

            /// Returns the hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`, for example if this is an IPv4 socket.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v6()?;
            /// assert!((1..=255).contains(&socket.unicast_hops_v6()?));
            /// assert!(TcpSocket::new_v4()?.unicast_hops_v6().is_err());
            /// # }
            /// ```
            pub fn unicast_hops_v6(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::HopLimit)
            }

            /// Sets the hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`), from 1 to 255.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`, for example if this is an IPv4 socket.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v6()?;
            /// socket.set_unicast_hops_v6(32)?;
            /// assert_eq!(socket.unicast_hops_v6()?, 32);
            /// # }
            /// ```
            pub fn set_unicast_hops_v6(&self, hops: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::HopLimit, super::options::saturating(hops))
            }

            /// Returns the traffic class of IPv6 packets (`IPV6_TCLASS`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`, for example if this is an IPv4 socket.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v6()?;
            /// assert_eq!(socket.tclass_v6()?, 0);
            /// # }
            /// ```
            pub fn tclass_v6(&self) -> io::Result<u32> {
                self.unsigned($crate::driver::SocketOption::TrafficClass)
            }

            /// Sets the traffic class of IPv6 packets (`IPV6_TCLASS`). On TCP sockets, the kernel ignores the two ECN
            /// bits.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`, for example if this is an IPv4 socket.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v6()?;
            /// // Expedited forwarding (DSCP 46).
            /// socket.set_tclass_v6(46 << 2)?;
            /// assert_eq!(socket.tclass_v6()?, 0xb8);
            /// # }
            /// ```
            pub fn set_tclass_v6(&self, traffic_class: u32) -> io::Result<()> {
                self.set($crate::driver::SocketOption::TrafficClass, super::options::saturating(traffic_class))
            }

            /// Returns the size of the kernel's receive buffer in bytes (`SO_RCVBUF`), which is twice the size that was
            /// set.
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert!(socket.recv_buffer_size()? > 0);
            /// # }
            /// ```
            pub fn recv_buffer_size(&self) -> io::Result<usize> {
                Ok(self.unsigned($crate::driver::SocketOption::ReceiveBufferBytes)? as usize)
            }

            /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles the value). A
            /// fixed size disables the kernel's automatic tuning.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// socket.set_recv_buffer_size(20_000)?;
            /// assert_eq!(socket.recv_buffer_size()?, 40_000);
            /// # }
            /// ```
            pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
                self.set($crate::driver::SocketOption::ReceiveBufferBytes, super::options::saturating(bytes))
            }

            /// Returns the network interface to which the socket is bound (`SO_BINDTODEVICE`).
            ///
            /// # Errors
            /// Returns the error from `getsockopt(2)`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// assert_eq!(socket.device()?, None);
            /// # }
            /// ```
            pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
                self.access($crate::driver::Driver::device)
            }

            /// Binds the socket to a network interface, such as `b"eth0"` (`SO_BINDTODEVICE`), or removes the binding.
            ///
            /// # Errors
            /// Returns the error from `setsockopt(2)`: for example `ENODEV` if the interface does not exist, and
            /// `PermissionDenied` if the socket is already bound to an interface and the process lacks `CAP_NET_RAW`.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::TcpSocket;
            /// let socket = TcpSocket::new_v4()?;
            /// let error = socket.bind_device(Some(b"no-such-device")).unwrap_err();
            /// assert_eq!(error.raw_os_error(), Some(19)); // ENODEV
            /// socket.bind_device(None)?;
            /// # }
            /// ```
            pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
                self.access(|driver, target| driver.bind_device(target, interface))
            }
        }
    )*};
}

pub(super) use tcp_options;
