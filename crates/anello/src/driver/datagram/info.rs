//! Datagrams and their metadata, independent of the kernel.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::slice::Chunks;

/// Largest payload of a UDP datagram in bytes, and of a group of datagrams that the kernel splits or merges.
pub(crate) const MAX_UDP_PAYLOAD_BYTES: usize = 65_535 - 8;

/// Explicit congestion notification of a packet: the two least significant bits of the traffic class (RFC 3168).
///
/// ```
/// use anello::net::Ecn;
///
/// assert_eq!(Ecn::from_bits(0b1011_1010), Ecn::Ect0);
/// assert_eq!(Ecn::Ce.bits(), 0b11);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not support ECN.
    #[default]
    NotEct = 0b00,
    /// ECN-capable transport, codepoint 1 (used by L4S).
    Ect1 = 0b01,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 0b10,
    /// Congestion experienced: a router would otherwise have dropped the packet.
    Ce = 0b11,
}

impl Ecn {
    /// Returns the codepoint in the two least significant bits of a traffic class. The other bits are ignored.
    ///
    /// ```
    /// use anello::net::Ecn;
    /// assert_eq!(Ecn::from_bits(0b1111_1111), Ecn::Ce);
    /// ```
    #[inline]
    pub fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the two bits of the codepoint.
    ///
    /// ```
    /// # use anello::net::Ecn;
    /// assert_eq!(Ecn::Ect0.bits(), 0b10);
    /// // Traffic class with DSCP 46.
    /// assert_eq!(46 << 2 | Ecn::Ect1.bits(), 0b1011_1001);
    /// ```
    #[inline]
    pub fn bits(self) -> u8 {
        self as u8
    }
}

/// Metadata of a received datagram, or of several datagrams that the kernel has merged
/// ([`UdpSocket::set_gro`](crate::net::UdpSocket::set_gro)).
///
/// The optional fields are reported only if the socket requests them.
///
/// ```
/// # anello::example! {
/// use anello::net::UdpSocket;
///
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// let peer = UdpSocket::bind("127.0.0.1:0")?;
/// peer.send_to(b"ciao", socket.local_addr()?).await?;
/// let mut buffer = [0; 2];
/// let info = socket.recv_message(&mut buffer).await?;
/// assert_eq!((info.source, info.bytes, info.is_truncated), (peer.local_addr()?, 2, true));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramInfo {
    /// Address of the sender.
    pub source: SocketAddr,
    /// Number of bytes in the buffer.
    pub bytes: usize,
    /// True if the datagram was longer than the buffer. The kernel has discarded the rest.
    pub is_truncated: bool,
    /// Destination address in the IP header. It is a multicast or broadcast address if the datagram was sent to one.
    /// Reported with [`set_pktinfo`](crate::net::UdpSocket::set_pktinfo).
    pub destination: Option<IpAddr>,
    /// Index of the interface on which the datagram arrived. Reported with
    /// [`set_pktinfo`](crate::net::UdpSocket::set_pktinfo).
    pub interface_index: Option<u32>,
    /// Congestion notification. Reported with [`set_recv_ecn`](crate::net::UdpSocket::set_recv_ecn).
    pub ecn: Option<Ecn>,
    /// Size of the datagrams that the kernel has merged, in bytes. Only the last one may be shorter. `None` if the
    /// buffer contains a single datagram. Reported with [`set_gro`](crate::net::UdpSocket::set_gro).
    pub segment_size: Option<usize>,
    /// Local address for responses. Differs from `destination` if that is a multicast or broadcast address.
    pub(in crate::driver) reply_source: Option<IpAddr>,
}

impl DatagramInfo {
    pub(in crate::driver) fn new(source: SocketAddr, bytes: usize) -> Self {
        Self {
            source,
            bytes,
            is_truncated: false,
            destination: None,
            interface_index: None,
            ecn: None,
            segment_size: None,
            reply_source: None,
        }
    }

    /// Splits the received bytes into the datagrams that the sender has sent. `buffer` is the buffer that was passed to
    /// the receiving call. An empty datagram yields no item.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_gro(true)?;
    /// let peer = UdpSocket::bind("127.0.0.1:0")?;
    /// peer.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut buffer = vec![0; 65_535];
    /// let info = socket.recv_message(&mut buffer).await?;
    /// assert!(info.segments(&buffer).eq([b"ciao"]));
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if `buffer` is shorter than [`bytes`](Self::bytes).
    #[track_caller]
    pub fn segments<'a>(&self, buffer: &'a [u8]) -> Chunks<'a, u8> {
        buffer[..self.bytes].chunks(self.segment_size.unwrap_or(self.bytes).max(1))
    }
}

/// Datagram to be sent, which borrows its payload, with optional control data for this datagram only.
///
/// The payload is borrowed, because the kernel copies it during the system call; no send is in flight afterwards.
///
/// ```
/// # anello::example! {
/// use anello::net::{Ecn, OutgoingDatagram, UdpSocket};
///
/// let server = UdpSocket::bind("127.0.0.1:0")?;
/// server.set_recv_ecn(true)?;
/// let client = UdpSocket::bind("127.0.0.1:0")?;
/// let datagram = OutgoingDatagram::new(b"ciao", server.local_addr()?).with_ecn(Ecn::Ect0);
/// client.send_message(&datagram).await?;
/// let mut buffer = [0; 16];
/// let info = server.recv_message(&mut buffer).await?;
/// assert_eq!((&buffer[..info.bytes], info.ecn), (&b"ciao"[..], Some(Ecn::Ect0)));
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OutgoingDatagram<'a> {
    pub(in crate::driver) payload: &'a [u8],
    pub(in crate::driver) destination: Option<SocketAddr>,
    pub(in crate::driver) source: Option<IpAddr>,
    pub(in crate::driver) interface_index: u32,
    pub(in crate::driver) ecn: Option<Ecn>,
    /// Zero if the payload is one datagram.
    pub(in crate::driver) segment_size: u16,
}

impl<'a> OutgoingDatagram<'a> {
    /// Creates a datagram for a destination.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{OutgoingDatagram, UdpSocket};
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let datagram = OutgoingDatagram::new(b"ciao", socket.local_addr()?);
    /// socket.send_message(&datagram).await?;
    /// assert_eq!(socket.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    #[inline]
    pub fn new(payload: &'a [u8], destination: SocketAddr) -> Self {
        Self { destination: Some(destination), ..Self::to_peer(payload) }
    }

    /// Creates a datagram for the peer of a connected socket.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{OutgoingDatagram, UdpSocket};
    ///
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// one.connect(other.local_addr()?).await?;
    /// let datagrams = ["uno", "due"].map(|text| OutgoingDatagram::to_peer(text.as_bytes()));
    /// assert_eq!(one.send_batch(&datagrams).await?, 2);
    /// # }
    /// ```
    #[inline]
    pub fn to_peer(payload: &'a [u8]) -> Self {
        Self { payload, destination: None, source: None, interface_index: 0, ecn: None, segment_size: 0 }
    }

    /// Sets the source address (`IP_PKTINFO`, `IPV6_PKTINFO`). It must be an address of this machine, of the same
    /// family as the destination. A server that is bound to the unspecified address responds from the address to which
    /// the request was sent: [`DatagramInfo::destination`].
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::OutgoingDatagram;
    /// let socket = UdpSocket::bind("0.0.0.0:0")?;
    /// let to = ([127, 0, 0, 1], socket.local_addr()?.port()).into();
    /// let datagram = OutgoingDatagram::new(b"ciao", to).with_source([127, 0, 0, 7].into());
    /// socket.send_message(&datagram).await?;
    /// let (_, sender) = socket.recv_from(&mut [0; 16]).await?;
    /// assert_eq!(sender.ip().to_string(), "127.0.0.7");
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn with_source(mut self, source: IpAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the index of the interface through which the datagram is sent (`IP_PKTINFO`, `IPV6_PKTINFO`). 0 selects the
    /// interface by the routing table.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::OutgoingDatagram;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// // The loopback interface.
    /// let datagram = OutgoingDatagram::new(b"ciao", socket.local_addr()?).with_interface_index(1);
    /// socket.send_message(&datagram).await?;
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn with_interface_index(mut self, index: u32) -> Self {
        self.interface_index = index;
        self
    }

    /// Sets the congestion notification (`IP_TOS`, `IPV6_TCLASS`). The other bits of the traffic class are zero in this
    /// datagram.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{Ecn, OutgoingDatagram, UdpSocket};
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_recv_ecn(true)?;
    /// let datagram = OutgoingDatagram::new(b"ciao", socket.local_addr()?).with_ecn(Ecn::Ect1);
    /// socket.send_message(&datagram).await?;
    /// assert_eq!(socket.recv_message(&mut [0; 16]).await?.ecn, Some(Ecn::Ect1));
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn with_ecn(mut self, ecn: Ecn) -> Self {
        self.ecn = Some(ecn);
        self
    }

    /// Splits the payload into datagrams of `bytes` bytes; only the last one may be shorter. The kernel splits it,
    /// which costs less than separate datagrams (generic segmentation offload, `UDP_SEGMENT`, Linux 4.18).
    ///
    /// The payload can have up to 65,507 bytes on IPv4, and the kernel splits it into at most 64 datagrams (128 since
    /// Linux 6.9). If the kernel or the device cannot split the payload (`EIO`, `EINVAL`), the socket splits it, so
    /// that the result is the same. 0 sends the payload as one datagram.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{OutgoingDatagram, UdpSocket};
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let payload = [7; 2500];
    /// let datagram = OutgoingDatagram::new(&payload, socket.local_addr()?).with_segment_size(1000);
    /// socket.send_message(&datagram).await?;
    /// for bytes in [1000, 1000, 500] {
    ///     assert_eq!(socket.recv(&mut [0; 1500]).await?, bytes);
    /// }
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn with_segment_size(mut self, bytes: u16) -> Self {
        self.segment_size = bytes;
        self
    }

    /// Returns the payload.
    ///
    /// ```
    /// # use anello::net::OutgoingDatagram;
    /// let datagram = OutgoingDatagram::to_peer(b"ciao");
    /// assert_eq!(datagram.payload(), b"ciao");
    /// ```
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the destination, or `None` for the peer of a connected socket.
    ///
    /// ```
    /// # use anello::net::OutgoingDatagram;
    /// let peer = ([127, 0, 0, 1], 53).into();
    /// assert_eq!(OutgoingDatagram::new(b"ciao", peer).destination(), Some(peer));
    /// assert_eq!(OutgoingDatagram::to_peer(b"ciao").destination(), None);
    /// ```
    #[inline]
    pub fn destination(&self) -> Option<SocketAddr> {
        self.destination
    }

    /// Returns `true` if the source has the same family as the destination, or as the socket if there is none.
    #[inline]
    pub(in crate::driver) fn has_one_family(&self, is_ipv6: bool) -> bool {
        let Some(source) = self.source else { return true };
        match self.destination {
            Some(destination) => source.to_canonical().is_ipv4() == destination.ip().to_canonical().is_ipv4(),
            None => is_ipv6 || source.to_canonical().is_ipv4(),
        }
    }

    /// Returns the number of datagrams that are sent.
    #[inline]
    pub(crate) fn segment_count(&self) -> usize {
        match usize::from(self.segment_size) {
            0 => 1,
            size => self.payload.len().div_ceil(size).max(1),
        }
    }

    /// Returns one of the datagrams into which the payload is split.
    pub(crate) fn segment(&self, index: usize) -> Self {
        let size = usize::from(self.segment_size);
        let payload = match size {
            0 => self.payload,
            size => &self.payload[index * size..self.payload.len().min((index + 1) * size)],
        };
        Self { payload, segment_size: 0, ..*self }
    }
}

impl fmt::Debug for OutgoingDatagram<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OutgoingDatagram")
            .field("bytes", &self.payload.len())
            .field("destination", &self.destination)
            .field("source", &self.source)
            .field("interface_index", &self.interface_index)
            .field("ecn", &self.ecn)
            .field("segment_size", &self.segment_size)
            .finish()
    }
}
