//! Non-blocking system calls on simulated Unix datagram sockets, with fault injection.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use socket2::SockAddr;

use super::network::Network;
use super::sockets::{SimNetwork, SimSocket, to_io_result, would_block};
use super::unix_sockets::{credentials, name};
use crate::driver::sockets::messages::{self, ReceivedMessage};
use crate::driver::{End, PeerCredentials};

/// A simulated Unix datagram socket. The driver and the owner share it, as they share the descriptor of a real socket.
#[derive(Debug)]
pub(in super::super) struct SimUnixDatagram {
    network: SimNetwork,
    socket: Rc<SimSocket>,
}

impl SimNetwork {
    pub fn open_unix_datagram(&self) -> SimUnixDatagram {
        let id = self.lock().open_unix_datagram();
        self.unix_datagram(id)
    }

    pub fn pair_unix_datagrams(&self) -> (SimUnixDatagram, SimUnixDatagram) {
        let (one, other) = self.lock().pair_unix_datagrams();
        (self.unix_datagram(one), self.unix_datagram(other))
    }

    fn unix_datagram(&self, id: u32) -> SimUnixDatagram {
        SimUnixDatagram { network: self.clone(), socket: Rc::new(self.socket(id)) }
    }
}

impl SimUnixDatagram {
    /// Returns the socket for the driver, which reports its readiness.
    pub fn source(&self) -> Rc<SimSocket> {
        Rc::clone(&self.socket)
    }

    fn with<T>(&self, action: impl FnOnce(&mut Network, u32) -> Result<T, i32>) -> io::Result<T> {
        to_io_result(action(&mut self.network.lock(), self.socket.id()))
    }

    pub fn bind(&self, address: &UnixAddress) -> io::Result<()> {
        self.with(|network, id| network.bind_unix_datagram(id, &name(address)?))
    }

    pub fn connect(&self, address: &UnixAddress) -> io::Result<()> {
        self.with(|network, id| network.connect_unix_datagram(id, &name(address)?))
    }

    pub fn address(&self, end: End) -> io::Result<SockAddr> {
        let network = self.network.lock();
        let id = self.socket.id();
        let is_known = matches!(end, End::Local) || network.unix_datagrams(id).is_connected();
        let unix = network.endpoint(id).unix.as_ref().filter(|_| is_known);
        to_io_result(unix.ok_or(libc::ENOTCONN))?.address(end)
    }

    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        self.with(|network, id| match network.unix_datagrams(id).is_pair {
            true => Ok(credentials()),
            false => Ok(PeerCredentials { pid: None, uid: u32::MAX, gid: u32::MAX }),
        })
    }

    pub fn set_passcred(&self, on: bool) -> io::Result<()> {
        self.with(|network, id| {
            network.unix_datagrams_mut(id).passes_credentials = on;
            Ok(())
        })
    }

    pub fn passcred(&self) -> io::Result<bool> {
        self.with(|network, id| Ok(network.unix_datagrams(id).passes_credentials))
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.with(|network, id| {
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

    /// Fails with `EAGAIN` if the fault occurs, and schedules another readiness report.
    fn maybe_refuse(&self, rate: fn(&Network) -> u16) -> io::Result<()> {
        let mut network = self.network.lock();
        let rate = rate(&network);
        if network.fault(rate) {
            network.report_later(self.socket.id());
            return would_block();
        }
        Ok(())
    }

    pub fn recv(&self, buffer: &mut [u8], peeks: bool) -> io::Result<ReceivedMessage> {
        self.maybe_refuse(|network| network.faults.spurious_readiness)?;
        // The received descriptors are closed.
        self.with(|network, id| Ok(network.receive_unix_datagram(id, buffer, peeks)?.0))
    }

    pub fn recv_with_fds(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<ReceivedMessage> {
        self.maybe_refuse(|network| network.faults.spurious_readiness)?;
        self.with(|network, id| {
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
        self.maybe_refuse(|network| network.faults.refused_sends)?;
        self.with(|network, id| {
            let to = to.map(name).transpose()?;
            network.send_unix_datagram(id, (payload, descriptors), to.as_deref())
        })
    }
}
