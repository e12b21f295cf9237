//! The calls of `simulated.rs` in builds without simulated kernels.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use crate::driver::Driver;
use crate::driver::file::disk::Disk;
use crate::driver::sim::SimSignal;
use crate::driver::sockets::detached::DetachedSocket;
use crate::driver::wake::queue::WakeQueue;

impl Driver {
    /// Returns `None`: the kernel is real.
    pub fn catch_signal(&self, _number: i32) -> Option<Rc<SimSignal>> {
        None
    }

    /// Has no effect: the kernel is real.
    pub fn close_signals(&self, _wakes: &mut WakeQueue) {}

    /// Returns `false`: the random numbers are those of the system.
    pub fn fill_random(&mut self, _bytes: &mut [u8]) -> bool {
        false
    }

    /// Returns `None`: the kernel is real.
    pub fn listen_detached(
        &mut self,
        _address: SocketAddr,
        _backlog: u32,
    ) -> Option<io::Result<DetachedSocket>> {
        None
    }

    /// Returns `None`: names are resolved by the system.
    pub fn resolve(&self, _name: &str) -> Option<io::Result<IpAddr>> {
        None
    }

    /// Returns `false`: files are on real disks.
    pub fn has_simulated_disk(&self) -> bool {
        false
    }

    /// Returns a disk without simulated errors.
    pub fn disk(&self) -> Disk {
        Disk::default()
    }

    /// Returns `None`: file operations are not delayed.
    pub fn disk_deadline_ns(&self) -> Option<u64> {
        None
    }
}
