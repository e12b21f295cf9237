//! State of a simulated datagram socket.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use crate::driver::datagram::info::Ecn;

/// Bytes that a datagram occupies in a queue in addition to its payload.
const PACKET_OVERHEAD_BYTES: usize = 256;

/// State of a datagram socket.
#[derive(Debug, Default)]
pub(super) struct DatagramState {
    pub is_ipv6: bool,
    pub queue: VecDeque<Packet>,
    pub queued_bytes: usize,
    /// Datagrams that arrive later, and the times at which they do.
    pub delayed: Vec<(u64, Packet)>,
    pub groups: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub payload: Vec<u8>,
    pub source: SocketAddr,
    pub destination: IpAddr,
    pub ecn: Ecn,
}

impl Packet {
    pub fn occupied_bytes(&self) -> usize {
        self.payload.len() + PACKET_OVERHEAD_BYTES
    }
}

impl DatagramState {
    pub fn has_packets(&self) -> bool {
        !self.queue.is_empty()
    }
}
