//! Calls of the driver for datagram sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::driver::Driver;
use crate::driver::backend::Backend;
use crate::driver::datagram_socket::unix::UnixDatagramSocket;
use crate::driver::datagram_socket::{DatagramSocket, Inner};
use crate::driver::memory::key::Key;
#[cfg(feature = "sim")]
use crate::driver::sim::SimSocket;
use crate::driver::sockets::detached::no_descriptors;
use crate::driver::source::interest::Interest;

/// Opens a socket of the operating system or of the simulated network, depending on the driver.
macro_rules! on_kernel {
    ($driver:expr, os => $system_call:expr, $network:ident => $simulated:expr) => {
        match $driver.open_backend()? {
            Backend::Uring(_) | Backend::Epoll(_) => $system_call,
            #[cfg(feature = "sim")]
            Backend::SimCompletion(machine) => {
                let $network = $crate::driver::kernel::Kernel::sockets(&machine.kernel);
                $simulated
            }
            #[cfg(feature = "sim")]
            Backend::SimReadiness(machine) => {
                let $network = $crate::driver::kernel::Kernel::sockets(&machine.kernel);
                $simulated
            }
            #[cfg(not(feature = "sim"))]
            Backend::SimCompletion(never) | Backend::SimReadiness(never) => match *never {},
        }
    };
}

/// Registers either kind of socket.
macro_rules! register {
    ($driver:expr, $socket:expr, $interest:expr) => {
        match &$socket.inner {
            Inner::Os(descriptor) => $driver.register(Rc::clone(descriptor), $interest),
            #[cfg(feature = "sim")]
            Inner::Sim(simulated) => $driver.register_simulated(simulated.source(), $interest),
            #[cfg(not(feature = "sim"))]
            Inner::Sim(never) => match *never {},
        }
    };
}

impl Driver {
    /// Opens a UDP socket, which must then be registered.
    pub fn open_udp(&mut self, is_ipv6: bool) -> io::Result<DatagramSocket> {
        on_kernel!(
            self,
            os => DatagramSocket::open(is_ipv6),
            network => Ok(DatagramSocket::simulated(network.open_datagram_socket(is_ipv6), is_ipv6))
        )
    }

    /// Opens a Unix datagram socket, which must then be registered.
    pub fn open_unix_datagram(&mut self) -> io::Result<UnixDatagramSocket> {
        on_kernel!(
            self,
            os => UnixDatagramSocket::open(),
            network => Ok(UnixDatagramSocket::simulated(network.open_unix_datagram()))
        )
    }

    /// Opens two Unix datagram sockets that are connected to each other, and must then be registered.
    pub fn pair_unix_datagrams(&mut self) -> io::Result<(UnixDatagramSocket, UnixDatagramSocket)> {
        on_kernel!(self, os => UnixDatagramSocket::pair(), network => {
            let (one, other) = network.pair_unix_datagrams();
            Ok((UnixDatagramSocket::simulated(one), UnixDatagramSocket::simulated(other)))
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
        register!(self, socket, interest)
    }

    /// Registers a socket as a readiness source.
    pub fn register_unix_datagram(
        &mut self,
        socket: &UnixDatagramSocket,
        interest: Interest,
    ) -> io::Result<Key> {
        register!(self, socket, interest)
    }

    #[cfg(feature = "sim")]
    fn register_simulated(&mut self, socket: Rc<SimSocket>, interest: Interest) -> io::Result<Key> {
        match self.open_backend()? {
            Backend::SimCompletion(machine) => machine.register(socket, interest),
            Backend::SimReadiness(machine) => machine.register(socket, interest),
            Backend::Uring(_) | Backend::Epoll(_) => unreachable!("the socket belongs to this driver"),
        }
    }
}
