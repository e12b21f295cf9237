//! Calls of the driver that only simulated kernels implement.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use crate::driver::Driver;
use crate::driver::backend::{Backend, dispatch};
use crate::driver::file::disk::Disk;
use crate::driver::kernel::Kernel;
use crate::driver::proactor::Proactor;
use crate::driver::reactor::Reactor;
use crate::driver::settings::options::DriverOptions;
use crate::driver::settings::sim_options::{SimModel, SimOptions};
use crate::driver::sim::{SimCompletion, SimNetwork, SimReadiness, SimSignal, Uplink, World};
use crate::driver::sockets::Sockets;
use crate::driver::sockets::detached::DetachedSocket;
use crate::driver::sockets::options::SocketOption;
use crate::driver::wake::queue::WakeQueue;

impl Driver {
    /// Opens a driver with a simulated kernel on a network.
    pub fn simulated(network: SimNetwork, sim: &SimOptions, options: &DriverOptions) -> Self {
        let backend = match sim.model {
            SimModel::Completion => {
                let kernel = SimCompletion::new(network, sim, options);
                Backend::SimCompletion(Box::new(Proactor::new(kernel, options)))
            }
            SimModel::Readiness => {
                Backend::SimReadiness(Box::new(Reactor::new(SimReadiness::new(network), options)))
            }
        };
        Self::of(backend, options, None)
    }

    /// Returns the access to the network between simulated hosts, if this driver belongs to one of several hosts.
    pub(in crate::driver) fn uplink(&self) -> Option<Uplink> {
        match &*self.backend {
            Backend::Uring(_) | Backend::Epoll(_) => None,
            Backend::SimCompletion(machine) => machine.kernel.sockets().uplink(),
            Backend::SimReadiness(machine) => machine.kernel.sockets().uplink(),
        }
    }

    /// Opens a TCP socket of a simulated kernel that listens on an address which other sockets can share. Returns `None`
    /// on real kernels.
    pub fn listen_detached(
        &mut self,
        address: SocketAddr,
        backlog: u32,
    ) -> Option<io::Result<DetachedSocket>> {
        fn listen<S: Sockets>(
            sockets: &mut S,
            address: SocketAddr,
            backlog: u32,
        ) -> io::Result<DetachedSocket> {
            let socket = sockets.open(address.is_ipv6())?;
            sockets.set_option(&socket, SocketOption::ReusePort, 1)?;
            sockets.bind(&socket, address)?;
            sockets.start_listening(&socket, backlog)?;
            sockets.export(socket)
        }
        match &mut *self.backend {
            Backend::Uring(_) | Backend::Epoll(_) => None,
            Backend::SimCompletion(machine) => Some(listen(machine.kernel.sockets_mut(), address, backlog)),
            Backend::SimReadiness(machine) => Some(listen(machine.kernel.sockets_mut(), address, backlog)),
        }
    }

    /// Returns the time of the next event that a simulated kernel can foresee, or 0 if a turn would have an effect now.
    pub fn next_event_ns(&self) -> Option<u64> {
        let needs_turn = match &*self.backend {
            Backend::SimCompletion(machine) => machine.has_queued_work(),
            Backend::SimReadiness(machine) => machine.needs_turn(),
            Backend::Uring(_) | Backend::Epoll(_) => false,
        };
        if needs_turn {
            Some(0)
        } else {
            dispatch!(&*self.backend, machine => machine.kernel.next_event_ns())
        }
    }

    /// Resolves a name on the network between simulated hosts. Returns `None` on all other networks.
    pub fn resolve(&self, name: &str) -> Option<io::Result<IpAddr>> {
        let Uplink { world, host } = self.uplink()?;
        let found = if name == "localhost" { Some(host) } else { world.borrow().find(name) };
        Some(match found {
            Some(_) if name == "localhost" => Ok(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
            Some(found) => Ok(World::ipv4(found).into()),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "no such host in the simulation")),
        })
    }

    /// Catches a signal until the returned value is dropped. Returns `None` if this driver does not belong to one of
    /// several hosts.
    pub fn catch_signal(&self, number: i32) -> Option<Rc<SimSignal>> {
        self.uplink().map(|Uplink { world, host }| world.borrow_mut().catch_signal(host, number))
    }

    /// Ends the listeners of signals of a simulated host.
    pub fn close_signals(&self, wakes: &mut WakeQueue) {
        if let Some(Uplink { world, host }) = self.uplink() {
            wakes.extend(world.borrow_mut().close_signals(host));
        }
    }

    /// Fills a buffer from the seeded generator of a simulated kernel. Returns `false` on real kernels.
    pub fn fill_random(&mut self, bytes: &mut [u8]) -> bool {
        match &mut *self.backend {
            Backend::Uring(_) | Backend::Epoll(_) => return false,
            Backend::SimCompletion(machine) => machine.kernel.sockets_mut().fill_random(bytes),
            Backend::SimReadiness(machine) => machine.kernel.sockets_mut().fill_random(bytes),
        }
        true
    }

    /// Returns whether this driver belongs to one of several hosts, whose files have a simulated disk.
    pub fn has_simulated_disk(&self) -> bool {
        self.uplink().is_some()
    }

    /// Returns the disk for the next file operation, which can fail on a simulated host.
    pub fn disk(&self) -> Disk {
        self.uplink().map_or_else(Disk::default, |Uplink { world, host }| world.borrow_mut().disk(host))
    }

    /// Returns the time at which a file operation ends on a simulated host with a slow disk, in nanoseconds.
    pub fn disk_deadline_ns(&self) -> Option<u64> {
        let Uplink { world, host } = self.uplink()?;
        let mut world = world.borrow_mut();
        let network_ns = world.disk_deadline_ns(host)?;
        Some(world.host_clock(host).local_ns(network_ns))
    }
}
