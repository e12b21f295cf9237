//! Unix datagram sockets of all kernels. Like UDP sockets (see `datagram_socket/mod.rs`), they belong to their users.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram as StdDatagram};
use std::rc::Rc;

use rustix::net::RecvFlags;
use socket2::{Domain, SockAddr, SockRef, Type};

use super::{Inner, on_socket};
use crate::driver::sim::SimUnixDatagram;
use crate::driver::sockets::messages::{self, ReceivedMessage};
use crate::driver::sockets::options::{self as socket_options, PeerCredentials};
use crate::driver::sockets::{End, udp, unix_datagrams};

/// A Unix datagram socket in non-blocking mode.
#[derive(Debug)]
pub(crate) struct UnixDatagramSocket {
    pub(in crate::driver) inner: Inner<SimUnixDatagram>,
}

impl UnixDatagramSocket {
    /// Opens a socket of the operating system.
    pub(in crate::driver) fn open() -> io::Result<Self> {
        Ok(Self { inner: Inner::Os(Rc::new(unix_datagrams::open()?)) })
    }

    /// Opens two sockets of the operating system that are connected to each other.
    pub(in crate::driver) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = StdDatagram::pair()?;
        Ok((Self::import(one.into())?, Self::import(other.into())?))
    }

    #[cfg(feature = "sim")]
    pub(in crate::driver) fn simulated(socket: SimUnixDatagram) -> Self {
        Self { inner: Inner::Sim(socket) }
    }

    /// Takes ownership of a socket of the operating system, and switches it to non-blocking mode.
    pub(in crate::driver) fn import(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = SockRef::from(&descriptor);
        if socket.domain()? != Domain::UNIX || socket.r#type()? != Type::DGRAM {
            let text = "cannot import descriptor: not a Unix datagram socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        socket.set_nonblocking(true)?;
        Ok(Self { inner: Inner::Os(Rc::new(descriptor)) })
    }

    /// Returns the descriptor, or an error on the simulated driver.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        on_socket!(self, os => Ok(os), _sim => Err(super::no_descriptors()))
    }

    /// Returns the descriptor in blocking mode. It is duplicated if the driver still holds it.
    pub fn export(self) -> io::Result<OwnedFd> {
        self.inner.export()
    }

    pub fn bind(&self, address: &UnixAddress) -> io::Result<()> {
        on_socket!(self, os => unix_datagrams::bind(os, address), sim => sim.bind(address))
    }

    pub fn connect(&self, address: &UnixAddress) -> io::Result<()> {
        on_socket!(self, os => unix_datagrams::connect(os, address), sim => sim.connect(address))
    }

    pub fn address(&self, end: End) -> io::Result<SockAddr> {
        on_socket!(
            self,
            os => match end {
                End::Local => SockRef::from(&os).local_addr(),
                End::Peer => SockRef::from(&os).peer_addr(),
            },
            sim => sim.address(end)
        )
    }

    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        on_socket!(self, os => socket_options::peer_credentials(&os), sim => sim.peer_credentials())
    }

    pub fn set_passcred(&self, on: bool) -> io::Result<()> {
        on_socket!(self, os => SockRef::from(&os).set_passcred(on), sim => sim.set_passcred(on))
    }

    pub fn passcred(&self) -> io::Result<bool> {
        on_socket!(self, os => SockRef::from(&os).passcred(), sim => sim.passcred())
    }

    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        on_socket!(self, os => SockRef::from(&os).take_error(), _sim => Ok(None))
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        on_socket!(self, os => SockRef::from(&os).shutdown(how), sim => sim.shutdown(how))
    }

    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        on_socket!(
            self,
            os => udp::recv(os, buffer, RecvFlags::empty()),
            sim => sim.recv(buffer, false).map(|message| message.bytes)
        )
    }

    pub fn recv_from(&self, buffer: &mut [u8], peeks: bool) -> io::Result<(usize, UnixAddress)> {
        on_socket!(
            self,
            os => {
                let flags = if peeks { RecvFlags::PEEK } else { RecvFlags::empty() };
                unix_datagrams::recv_from(os, buffer, flags)
            },
            sim => {
                let message = sim.recv(buffer, peeks)?;
                Ok((message.bytes, unix_datagrams::named_address(&message.source)?))
            }
        )
    }

    pub fn recv_with_fds(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<ReceivedMessage> {
        on_socket!(
            self,
            os => messages::recv_with_fds(os, &mut [IoSliceMut::new(buffer)], fds),
            sim => sim.recv_with_fds(buffer, fds)
        )
    }

    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        on_socket!(self, os => udp::send(os, payload), sim => sim.send(payload, &[], None))
    }

    pub fn send_to(&self, payload: &[u8], to: &UnixAddress) -> io::Result<usize> {
        on_socket!(self, os => unix_datagrams::send_to(os, payload, to), sim => sim.send(payload, &[], Some(to)))
    }

    pub fn send_with_fds(
        &self,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        to: Option<&UnixAddress>,
    ) -> io::Result<usize> {
        on_socket!(
            self,
            os => messages::send_with_fds(os, &[IoSlice::new(payload)], fds, to),
            sim => sim.send(payload, fds, to)
        )
    }
}
