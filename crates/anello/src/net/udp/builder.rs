//! Options that are set before a UDP socket is bound.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use super::options::{by_family, set_for_both_families};
use super::socket::UdpSocket;
use crate::driver::{DatagramSocket, SocketOption, with_context};
use crate::executor::{Shared, current};
use crate::net::resolve::ToSocketAddrs;

/// Builder for a [`UdpSocket`] with options; see [`UdpSocket::builder`].
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::net::UdpSocket;
///
/// // A socket for a QUIC server: reports the destination, congestion notifications and merged datagrams.
/// let socket = UdpSocket::builder()
///     .reuse_port(true)
///     .recv_buffer_size(2 << 20)
///     .pktinfo(true)
///     .recv_ecn(true)
///     .gro(true)
///     .bind("127.0.0.1:0")?;
/// assert!(socket.local_addr()?.ip().is_loopback());
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct UdpSocketBuilder {
    reuse_address: Option<bool>,
    reuse_port: Option<bool>,
    receive_buffer_bytes: Option<usize>,
    send_buffer_bytes: Option<usize>,
    only_v6: Option<bool>,
    broadcast: Option<bool>,
    ttl: Option<u32>,
    unicast_hops_v6: Option<u32>,
    tos_v4: Option<u32>,
    tclass_v6: Option<u32>,
    gro: Option<bool>,
    packet_info: Option<bool>,
    receive_ecn: Option<bool>,
    device: Option<Vec<u8>>,
}

impl UdpSocketBuilder {
    /// Sets `SO_REUSEADDR`: several sockets that set it can be bound to the same address. Datagrams to a multicast
    /// group are delivered to all of them, other datagrams to one. The default is `false`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let one = UdpSocket::builder().reuse_address(true).bind("127.0.0.1:0")?;
    /// let other = UdpSocket::builder().reuse_address(true).bind(one.local_addr()?)?;
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn reuse_address(mut self, on: bool) -> Self {
        self.reuse_address = Some(on);
        self
    }

    /// Sets `SO_REUSEPORT`: several sockets of the same user share the address, and the kernel distributes the
    /// datagrams by a hash of the addresses. Use one socket per worker. The default is `false`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let one = UdpSocket::builder().reuse_port(true).bind("127.0.0.1:0")?;
    /// let other = UdpSocket::builder().reuse_port(true).bind(one.local_addr()?)?;
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = Some(on);
        self
    }

    /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles the value, and caps it at
    /// `net.core.rmem_max`). Datagrams that do not fit are discarded. The default is `net.core.rmem_default`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().recv_buffer_size(20_000).bind("127.0.0.1:0")?;
    /// assert_eq!(socket.recv_buffer_size()?, 40_000);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn recv_buffer_size(mut self, bytes: usize) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles the value, and caps it at
    /// `net.core.wmem_max`). The default is `net.core.wmem_default`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().send_buffer_size(20_000).bind("127.0.0.1:0")?;
    /// assert_eq!(socket.send_buffer_size()?, 40_000);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn send_buffer_size(mut self, bytes: usize) -> Self {
        self.send_buffer_bytes = Some(bytes);
        self
    }

    /// Sets whether an IPv6 socket is restricted to IPv6 (`IPV6_V6ONLY`). Otherwise, a socket that is bound to the
    /// unspecified address also exchanges datagrams with IPv4 addresses, in the form `::ffff:192.0.2.1`. Has no effect
    /// on IPv4 sockets. The default is `net.ipv6.bindv6only`, which is usually `false`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().only_v6(true).bind("[::]:0")?;
    /// assert!(socket.only_v6()?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn only_v6(mut self, on: bool) -> Self {
        self.only_v6 = Some(on);
        self
    }

    /// Sets whether datagrams can be sent to broadcast addresses (`SO_BROADCAST`). The default is `false`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().broadcast(true).bind("0.0.0.0:0")?;
    /// assert!(socket.broadcast()?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn broadcast(mut self, on: bool) -> Self {
        self.broadcast = Some(on);
        self
    }

    /// Sets the time to live of IPv4 packets (`IP_TTL`). The default is `net.ipv4.ip_default_ttl`, which is usually 64.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().ttl(9).bind("127.0.0.1:0")?;
    /// assert_eq!(socket.ttl()?, 9);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn ttl(mut self, ttl: u32) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`). Has no effect on IPv4 sockets. The default is
    /// usually 64.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().unicast_hops_v6(9).bind("[::1]:0")?;
    /// assert_eq!(socket.unicast_hops_v6()?, 9);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn unicast_hops_v6(mut self, hops: u32) -> Self {
        self.unicast_hops_v6 = Some(hops);
        self
    }

    /// Sets the type of service of IPv4 packets (`IP_TOS`): the DSCP in the upper six bits, and the ECN codepoint in
    /// the lower two. The default is 0.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().tos_v4(0xb8).bind("127.0.0.1:0")?;
    /// assert_eq!(socket.tos_v4()?, 0xb8);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn tos_v4(mut self, tos: u32) -> Self {
        self.tos_v4 = Some(tos);
        self
    }

    /// Sets the traffic class of IPv6 packets (`IPV6_TCLASS`): the DSCP in the upper six bits, and the ECN codepoint in
    /// the lower two. Has no effect on IPv4 sockets. The default is 0.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().tclass_v6(0xb8).bind("[::1]:0")?;
    /// assert_eq!(socket.tclass_v6()?, 0xb8);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn tclass_v6(mut self, traffic_class: u32) -> Self {
        self.tclass_v6 = Some(traffic_class);
        self
    }

    /// Sets whether the kernel merges datagrams of the same size from the same sender into one buffer (generic receive
    /// offload, `UDP_GRO`, Linux 5.0), which reduces the cost of each. The default is `false`.
    ///
    /// Receive with [`recv_message`](UdpSocket::recv_message) or [`recv_batch`](UdpSocket::recv_batch), which report
    /// the size, into buffers of 65,535 bytes; a shorter buffer loses datagrams.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::OutgoingDatagram;
    /// let socket = UdpSocket::builder().gro(true).bind("127.0.0.1:0")?;
    /// let payload = [7; 3000];
    /// let datagram = OutgoingDatagram::new(&payload, socket.local_addr()?).with_segment_size(1000);
    /// socket.send_message(&datagram).await?;
    /// let mut buffer = vec![0; 65_535];
    /// let info = socket.recv_message(&mut buffer).await?;
    /// for datagram in info.segments(&buffer) {
    ///     assert_eq!(datagram.len(), 1000);
    /// }
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn gro(mut self, on: bool) -> Self {
        self.gro = Some(on);
        self
    }

    /// Sets whether the destination address and the interface of received datagrams are reported (`IP_PKTINFO`,
    /// `IPV6_RECVPKTINFO`). The default is `false`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().pktinfo(true).bind("0.0.0.0:0")?;
    /// socket.send_to(b"ciao", ("127.0.0.2", socket.local_addr()?.port())).await?;
    /// let info = socket.recv_message(&mut [0; 16]).await?;
    /// assert_eq!(info.destination, Some([127, 0, 0, 2].into()));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn pktinfo(mut self, on: bool) -> Self {
        self.packet_info = Some(on);
        self
    }

    /// Sets whether the congestion notification of received datagrams is reported (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
    /// The default is `false`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::Ecn;
    /// let socket = UdpSocket::builder().recv_ecn(true).bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let info = socket.recv_message(&mut [0; 16]).await?;
    /// assert_eq!(info.ecn, Some(Ecn::NotEct));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn recv_ecn(mut self, on: bool) -> Self {
        self.receive_ecn = Some(on);
        self
    }

    /// Restricts the socket to an interface, such as `eth0` (`SO_BINDTODEVICE`; needs no privileges since Linux 5.7).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let error = UdpSocket::builder().bind_device("no-such-device").bind("127.0.0.1:0").unwrap_err();
    /// assert!(error.to_string().starts_with("cannot bind 127.0.0.1:0"));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn bind_device(mut self, interface: impl AsRef<[u8]>) -> Self {
        self.device = Some(interface.as_ref().to_vec());
        self
    }

    /// Binds to the first address that can be bound (`socket(2)`, `bind(2)`). To bind to a host name, use
    /// [`bind_host`](Self::bind_host), which resolves it without blocking.
    ///
    /// # Errors
    /// Returns the error of the last address if no address can be bound, for example because it is in use or not local,
    /// or an option cannot be set. Returns `InvalidInput` for a host name. The error contains the address.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().reuse_port(true).bind("127.0.0.1:0")?;
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let shared = current();
        self.bind_to_first(&shared, address.to_host()?.without_resolution()?)
    }

    /// Binds like [`bind`](Self::bind), and also accepts a host name, which is resolved on a thread in the blocking
    /// pool.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved or no address can be bound.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::builder().ttl(1).bind_host("localhost:0").await?;
    /// assert_eq!(socket.ttl()?, 1);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn bind_host(&self, host: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let shared = current();
        self.bind_to_first(&shared, host.to_host()?.resolve().await?)
    }

    fn bind_to_first(&self, shared: &Rc<Shared>, addresses: Vec<SocketAddr>) -> io::Result<UdpSocket> {
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "host has no addresses");
        for address in addresses {
            let opened = shared.driver.borrow_mut().open_udp(address.is_ipv6());
            let bound = opened.and_then(|socket| {
                self.configure(&socket)?;
                socket.bind(address)?;
                UdpSocket::new(Rc::clone(shared), socket)
            });
            match bound {
                Ok(socket) => return Ok(socket),
                Err(error) => failed = with_context(format_args!("cannot bind {address}"), error),
            }
        }
        Err(failed)
    }

    fn configure(&self, socket: &DatagramSocket) -> io::Result<()> {
        use SocketOption as Opt;
        let is_ipv6 = |_: &u32| socket.is_ipv6();
        let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let bytes = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        let on = i32::from;
        let options = [
            (Opt::ReuseAddress, self.reuse_address.map(on)),
            (Opt::ReusePort, self.reuse_port.map(on)),
            (Opt::ReceiveBufferBytes, self.receive_buffer_bytes.map(bytes)),
            (Opt::SendBufferBytes, self.send_buffer_bytes.map(bytes)),
            (Opt::OnlyV6, self.only_v6.filter(|_| socket.is_ipv6()).map(on)),
            (Opt::Broadcast, self.broadcast.map(on)),
            (Opt::TimeToLive, self.ttl.map(number)),
            (Opt::HopLimit, self.unicast_hops_v6.filter(is_ipv6).map(number)),
            (Opt::TypeOfService, self.tos_v4.map(number)),
            (Opt::TrafficClass, self.tclass_v6.filter(is_ipv6).map(number)),
            (Opt::Gro, self.gro.map(on)),
            (by_family(socket, Opt::PacketInfoV4, Opt::PacketInfoV6), self.packet_info.map(on)),
        ];
        for (option, value) in options {
            if let Some(value) = value {
                socket.set_option(option, value)?;
            }
        }
        if let Some(receive) = self.receive_ecn {
            set_for_both_families(socket, Opt::ReceiveTypeOfService, Opt::ReceiveTrafficClass, on(receive))?;
        }
        match &self.device {
            Some(interface) => socket.bind_device(Some(interface)),
            None => Ok(()),
        }
    }
}

impl UdpSocket {
    /// Binds to an address with the default options (`socket(2)`, `bind(2)`). Port 0 selects a free port.
    ///
    /// See [`UdpSocketBuilder::bind`] for errors and panics.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind(address)
    }

    /// Binds like [`bind`](Self::bind), and also accepts a host name, which is resolved on a thread in the blocking
    /// pool.
    ///
    /// See [`UdpSocketBuilder::bind_host`] for errors and panics.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind_host("localhost:0").await?;
    /// assert!(socket.local_addr()?.ip().is_loopback());
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn bind_host(host: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind_host(host).await
    }

    /// Returns a builder with the default options.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::builder().recv_buffer_size(1 << 20).bind("127.0.0.1:0")?;
    /// assert!(socket.recv_buffer_size()? > 0);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn builder() -> UdpSocketBuilder {
        UdpSocketBuilder::default()
    }
}
