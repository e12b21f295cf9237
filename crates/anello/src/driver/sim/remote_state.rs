//! State of connections between simulated hosts.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use super::segment::{RemoteSocket, SERIAL_BITS};
use super::world::World;
use crate::driver::wake::woken_hosts::HostId;

/// A host's access to the network between hosts.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    pub world: Rc<RefCell<World>>,
    pub host: HostId,
}

/// The part of an endpoint's state that only connections between hosts have.
#[derive(Debug)]
pub(super) struct Remote {
    /// The other side. Only its host is known during a connection attempt.
    pub peer: RemoteSocket,
    /// Capacity of the peer's receive buffer.
    pub window: usize,
    /// Number of bytes sent that the peer has not reported as received by its application.
    pub unread_bytes: usize,
    /// Number of bytes received that have not been reported to the peer.
    pub unreported_bytes: usize,
    pub last_arrival_ns: u64,
}

impl Remote {
    pub fn new(peer: RemoteSocket, window: usize) -> Self {
        Self { peer, window, unread_bytes: 0, unreported_bytes: 0, last_arrival_ns: 0 }
    }
}

impl Uplink {
    pub fn first_serial(&self) -> u64 {
        self.world.borrow().starts(self.host) << SERIAL_BITS
    }

    pub fn is_own(&self, ip: IpAddr) -> bool {
        ip == World::ipv4(self.host) || ip == World::ipv6(self.host)
    }

    pub fn own_ip(&self, is_ipv6: bool) -> IpAddr {
        if is_ipv6 { World::ipv6(self.host).into() } else { World::ipv4(self.host).into() }
    }
}
