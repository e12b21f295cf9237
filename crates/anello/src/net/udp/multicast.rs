//! Multicast groups of UDP sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::socket::UdpSocket;
use crate::driver::SocketOption as Opt;

impl UdpSocket {
    /// Joins an IPv4 multicast group on the interface with this address (`IP_ADD_MEMBERSHIP`). The unspecified address
    /// selects the interface by the routing table.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if `group` is not a multicast address, there is no such
    /// interface, or the socket is already a member.
    ///
    /// ```
    /// # anello::example! {
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
    /// # }
    /// ```
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.set_membership_v4(group, interface, true)
    }

    /// Leaves an IPv4 multicast group (`IP_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if the socket is not a member.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use std::net::Ipv4Addr;
    /// let (group, interface) = (Ipv4Addr::new(239, 1, 2, 4), Ipv4Addr::LOCALHOST);
    /// let socket = UdpSocket::bind("0.0.0.0:0")?;
    /// socket.join_multicast_v4(group, interface)?;
    /// socket.leave_multicast_v4(group, interface)?;
    /// # }
    /// ```
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.set_membership_v4(group, interface, false)
    }

    /// Joins an IPv6 multicast group on the interface with this index (`IPV6_ADD_MEMBERSHIP`). 0 selects the interface
    /// by the routing table.
    ///
    /// # Errors
    /// See [`join_multicast_v4`](Self::join_multicast_v4). Fails on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::]:0")?;
    /// // A group whose scope is this machine, on the loopback interface.
    /// socket.join_multicast_v6(&"ff01::1:2".parse().unwrap(), 1)?;
    /// # }
    /// ```
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface_index: u32) -> io::Result<()> {
        self.socket.set_membership_v6(*group, interface_index, true)
    }

    /// Leaves an IPv6 multicast group (`IPV6_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if the socket is not a member.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let group = "ff01::1:3".parse().unwrap();
    /// let socket = UdpSocket::bind("[::]:0")?;
    /// socket.join_multicast_v6(&group, 1)?;
    /// socket.leave_multicast_v6(&group, 1)?;
    /// # }
    /// ```
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface_index: u32) -> io::Result<()> {
        self.socket.set_membership_v6(*group, interface_index, false)
    }

    /// Returns whether sockets on this machine receive the IPv4 multicast datagrams that this socket sends
    /// (`IP_MULTICAST_LOOP`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(socket.multicast_loop_v4()?);
    /// # }
    /// ```
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.is_on(Opt::MulticastLoopV4)
    }

    /// Sets whether sockets on this machine receive the IPv4 multicast datagrams that this socket sends
    /// (`IP_MULTICAST_LOOP`). The default is `true`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_multicast_loop_v4(false)?;
    /// assert!(!socket.multicast_loop_v4()?);
    /// # }
    /// ```
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.set(Opt::MulticastLoopV4, on.into())
    }

    /// Returns whether sockets on this machine receive the IPv6 multicast datagrams that this socket sends
    /// (`IPV6_MULTICAST_LOOP`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// assert!(socket.multicast_loop_v6()?);
    /// # }
    /// ```
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.is_on(Opt::MulticastLoopV6)
    }

    /// Sets whether sockets on this machine receive the IPv6 multicast datagrams that this socket sends
    /// (`IPV6_MULTICAST_LOOP`). The default is `true`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// socket.set_multicast_loop_v6(false)?;
    /// assert!(!socket.multicast_loop_v6()?);
    /// # }
    /// ```
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.set(Opt::MulticastLoopV6, on.into())
    }

    /// Returns the time to live of IPv4 multicast datagrams (`IP_MULTICAST_TTL`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert_eq!(socket.multicast_ttl_v4()?, 1);
    /// # }
    /// ```
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.option(Opt::MulticastTtlV4)
    }

    /// Sets the time to live of IPv4 multicast datagrams (`IP_MULTICAST_TTL`). With the default, 1, they do not leave
    /// the local network.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_multicast_ttl_v4(4)?;
    /// assert_eq!(socket.multicast_ttl_v4()?, 4);
    /// # }
    /// ```
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.set(Opt::MulticastTtlV4, ttl)
    }

    /// Returns the hop limit of IPv6 multicast datagrams (`IPV6_MULTICAST_HOPS`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// assert_eq!(socket.multicast_hops_v6()?, 1);
    /// # }
    /// ```
    pub fn multicast_hops_v6(&self) -> io::Result<u32> {
        self.option(Opt::MulticastHopsV6)
    }

    /// Sets the hop limit of IPv6 multicast datagrams (`IPV6_MULTICAST_HOPS`). With the default, 1, they do not leave
    /// the local network.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// socket.set_multicast_hops_v6(4)?;
    /// assert_eq!(socket.multicast_hops_v6()?, 4);
    /// # }
    /// ```
    pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        self.set(Opt::MulticastHopsV6, hops)
    }

    /// Returns the address of the interface through which IPv4 multicast datagrams are sent (`IP_MULTICAST_IF`). It is
    /// unspecified if the interface is selected by the routing table.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(socket.multicast_interface_v4()?.is_unspecified());
    /// # }
    /// ```
    pub fn multicast_interface_v4(&self) -> io::Result<Ipv4Addr> {
        Ok(self.socket.option(Opt::MulticastInterfaceV4)?.to_ne_bytes().into())
    }

    /// Sets the interface through which IPv4 multicast datagrams are sent, by its address (`IP_MULTICAST_IF`). The
    /// unspecified address selects the interface by the routing table.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, for example if there is no such interface.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let interface = std::net::Ipv4Addr::LOCALHOST;
    /// socket.set_multicast_interface_v4(interface)?;
    /// assert_eq!(socket.multicast_interface_v4()?, interface);
    /// # }
    /// ```
    pub fn set_multicast_interface_v4(&self, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.set_option(Opt::MulticastInterfaceV4, i32::from_ne_bytes(interface.octets()))
    }

    /// Returns the index of the interface through which IPv6 multicast datagrams are sent (`IPV6_MULTICAST_IF`), or 0
    /// if it is selected by the routing table.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// assert_eq!(socket.multicast_interface_v6()?, 0);
    /// # }
    /// ```
    pub fn multicast_interface_v6(&self) -> io::Result<u32> {
        self.option(Opt::MulticastInterfaceV6)
    }

    /// Sets the interface through which IPv6 multicast datagrams are sent, by its index (`IPV6_MULTICAST_IF`). 0
    /// selects the interface by the routing table.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`; always on IPv4 sockets.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// socket.set_multicast_interface_v6(1)?;
    /// assert_eq!(socket.multicast_interface_v6()?, 1);
    /// # }
    /// ```
    pub fn set_multicast_interface_v6(&self, interface_index: u32) -> io::Result<()> {
        self.set(Opt::MulticastInterfaceV6, interface_index)
    }
}
