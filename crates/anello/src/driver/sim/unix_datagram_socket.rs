//! Non-blocking system calls on simulated Unix datagram sockets, with fault injection.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use socket2::SockAddr;

use super::datagram_socket::SimDatagramSocket;
use super::socket::SimSocket;
use super::sockets::SimNetwork;
use super::unix_sockets::{credentials, name};
use crate::driver::sockets::End;
use crate::driver::sockets::messages::{self, ReceivedMessage};
use crate::driver::sockets::options::PeerCredentials;

/// A simulated Unix datagram socket.
#[derive(Debug)]
pub(crate) struct SimUnixDatagram(SimDatagramSocket);

impl SimNetwork {
    pub fn open_unix_datagram(&self) -> SimUnixDatagram {
        let id = self.lock().open_unix_datagram();
        SimUnixDatagram(self.datagram_socket(id))
    }

    pub fn pair_unix_datagrams(&self) -> (SimUnixDatagram, SimUnixDatagram) {
        let (one, other) = self.lock().pair_unix_datagrams();
        (SimUnixDatagram(self.datagram_socket(one)), SimUnixDatagram(self.datagram_socket(other)))
    }
}

impl SimUnixDatagram {
    /// Returns the socket for the driver, which reports its readiness.
    pub fn source(&self) -> Rc<SimSocket> {
        self.0.source()
    }

    pub fn bind(&self, address: &UnixAddress) -> io::Result<()> {
        self.0.with(|network, id| network.bind_unix_datagram(id, &name(address)?))
    }

    pub fn connect(&self, address: &UnixAddress) -> io::Result<()> {
        self.0.with(|network, id| network.connect_unix_datagram(id, &name(address)?))
    }

    pub fn address(&self, end: End) -> io::Result<SockAddr> {
        let address = self.0.with(|network, id| {
            let is_known = matches!(end, End::Local) || network.unix_datagrams(id).is_connected();
            let unix = network.endpoint(id).unix.as_ref().filter(|_| is_known);
            Ok(unix.ok_or(libc::ENOTCONN)?.address(end))
        });
        address?
    }

    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        self.0.with(|network, id| match network.unix_datagrams(id).is_pair {
            true => Ok(credentials()),
            false => Ok(PeerCredentials { pid: None, uid: u32::MAX, gid: u32::MAX }),
        })
    }

    pub fn set_passcred(&self, on: bool) -> io::Result<()> {
        self.0.with(|network, id| {
            network.unix_datagrams_mut(id).passes_credentials = on;
            Ok(())
        })
    }

    pub fn passcred(&self) -> io::Result<bool> {
        self.0.with(|network, id| Ok(network.unix_datagrams(id).passes_credentials))
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.with(|network, id| {
            if !network.unix_datagrams(id).is_connected() {
                return Err(libc::ENOTCONN);
            }
            let endpoint = network.endpoint_mut(id);
            endpoint.read_shut |= how != Shutdown::Write;
            endpoint.write_shut |= how != Shutdown::Read;
            endpoint.events += 1;
            Ok(())
        })
    }

    pub fn recv(&self, buffer: &mut [u8], peeks: bool) -> io::Result<ReceivedMessage> {
        self.0.maybe_refuse(|network| network.faults.spurious_readiness)?;
        // The received descriptors are closed.
        self.0.with(|network, id| Ok(network.receive_unix_datagram(id, buffer, peeks)?.0))
    }

    pub fn recv_with_fds(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<ReceivedMessage> {
        self.0.maybe_refuse(|network| network.faults.spurious_readiness)?;
        self.0.with(|network, id| {
            let (mut message, mut descriptors) = network.receive_unix_datagram(id, buffer, false)?;
            fds.append(&mut descriptors);
            message.credentials = network.unix_datagrams(id).passes_credentials.then(credentials);
            Ok(message)
        })
    }

    pub fn send(
        &self,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        to: Option<&UnixAddress>,
    ) -> io::Result<usize> {
        messages::check_fd_count(fds.len())?;
        let descriptors = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
        self.0.maybe_refuse(|network| network.faults.refused_sends)?;
        self.0.with(|network, id| {
            let to = to.map(name).transpose()?;
            network.send_unix_datagram(id, payload, descriptors, to.as_deref())
        })
    }
}
