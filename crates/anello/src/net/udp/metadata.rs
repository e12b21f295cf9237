//! Options that select the metadata of received datagrams. A socket that was not created by the builder, such as one
//! of the standard library, sets them here.

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
    /// let socket = UdpSocket::builder().gro(true).bind("127.0.0.1:0")?;
    /// assert!(socket.gro()?);
    /// # }
    /// ```
    pub fn gro(&self) -> io::Result<bool> {
        self.is_on(Opt::Gro)
    }

    /// Sets whether the kernel merges received datagrams of the same size from the same sender into one buffer
    /// (`UDP_GRO`, Linux 5.0). See [`UdpSocketBuilder::gro`](crate::net::UdpSocketBuilder::gro).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::from_std(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    /// socket.set_gro(true)?;
    /// assert!(socket.gro()?);
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
    /// let socket = UdpSocket::builder().pktinfo(true).bind("127.0.0.1:0")?;
    /// assert!(socket.pktinfo()?);
    /// # }
    /// ```
    pub fn pktinfo(&self) -> io::Result<bool> {
        self.is_on(self.family_option(Opt::PacketInfoV4, Opt::PacketInfoV6))
    }

    /// Sets whether the destination address and the interface of received datagrams are reported (`IP_PKTINFO`,
    /// `IPV6_RECVPKTINFO`). See [`UdpSocketBuilder::pktinfo`](crate::net::UdpSocketBuilder::pktinfo).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::from_std(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    /// socket.set_pktinfo(true)?;
    /// assert!(socket.pktinfo()?);
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
    /// let socket = UdpSocket::builder().recv_ecn(true).bind("127.0.0.1:0")?;
    /// assert!(socket.recv_ecn()?);
    /// # }
    /// ```
    pub fn recv_ecn(&self) -> io::Result<bool> {
        self.is_on(self.family_option(Opt::ReceiveTypeOfService, Opt::ReceiveTrafficClass))
    }

    /// Sets whether the congestion notification of received datagrams is reported (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
    /// See [`UdpSocketBuilder::recv_ecn`](crate::net::UdpSocketBuilder::recv_ecn).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::from_std(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    /// socket.set_recv_ecn(true)?;
    /// assert!(socket.recv_ecn()?);
    /// # }
    /// ```
    pub fn set_recv_ecn(&self, on: bool) -> io::Result<()> {
        set_for_both_families(&self.socket, Opt::ReceiveTypeOfService, Opt::ReceiveTrafficClass, on.into())
    }
}
