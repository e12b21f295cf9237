//! Options of UDP sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::socket::UdpSocket;
use crate::driver::SocketOption as Opt;
use crate::driver::datagram_socket::DatagramSocket;

/// Path MTU discovery: whether packets have the don't-fragment bit, and what happens to datagrams that exceed the path
/// MTU (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
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
    fn option(&self, option: Opt) -> io::Result<u32> {
        Ok(u32::try_from(self.socket.option(option)?).unwrap_or(0))
    }

    fn is_on(&self, option: Opt) -> io::Result<bool> {
        Ok(self.socket.option(option)? != 0)
    }

    fn set(&self, option: Opt, value: u32) -> io::Result<()> {
        self.socket.set_option(option, i32::try_from(value).unwrap_or(i32::MAX))
    }

    fn family_option(&self, v4: Opt, v6: Opt) -> Opt {
        by_family(&self.socket, v4, v6)
    }

    /// Returns whether datagrams can be sent to broadcast addresses (`SO_BROADCAST`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn broadcast(&self) -> io::Result<bool> {
        self.is_on(Opt::Broadcast)
    }

    /// Sets whether datagrams can be sent to broadcast addresses (`SO_BROADCAST`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("0.0.0.0:0")?;
    /// socket.set_broadcast(true)?;
    /// assert!(socket.broadcast()?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.set(Opt::Broadcast, on.into())
    }

    /// Returns the time to live (`IP_TTL`), or the hop limit on IPv6 (`IPV6_UNICAST_HOPS`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn ttl(&self) -> io::Result<u32> {
        self.option(self.family_option(Opt::TimeToLive, Opt::HopLimit))
    }

    /// Sets the time to live (`IP_TTL`), or the hop limit on IPv6 (`IPV6_UNICAST_HOPS`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if the value is not between 1 and 255.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_ttl(9)?;
    /// assert_eq!(socket.ttl()?, 9);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set(self.family_option(Opt::TimeToLive, Opt::HopLimit), ttl)
    }

    /// Returns the traffic class: DSCP and ECN (`IP_TOS`, `IPV6_TCLASS`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn tos(&self) -> io::Result<u32> {
        self.option(self.family_option(Opt::TypeOfService, Opt::TrafficClass))
    }

    /// Sets the traffic class: DSCP and ECN (`IP_TOS`, `IPV6_TCLASS`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_tos(0xb8)?;
    /// assert_eq!(socket.tos()?, 0xb8);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        set_for_both_families(&self.socket, Opt::TypeOfService, Opt::TrafficClass, tos.cast_signed())
    }

    /// Returns whether an IPv6 socket is restricted to IPv6 (`IPV6_V6ONLY`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    pub fn only_v6(&self) -> io::Result<bool> {
        self.is_on(Opt::OnlyV6)
    }

    /// Returns the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; twice the value that was set).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        Ok(self.option(Opt::ReceiveBufferBytes)? as usize)
    }

    /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles the value, and caps it at
    /// `net.core.rmem_max`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.set(Opt::ReceiveBufferBytes, u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Returns the size of the kernel's send buffer in bytes (`SO_SNDBUF`; twice the value that was set).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        Ok(self.option(Opt::SendBufferBytes)? as usize)
    }

    /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles the value, and caps it at
    /// `net.core.wmem_max`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.set(Opt::SendBufferBytes, u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Restricts the socket to an interface, or removes the restriction (`SO_BINDTODEVICE`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if there is no interface with this name.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(socket.bind_device(Some(b"no-such-device")).is_err());
    /// assert_eq!(socket.device()?, None);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        self.socket.bind_device(interface)
    }

    /// Returns the name of the interface to which the socket is restricted (`SO_BINDTODEVICE`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
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
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::{MtuDiscovery, UdpSocket};
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_mtu_discovery(MtuDiscovery::Probe)?;
    /// assert_eq!(socket.mtu_discovery()?, Some(MtuDiscovery::Probe));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
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

    /// Returns whether packets have the don't-fragment bit. `None` is a mode that this enumeration does not contain.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
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
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert_eq!(socket.mtu().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
    /// socket.connect("127.0.0.1:53").await?;
    /// assert!(socket.mtu()? >= 576);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn mtu(&self) -> io::Result<u32> {
        self.option(self.family_option(Opt::MtuV4, Opt::MtuV6))
    }

    // ---- Multicast -----------------------------------------------------------------------------------------------

    /// Joins an IPv4 multicast group on the interface with this address (`IP_ADD_MEMBERSHIP`). The unspecified address
    /// selects the interface by the routing table.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if `group` is not a multicast address, there is no such
    /// interface, or the socket is already a member.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use std::net::Ipv4Addr;
    ///
    /// use anello::net::UdpSocket;
    ///
    /// let (group, interface) = (Ipv4Addr::new(239, 1, 2, 3), Ipv4Addr::LOCALHOST);
    /// let member = UdpSocket::bind("0.0.0.0:0")?;
    /// member.join_multicast_v4(group, interface)?;
    /// let sender = UdpSocket::bind("127.0.0.1:0")?;
    /// sender.set_multicast_interface_v4(interface)?;
    /// sender.send_to(b"ciao", (group, member.local_addr()?.port())).await?;
    /// assert_eq!(member.recv(&mut [0; 16]).await?, 4);
    /// member.leave_multicast_v4(group, interface)?;
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.set_membership_v4(group, interface, true)
    }

    /// Leaves an IPv4 multicast group (`IP_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if the socket is not a member.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.set_membership_v4(group, interface, false)
    }

    /// Joins an IPv6 multicast group on the interface with this index (`IPV6_ADD_MEMBERSHIP`). 0 selects the interface
    /// by the routing table.
    ///
    /// # Errors
    /// See [`join_multicast_v4`](Self::join_multicast_v4). Fails on IPv4 sockets.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface_index: u32) -> io::Result<()> {
        self.socket.set_membership_v6(*group, interface_index, true)
    }

    /// Leaves an IPv6 multicast group (`IPV6_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if the socket is not a member.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface_index: u32) -> io::Result<()> {
        self.socket.set_membership_v6(*group, interface_index, false)
    }

    /// Returns whether sockets on this machine receive the IPv4 multicast datagrams that this socket sends
    /// (`IP_MULTICAST_LOOP`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.is_on(Opt::MulticastLoopV4)
    }

    /// Sets whether sockets on this machine receive the IPv4 multicast datagrams that this socket sends
    /// (`IP_MULTICAST_LOOP`). The default is `true`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.set(Opt::MulticastLoopV4, on.into())
    }

    /// Returns whether sockets on this machine receive the IPv6 multicast datagrams that this socket sends
    /// (`IPV6_MULTICAST_LOOP`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.is_on(Opt::MulticastLoopV6)
    }

    /// Sets whether sockets on this machine receive the IPv6 multicast datagrams that this socket sends
    /// (`IPV6_MULTICAST_LOOP`). The default is `true`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`; always on IPv4 sockets.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.set(Opt::MulticastLoopV6, on.into())
    }

    /// Returns the time to live of IPv4 multicast datagrams (`IP_MULTICAST_TTL`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.option(Opt::MulticastTtlV4)
    }

    /// Sets the time to live of IPv4 multicast datagrams (`IP_MULTICAST_TTL`). With the default, 1, they do not leave the
    /// local network.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.set(Opt::MulticastTtlV4, ttl)
    }

    /// Returns the hop limit of IPv6 multicast datagrams (`IPV6_MULTICAST_HOPS`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    pub fn multicast_hops_v6(&self) -> io::Result<u32> {
        self.option(Opt::MulticastHopsV6)
    }

    /// Sets the hop limit of IPv6 multicast datagrams (`IPV6_MULTICAST_HOPS`). With the default, 1, they do not leave the
    /// local network.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`; always on IPv4 sockets.
    pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        self.set(Opt::MulticastHopsV6, hops)
    }

    /// Sets the interface through which IPv4 multicast datagrams are sent, by its address (`IP_MULTICAST_IF`). The
    /// unspecified address selects the interface by the routing table.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if there is no such interface.
    pub fn set_multicast_interface_v4(&self, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.set_multicast_interface_v4(interface)
    }

    /// Sets the interface through which IPv6 multicast datagrams are sent, by its index (`IPV6_MULTICAST_IF`). 0 selects
    /// the interface by the routing table.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`; always on IPv4 sockets.
    pub fn set_multicast_interface_v6(&self, interface_index: u32) -> io::Result<()> {
        self.set(Opt::MulticastInterfaceV6, interface_index)
    }
}
