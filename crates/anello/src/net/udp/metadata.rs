//! Options that select the metadata of received datagrams.

use std::io;

use super::options::set_for_both_families;
use super::socket::UdpSocket;
use crate::driver::SocketOption as Opt;

impl UdpSocket {
    /// Returns whether the kernel merges received datagrams (`UDP_GRO`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`: an error with the number `ENOPROTOOPT` before Linux 5.13.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(!socket.gro()?);
    /// # }
    /// ```
    pub fn gro(&self) -> io::Result<bool> {
        self.is_on(Opt::Gro)
    }

    /// Sets whether the kernel merges datagrams of the same size from the same sender into one buffer (generic receive
    /// offload, `UDP_GRO`, Linux 5.0), which reduces the cost of each. The default is `false`.
    ///
    /// Receive with [`recv_message`](UdpSocket::recv_message) or [`recv_batch`](UdpSocket::recv_batch), which report
    /// the size, into buffers of 65,535 bytes; a shorter buffer loses datagrams.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{OutgoingDatagram, UdpSocket};
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_gro(true)?;
    /// let payload = [7; 3000];
    /// let datagram = OutgoingDatagram::new(&payload, socket.local_addr()?).with_segment_size(1000);
    /// socket.send_message(&datagram).await?;
    /// let mut buffer = vec![0; 65_535];
    /// let info = socket.recv_message(&mut buffer).await?;
    /// for datagram in info.segments(&buffer) {
    ///     assert_eq!(datagram.len(), 1000);
    /// }
    /// # }
    /// ```
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        self.set(Opt::Gro, on.into())
    }

    /// Returns whether the destination address and the interface of received datagrams are reported (`IP_PKTINFO`,
    /// `IPV6_RECVPKTINFO`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(!socket.pktinfo()?);
    /// # }
    /// ```
    pub fn pktinfo(&self) -> io::Result<bool> {
        self.is_on(self.family_option(Opt::PacketInfoV4, Opt::PacketInfoV6))
    }

    /// Sets whether the destination address and the interface of received datagrams are reported (`IP_PKTINFO`,
    /// `IPV6_RECVPKTINFO`). The default is `false`. A datagram that has arrived before the option is set can lack the
    /// interface.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("0.0.0.0:0")?;
    /// socket.set_pktinfo(true)?;
    /// socket.send_to(b"ciao", ("127.0.0.2", socket.local_addr()?.port())).await?;
    /// let info = socket.recv_message(&mut [0; 16]).await?;
    /// assert_eq!(info.destination, Some([127, 0, 0, 2].into()));
    /// # }
    /// ```
    pub fn set_pktinfo(&self, on: bool) -> io::Result<()> {
        self.set(self.family_option(Opt::PacketInfoV4, Opt::PacketInfoV6), on.into())
    }

    /// Returns whether the congestion notification of received datagrams is reported (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert!(!socket.recv_ecn()?);
    /// # }
    /// ```
    pub fn recv_ecn(&self) -> io::Result<bool> {
        self.is_on(self.family_option(Opt::ReceiveTypeOfService, Opt::ReceiveTrafficClass))
    }

    /// Sets whether the congestion notification of received datagrams is reported (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
    /// The default is `false`.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{Ecn, UdpSocket};
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_recv_ecn(true)?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let info = socket.recv_message(&mut [0; 16]).await?;
    /// assert_eq!(info.ecn, Some(Ecn::NotEct));
    /// # }
    /// ```
    pub fn set_recv_ecn(&self, on: bool) -> io::Result<()> {
        set_for_both_families(&self.socket, Opt::ReceiveTypeOfService, Opt::ReceiveTrafficClass, on.into())
    }
}
