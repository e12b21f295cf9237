//! Datagram sockets of all kernels.
//!
//! Unlike a stream, a datagram socket belongs to its user. All calls on it are direct, non-blocking system calls, and
//! the driver only reports its readiness (see `source.rs`). A loop that receives and sends batches in this way takes as
//! many instructions as one on io_uring's multishot operations, and lends no memory to the kernel.

pub(super) mod unix;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::driver::datagram::info::{DatagramInfo, OutgoingDatagram};
use crate::driver::datagram::recv_batch::RecvBatch;
use crate::driver::sim::SimDatagramSocket;
use crate::driver::sockets::detached::no_descriptors;
use crate::driver::sockets::options::{self as socket_options, SocketOption};
use crate::driver::sockets::udp;

/// A UDP socket.
#[derive(Clone, Debug)]
pub(crate) struct DatagramSocket {
    pub(in crate::driver) inner: Inner<SimDatagramSocket>,
    is_ipv6: bool,
}

#[derive(Clone, Debug)]
pub(in crate::driver) enum Inner<S> {
    /// Shared with the driver, which may poll it until the next turn after its release.
    Os(Rc<OwnedFd>),
    Sim(S),
}

impl<S> Inner<S> {
    /// Returns the descriptor in blocking mode. It is duplicated if the driver still holds it.
    pub fn export(self) -> io::Result<OwnedFd> {
        match self {
            Self::Os(descriptor) => {
                SockRef::from(&*descriptor).set_nonblocking(false)?;
                Rc::try_unwrap(descriptor).or_else(|shared| shared.try_clone())
            }
            Self::Sim(_) => Err(no_descriptors()),
        }
    }
}

/// Makes the same call on either kind of socket.
macro_rules! on_socket {
    ($socket:expr, $os:ident => $system_call:expr, $sim:ident => $simulated:expr) => {
        match &$socket.inner {
            Inner::Os(descriptor) => {
                let $os = descriptor.as_fd();
                $system_call
            }
            #[cfg(feature = "sim")]
            Inner::Sim($sim) => $simulated,
            #[cfg(not(feature = "sim"))]
            Inner::Sim(never) => match *never {},
        }
    };
}

pub(in crate::driver) use on_socket;

impl DatagramSocket {
    /// Opens a socket of the operating system in non-blocking mode.
    pub(in crate::driver) fn open(is_ipv6: bool) -> io::Result<Self> {
        let domain = if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        Ok(Self { inner: Inner::Os(Rc::new(socket.into())), is_ipv6 })
    }

    #[cfg(feature = "sim")]
    pub(in crate::driver) fn simulated(socket: SimDatagramSocket, is_ipv6: bool) -> Self {
        Self { inner: Inner::Sim(socket), is_ipv6 }
    }

    /// Takes ownership of a socket of the operating system, and switches it to non-blocking mode.
    pub(in crate::driver) fn import(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = SockRef::from(&descriptor);
        let (domain, kind) = (socket.domain()?, socket.r#type()?);
        if kind != Type::DGRAM || !matches!(domain, Domain::IPV4 | Domain::IPV6) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "cannot import descriptor: not a UDP socket",
            ));
        }
        socket.set_nonblocking(true)?;
        Ok(Self { inner: Inner::Os(Rc::new(descriptor)), is_ipv6: domain == Domain::IPV6 })
    }

    /// Returns the descriptor, or an error on the simulated driver.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        on_socket!(self, os => Ok(os), _sim => Err(no_descriptors()))
    }

    /// Returns the descriptor in blocking mode. It is duplicated if the driver still holds it.
    pub fn export(self) -> io::Result<OwnedFd> {
        self.inner.export()
    }

    pub fn is_ipv6(&self) -> bool {
        self.is_ipv6
    }

    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        on_socket!(self, os => SockRef::from(&os).bind(&SockAddr::from(address)), sim => sim.bind(address))
    }

    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        on_socket!(self, os => Ok(rustix::net::connect(os, &peer)?), sim => sim.connect(peer))
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        on_socket!(self, os => ip_address(SockRef::from(&os).local_addr()?), sim => sim.local_addr())
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        on_socket!(self, os => ip_address(SockRef::from(&os).peer_addr()?), sim => sim.peer_addr())
    }

    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        on_socket!(self, os => SockRef::from(&os).take_error(), sim => sim.take_error())
    }

    // ---- Options -------------------------------------------------------------------------------------------------

    pub fn set_option(&self, option: SocketOption, value: i32) -> io::Result<()> {
        on_socket!(self, os => socket_options::set(&os, option, value), sim => sim.set_option(option, value))
    }

    pub fn option(&self, option: SocketOption) -> io::Result<i32> {
        on_socket!(self, os => socket_options::get(&os, option), sim => sim.option(option))
    }

    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        on_socket!(self, os => SockRef::from(&os).bind_device(interface), sim => sim.bind_device(interface))
    }

    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        on_socket!(self, os => SockRef::from(&os).device(), sim => sim.device())
    }

    /// Joins or leaves a group. `interface` is the address of an interface, or unspecified.
    pub fn set_membership_v4(&self, group: Ipv4Addr, interface: Ipv4Addr, is_member: bool) -> io::Result<()> {
        on_socket!(
            self,
            os => match is_member {
                true => SockRef::from(&os).join_multicast_v4(&group, &interface),
                false => SockRef::from(&os).leave_multicast_v4(&group, &interface),
            },
            sim => sim.set_membership(group.into(), is_member)
        )
    }

    pub fn set_membership_v6(
        &self,
        group: Ipv6Addr,
        interface_index: u32,
        is_member: bool,
    ) -> io::Result<()> {
        on_socket!(
            self,
            os => match is_member {
                true => SockRef::from(&os).join_multicast_v6(&group, interface_index),
                false => SockRef::from(&os).leave_multicast_v6(&group, interface_index),
            },
            sim => sim.set_membership(group.into(), is_member)
        )
    }

    // ---- Receiving -----------------------------------------------------------------------------------------------

    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        on_socket!(
            self,
            os => udp::recv(os, buffer, RecvFlags::empty()),
            sim => sim.recv_message(buffer, false).map(|info| info.bytes)
        )
    }

    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        on_socket!(
            self,
            os => udp::recv_from(os, buffer, RecvFlags::empty()),
            sim => sim.recv_message(buffer, false).map(|info| (info.bytes, info.source))
        )
    }

    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        on_socket!(
            self,
            os => udp::recv_from(os, buffer, RecvFlags::PEEK),
            sim => sim.recv_message(buffer, true).map(|info| (info.bytes, info.source))
        )
    }

    pub fn recv_message(&self, buffer: &mut [u8]) -> io::Result<DatagramInfo> {
        on_socket!(self, os => udp::recv_message(os, buffer), sim => sim.recv_message(buffer, false))
    }

    pub fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<()> {
        on_socket!(self, os => udp::recv_batch(os, batch), sim => sim.recv_batch(batch))
    }

    // ---- Sending -------------------------------------------------------------------------------------------------

    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        on_socket!(
            self,
            os => udp::send(os, payload),
            sim => sim.send_message(&OutgoingDatagram::to_peer(payload))
        )
    }

    pub fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        on_socket!(
            self,
            os => udp::send_to(os, payload, to),
            sim => sim.send_message(&OutgoingDatagram::new(payload, to))
        )
    }

    /// Sends datagrams as far as possible. Returns the number of datagrams that were sent, or an error if the first one
    /// could not be sent. `datagrams` must not be empty.
    pub fn send_batch(&self, datagrams: &[OutgoingDatagram<'_>]) -> io::Result<usize> {
        // The kernel ignores a source address of another family.
        let valid = datagrams.iter().take_while(|datagram| datagram.has_one_family(self.is_ipv6)).count();
        if valid == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "cannot send datagram: source and destination have different address families",
            ));
        }
        let datagrams = &datagrams[..valid];
        on_socket!(self, os => udp::send_batch(os, self.is_ipv6, datagrams), sim => sim.send_batch(datagrams))
    }
}

fn ip_address(address: SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "not an IP socket"))
}
