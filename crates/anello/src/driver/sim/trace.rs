//! Trace of the operations on a simulated network.

use std::collections::VecDeque;
use std::fmt::Write;

use super::segment::Payload;
use crate::driver::wake::woken_hosts::HostId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Connect,
    Accept,
    Send,
    Window,
    Fin,
    Reset,
    TimedOut,
    Datagram,
    Unreachable,
    /// The packet has arrived.
    Deliver,
    Lost,
    Wait,
    Start,
    Crash,
    Partition,
    Repair,
    Hold,
    Release,
    Degrade,
    File,
    Signal,
}

impl Operation {
    pub(super) fn of(payload: &Payload) -> Self {
        match payload {
            Payload::Syn { .. } => Self::Connect,
            Payload::SynAck { .. } => Self::Accept,
            Payload::Bytes(_) => Self::Send,
            Payload::Window(_) => Self::Window,
            Payload::Fin => Self::Fin,
            Payload::Reset => Self::Reset,
            Payload::TimedOut => Self::TimedOut,
            Payload::Datagram { .. } => Self::Datagram,
            Payload::Unreachable(_) => Self::Unreachable,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Accept => "accept",
            Self::Send => "send",
            Self::Window => "window",
            Self::Fin => "fin",
            Self::Reset => "reset",
            Self::TimedOut => "timed out",
            Self::Datagram => "datagram",
            Self::Unreachable => "unreachable",
            Self::Deliver => "deliver",
            Self::Lost => "lost",
            Self::Wait => "wait",
            Self::Start => "start",
            Self::Crash => "crash",
            Self::Partition => "partition",
            Self::Repair => "repair",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Degrade => "degrade",
            Self::File => "file",
            Self::Signal => "signal",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at_ns: u64,
    host: HostId,
    peer: Option<HostId>,
    operation: Operation,
    bytes: usize,
}

/// The last operations, and a hash of all of them.
#[derive(Debug)]
pub(crate) struct Trace {
    events: VecDeque<Event>,
    capacity: usize,
    hash: u64,
}

impl Trace {
    pub(super) fn new(capacity: usize) -> Self {
        Self { events: VecDeque::new(), capacity, hash: 0 }
    }

    pub(super) fn record(
        &mut self,
        at_ns: u64,
        host: HostId,
        operation: Operation,
        peer: Option<HostId>,
        bytes: usize,
    ) {
        let peer_bits = peer.map_or(u64::MAX, u64::from);
        for value in [at_ns, u64::from(host) << 8 | operation as u64, peer_bits, bytes as u64] {
            // A multiplicative hash: fast, and any difference changes it with high probability.
            self.hash = (self.hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        if self.capacity == 0 {
            return;
        }
        if self.events.len() == self.capacity {
            self.events.pop_front();
        }
        self.events.push_back(Event { at_ns, host, peer, operation, bytes });
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns one line per operation. `name` returns the name of a host.
    pub(super) fn format<'a>(&self, name: impl Fn(HostId) -> &'a str) -> String {
        let mut text = String::new();
        for event in &self.events {
            let (seconds, ns) = (event.at_ns / 1_000_000_000, event.at_ns % 1_000_000_000);
            let (host, operation) = (name(event.host), event.operation.name());
            write!(text, "{seconds:>6}.{ns:09}  {host:<12} {operation:<11}").ok();
            if let Some(peer) = event.peer {
                write!(text, " {:<12}", name(peer)).ok();
            }
            if event.bytes > 0 {
                write!(text, " {} bytes", event.bytes).ok();
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }
}
