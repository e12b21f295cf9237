//! Calls of the driver for datagram sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::datagram_socket::{DatagramSocket, Inner};
use super::sim::{SimDatagramSocket, SimNetwork, SimSocket, SimUnixDatagram, no_descriptors};
use super::unix_datagram_socket::UnixDatagramSocket;
use super::{Backend, Driver, Interest, Kernel, Key};

impl Driver {
    /// Opens a UDP socket, which must then be registered.
    pub fn open_udp(&mut self, is_ipv6: bool) -> io::Result<DatagramSocket> {
        match self.simulated_network()? {
            None => DatagramSocket::open(is_ipv6),
            Some(network) => Ok(DatagramSocket::simulated(network.open_datagram_socket(is_ipv6), is_ipv6)),
        }
    }

    /// Opens a Unix datagram socket, which must then be registered.
    pub fn open_unix_datagram(&mut self) -> io::Result<UnixDatagramSocket> {
        match self.simulated_network()? {
            None => UnixDatagramSocket::open(),
            Some(network) => Ok(UnixDatagramSocket::simulated(network.open_unix_datagram())),
        }
    }

    /// Opens two Unix datagram sockets that are connected to each other, and must then be registered.
    pub fn pair_unix_datagrams(&mut self) -> io::Result<(UnixDatagramSocket, UnixDatagramSocket)> {
        let Some(network) = self.simulated_network()? else { return UnixDatagramSocket::pair() };
        let (one, other) = network.pair_unix_datagrams();
        Ok((UnixDatagramSocket::simulated(one), UnixDatagramSocket::simulated(other)))
    }

    fn simulated_network(&mut self) -> io::Result<Option<&SimNetwork>> {
        Ok(match self.open_backend()? {
            Backend::Uring(_) | Backend::Epoll(_) => None,
            Backend::SimCompletion(sim) => Some(sim.kernel.sockets()),
            Backend::SimReadiness(sim) => Some(sim.kernel.sockets()),
        })
    }

    /// Takes ownership of a UDP socket of the operating system, which must then be registered.
    pub fn import_udp(&mut self, descriptor: OwnedFd) -> io::Result<DatagramSocket> {
        if self.is_simulated() {
            return Err(no_descriptors());
        }
        DatagramSocket::import(descriptor)
    }

    /// Takes ownership of a Unix datagram socket of the operating system, which must then be registered.
    pub fn import_unix_datagram(&mut self, descriptor: OwnedFd) -> io::Result<UnixDatagramSocket> {
        if self.is_simulated() {
            return Err(no_descriptors());
        }
        UnixDatagramSocket::import(descriptor)
    }

    /// Registers a socket as a readiness source.
    pub fn register_datagrams(&mut self, socket: &DatagramSocket, interest: Interest) -> io::Result<Key> {
        self.register_inner(&socket.inner, SimDatagramSocket::source, interest)
    }

    /// Registers a socket as a readiness source.
    pub fn register_unix_datagram(
        &mut self,
        socket: &UnixDatagramSocket,
        interest: Interest,
    ) -> io::Result<Key> {
        self.register_inner(&socket.inner, SimUnixDatagram::source, interest)
    }

    fn register_inner<S>(
        &mut self,
        inner: &Inner<S>,
        source: fn(&S) -> Rc<SimSocket>,
        interest: Interest,
    ) -> io::Result<Key> {
        match (inner, self.open_backend()?) {
            (Inner::Os(descriptor), _) => self.register(Rc::clone(descriptor), interest),
            (Inner::Sim(socket), Backend::SimCompletion(sim)) => sim.register(source(socket), interest),
            (Inner::Sim(socket), Backend::SimReadiness(sim)) => sim.register(source(socket), interest),
            (Inner::Sim(_), Backend::Uring(_) | Backend::Epoll(_)) => {
                unreachable!("the socket belongs to this driver")
            }
        }
    }
}
