//! Packets between simulated hosts.

use std::net::SocketAddr;

use super::datagram_state::Packet;
use crate::driver::wake::woken_hosts::HostId;

/// Number of low bits of an endpoint's serial number that count the endpoints of a host. The bits above them count how
/// often the host has been started, so that a serial number is never used again after a restart.
pub(super) const SERIAL_BITS: u32 = 40;

/// A socket on a simulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RemoteSocket {
    pub host: HostId,
    /// Identifier of its endpoint.
    pub id: u32,
    pub serial: u64,
}

/// A packet in transit.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(super) from: RemoteSocket,
    /// The identifier and the serial number are not used by `Syn` and `Datagram`.
    pub(super) to: RemoteSocket,
    pub(super) payload: Payload,
    /// Time for which the segment waits before its connection times out.
    pub(super) timeout_ns: u64,
}

#[derive(Debug)]
pub(super) enum Payload {
    /// Requests a connection. `window` is the capacity of the sender's receive buffer in bytes.
    Syn {
        source: SocketAddr,
        destination: SocketAddr,
        window: usize,
        retries: u32,
    },
    /// Accepts a connection.
    SynAck {
        window: usize,
    },
    Bytes(Vec<u8>),
    /// Number of bytes that the application has received.
    Window(usize),
    Fin,
    Reset,
    /// Reports that the connection has timed out.
    TimedOut,
    Datagram {
        packet: Packet,
        destination: SocketAddr,
    },
    /// No socket is bound to the destination of a datagram.
    Unreachable(SocketAddr),
}

impl Segment {
    pub fn host(&self) -> HostId {
        self.to.host
    }

    /// Returns whether the segment is lost instead of delayed when it cannot be delivered.
    pub(super) fn is_datagram(&self) -> bool {
        matches!(self.payload, Payload::Datagram { .. } | Payload::Unreachable(_))
    }

    pub(super) fn data_bytes(&self) -> usize {
        match &self.payload {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Datagram { packet, .. } => packet.payload.len(),
            _ => 0,
        }
    }
}
