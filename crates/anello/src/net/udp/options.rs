//! Options of UDP sockets.

use std::io;

use super::socket::UdpSocket;
use crate::driver::{DatagramSocket, SocketOption as Opt};

/// Path MTU discovery: whether packets have the don't-fragment bit, and what happens to datagrams that exceed the path
/// MTU (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
///
/// ```
/// # anello::example! {
/// use anello::net::{MtuDiscovery, UdpSocket};
///
/// // A QUIC endpoint searches for the path MTU itself.
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// socket.set_mtu_discovery(MtuDiscovery::Probe)?;
/// assert_eq!(socket.mtu_discovery()?, Some(MtuDiscovery::Probe));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MtuDiscovery {
    /// Fragments long datagrams, and never sets the don't-fragment bit (`IP_PMTUDISC_DONT`).
    Never,
    /// Fragments long datagrams, and sets the don't-fragment bit on the others (`IP_PMTUDISC_WANT`).
    PerRoute,
    /// Always sets the don't-fragment bit. Long datagrams fail with `EMSGSIZE` (`IP_PMTUDISC_DO`).
    Always,
    /// Always sets the don't-fragment bit, and ignores the known path MTU; for applications that discover it
    /// themselves, such as QUIC (`IP_PMTUDISC_PROBE`).
    Probe,
}

/// Returns the option for the socket's family.
pub(super) fn by_family(socket: &DatagramSocket, v4: Opt, v6: Opt) -> Opt {
    if socket.is_ipv6() { v6 } else { v4 }
}

/// Sets an option for the socket's family. On an IPv6 socket, also sets the option for datagrams to and from IPv4
/// addresses.
pub(super) fn set_for_both_families(socket: &DatagramSocket, v4: Opt, v6: Opt, value: i32) -> io::Result<()> {
    if socket.is_ipv6() {
        socket.set_option(v6, value)?;
        // Fails if the kernel does not support IPv4 options on this socket, which then never exchanges IPv4 datagrams.
        socket.set_option(v4, value).ok();
        return Ok(());
    }
    socket.set_option(v4, value)
}

impl UdpSocket {
    pub(super) fn option(&self, option: Opt) -> io::Result<u32> {
        Ok(u32::try_from(self.socket.option(option)?).unwrap_or(0))
    }

    pub(super) fn is_on(&self, option: Opt) -> io::Result<bool> {
        Ok(self.socket.option(option)? != 0)
    }

    pub(super) fn set(&self, option: Opt, value: u32) -> io::Result<()> {
        self.socket.set_option(option, i32::try_from(value).unwrap_or(i32::MAX))
    }

    pub(super) fn family_option(&self, v4: Opt, v6: Opt) -> Opt {
        by_family(&self.socket, v4, v6)
    }

    /// Returns whether datagrams can be sent to broadcast addresses (`SO_BROADCAST`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(!socket.broadcast()?);
    /// # }
    /// ```
    pub fn broadcast(&self) -> io::Result<bool> {
        self.is_on(Opt::Broadcast)
    }

    /// Sets whether datagrams can be sent to broadcast addresses (`SO_BROADCAST`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("0.0.0.0:0")?;
    /// socket.set_broadcast(true)?;
    /// assert!(socket.broadcast()?);
    /// # }
    /// ```
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.set(Opt::Broadcast, on.into())
    }

    /// Returns the time to live of IPv4 packets (`IP_TTL`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_ttl(9)?;
    /// assert_eq!(socket.ttl()?, 9);
    /// # }
    /// ```
    pub fn ttl(&self) -> io::Result<u32> {
        self.option(Opt::TimeToLive)
    }

    /// Sets the time to live of IPv4 packets (`IP_TTL`). For IPv6, use
    /// [`set_unicast_hops_v6`](Self::set_unicast_hops_v6).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if the value is not between 1 and 255.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_ttl(9)?;
    /// assert_eq!(socket.ttl()?, 9);
    /// # }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set(Opt::TimeToLive, ttl)
    }

    /// Returns the hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// socket.set_unicast_hops_v6(9)?;
    /// assert_eq!(socket.unicast_hops_v6()?, 9);
    /// # }
    /// ```
    pub fn unicast_hops_v6(&self) -> io::Result<u32> {
        self.option(Opt::HopLimit)
    }

    /// Sets the hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`: always on IPv4 sockets, and if the
    /// value is not between 1 and 255.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// socket.set_unicast_hops_v6(9)?;
    /// assert_eq!(socket.unicast_hops_v6()?, 9);
    /// # }
    /// ```
    pub fn set_unicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        self.set(Opt::HopLimit, hops)
    }

    /// Returns the type of service of IPv4 packets (`IP_TOS`): DSCP and ECN.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_tos_v4(0xb8)?;
    /// assert_eq!(socket.tos_v4()?, 0xb8);
    /// # }
    /// ```
    pub fn tos_v4(&self) -> io::Result<u32> {
        self.option(Opt::TypeOfService)
    }

    /// Sets the type of service of IPv4 packets (`IP_TOS`): the DSCP in the upper six bits, and the ECN codepoint in
    /// the lower two.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_tos_v4(0xb8)?;
    /// assert_eq!(socket.tos_v4()?, 0xb8);
    /// # }
    /// ```
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        self.set(Opt::TypeOfService, tos)
    }

    /// Returns the traffic class of IPv6 packets (`IPV6_TCLASS`): DSCP and ECN.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// socket.set_tclass_v6(0xb8)?;
    /// assert_eq!(socket.tclass_v6()?, 0xb8);
    /// # }
    /// ```
    pub fn tclass_v6(&self) -> io::Result<u32> {
        self.option(Opt::TrafficClass)
    }

    /// Sets the traffic class of IPv6 packets (`IPV6_TCLASS`): the DSCP in the upper six bits, and the ECN codepoint in
    /// the lower two.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// socket.set_tclass_v6(0xb8)?;
    /// assert_eq!(socket.tclass_v6()?, 0xb8);
    /// # }
    /// ```
    pub fn set_tclass_v6(&self, traffic_class: u32) -> io::Result<()> {
        self.set(Opt::TrafficClass, traffic_class)
    }

    /// Returns whether other sockets can be bound to the same address if they also set this option (`SO_REUSEADDR`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().reuse_address(true).bind("127.0.0.1:0")?;
    /// assert!(socket.reuse_address()?);
    /// # }
    /// ```
    pub fn reuse_address(&self) -> io::Result<bool> {
        self.is_on(Opt::ReuseAddress)
    }

    /// Returns whether sockets of the same user can share the address (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().reuse_port(true).bind("127.0.0.1:0")?;
    /// assert!(socket.reuse_port()?);
    /// # }
    /// ```
    pub fn reuse_port(&self) -> io::Result<bool> {
        self.is_on(Opt::ReusePort)
    }

    /// Returns whether an IPv6 socket is restricted to IPv6 (`IPV6_V6ONLY`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().only_v6(true).bind("[::1]:0")?;
    /// assert!(socket.only_v6()?);
    /// # }
    /// ```
    pub fn only_v6(&self) -> io::Result<bool> {
        self.is_on(Opt::OnlyV6)
    }

    /// Returns the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; twice the value that was set).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(socket.recv_buffer_size()? > 0);
    /// # }
    /// ```
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        Ok(self.option(Opt::ReceiveBufferBytes)? as usize)
    }

    /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles the value, and caps it at
    /// `net.core.rmem_max`). Datagrams that do not fit are discarded. The default is `net.core.rmem_default`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_recv_buffer_size(20_000)?;
    /// assert_eq!(socket.recv_buffer_size()?, 40_000);
    /// # }
    /// ```
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.set(Opt::ReceiveBufferBytes, u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Returns the size of the kernel's send buffer in bytes (`SO_SNDBUF`; twice the value that was set).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(socket.send_buffer_size()? > 0);
    /// # }
    /// ```
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        Ok(self.option(Opt::SendBufferBytes)? as usize)
    }

    /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles the value, and caps it at
    /// `net.core.wmem_max`). The default is `net.core.wmem_default`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_send_buffer_size(20_000)?;
    /// assert_eq!(socket.send_buffer_size()?, 40_000);
    /// # }
    /// ```
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.set(Opt::SendBufferBytes, u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Returns the name of the interface to which the socket is restricted
    /// ([`UdpSocketBuilder::bind_device`](crate::net::UdpSocketBuilder::bind_device)).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert_eq!(socket.device()?, None);
    /// # }
    /// ```
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        self.socket.device()
    }

    // ---- Path MTU ------------------------------------------------------------------------------------------------

    /// Sets whether packets have the don't-fragment bit (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{MtuDiscovery, UdpSocket};
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_mtu_discovery(MtuDiscovery::Probe)?;
    /// assert_eq!(socket.mtu_discovery()?, Some(MtuDiscovery::Probe));
    /// # }
    /// ```
    pub fn set_mtu_discovery(&self, discovery: MtuDiscovery) -> io::Result<()> {
        // The values of the IPv6 option are the same.
        let value = match discovery {
            MtuDiscovery::Never => libc::IP_PMTUDISC_DONT,
            MtuDiscovery::PerRoute => libc::IP_PMTUDISC_WANT,
            MtuDiscovery::Always => libc::IP_PMTUDISC_DO,
            MtuDiscovery::Probe => libc::IP_PMTUDISC_PROBE,
        };
        set_for_both_families(&self.socket, Opt::MtuDiscoveryV4, Opt::MtuDiscoveryV6, value)
    }

    /// Returns whether packets have the don't-fragment bit, or `None` for a mode that this enumeration does not
    /// contain.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::MtuDiscovery;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_mtu_discovery(MtuDiscovery::Always)?;
    /// assert_eq!(socket.mtu_discovery()?, Some(MtuDiscovery::Always));
    /// # }
    /// ```
    pub fn mtu_discovery(&self) -> io::Result<Option<MtuDiscovery>> {
        let option = self.family_option(Opt::MtuDiscoveryV4, Opt::MtuDiscoveryV6);
        Ok(match self.socket.option(option)? {
            libc::IP_PMTUDISC_DONT => Some(MtuDiscovery::Never),
            libc::IP_PMTUDISC_WANT => Some(MtuDiscovery::PerRoute),
            libc::IP_PMTUDISC_DO => Some(MtuDiscovery::Always),
            libc::IP_PMTUDISC_PROBE => Some(MtuDiscovery::Probe),
            _ => None,
        })
    }

    /// Returns the known path MTU of a connected socket in bytes, including the IP and UDP headers (`IP_MTU`,
    /// `IPV6_MTU`).
    ///
    /// # Errors
    /// Returns `NotConnected` if the socket is not connected.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert_eq!(socket.mtu().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
    /// socket.connect("127.0.0.1:53").await?;
    /// assert!(socket.mtu()? >= 576);
    /// # }
    /// ```
    pub fn mtu(&self) -> io::Result<u32> {
        self.option(self.family_option(Opt::MtuV4, Opt::MtuV6))
    }
}
