//! Calls of the driver for datagram sockets.

use std::io;
use std::os::fd::OwnedFd;

use super::datagram_socket::{DatagramSocket, Inner};
use super::sim::{SimDatagramSocket, no_descriptors};
use super::{Backend, Driver, Interest, Kernel, Key};

impl Driver {
    /// Opens a UDP socket, which must then be registered.
    pub fn open_udp(&mut self, is_ipv6: bool) -> io::Result<DatagramSocket> {
        let simulated = |socket| Ok(DatagramSocket::simulated(socket, is_ipv6));
        match self.open_backend()? {
            Backend::Uring(_) | Backend::Epoll(_) => DatagramSocket::open(is_ipv6),
            Backend::SimCompletion(sim) => simulated(sim.kernel.sockets().open_datagram_socket(is_ipv6)),
            Backend::SimReadiness(sim) => simulated(sim.kernel.sockets().open_datagram_socket(is_ipv6)),
        }
    }

    /// Takes ownership of a UDP socket of the operating system, which must then be registered.
    pub fn import_udp(&mut self, descriptor: OwnedFd) -> io::Result<DatagramSocket> {
        if self.is_simulated() {
            return Err(no_descriptors());
        }
        DatagramSocket::import(descriptor)
    }

    /// Registers a socket as a readiness source.
    pub fn register_datagrams(&mut self, socket: &DatagramSocket, interest: Interest) -> io::Result<Key> {
        match &socket.inner {
            Inner::Os(descriptor) => self.register(std::rc::Rc::clone(descriptor), interest),
            Inner::Sim(socket) => self.register_simulated(socket, interest),
        }
    }

    fn register_simulated(&mut self, socket: &SimDatagramSocket, interest: Interest) -> io::Result<Key> {
        match self.open_backend()? {
            Backend::SimCompletion(sim) => sim.register(socket.source(), interest),
            Backend::SimReadiness(sim) => sim.register(socket.source(), interest),
            Backend::Uring(_) | Backend::Epoll(_) => unreachable!("the socket belongs to this driver"),
        }
    }
}
