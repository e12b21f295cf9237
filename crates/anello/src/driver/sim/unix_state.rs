//! State of simulated Unix sockets.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use socket2::SockAddr;

use crate::driver::sockets::End;

/// The part of an endpoint's state that only Unix sockets have.
#[derive(Debug, Default)]
pub(super) struct UnixState {
    /// The names of both ends (see [`name`](super::unix_sockets::name)). An unnamed end has an empty name.
    pub local: Vec<u8>,
    pub remote: Vec<u8>,
    /// Number of bytes sent to this endpoint, and number of bytes consumed by it.
    sent: u64,
    consumed: u64,
    /// Number of the event that reported the last sent bytes.
    last_send_event: u64,
    /// Messages in the inbox that carry descriptors.
    messages: VecDeque<Message>,
}

/// Bytes that were sent together with descriptors.
#[derive(Debug)]
struct Message {
    start: u64,
    end: u64,
    descriptors: Vec<OwnedFd>,
}

impl UnixState {
    pub fn new(local: &[u8], remote: &[u8]) -> Self {
        Self { local: local.to_vec(), remote: remote.to_vec(), ..Self::default() }
    }

    pub fn address(&self, end: End) -> io::Result<SockAddr> {
        SockAddr::unix(OsStr::from_bytes(match end {
            End::Local => &self.local,
            End::Peer => &self.remote,
        }))
    }

    /// Returns the number of bytes that one receive returns: as on Linux, it ends after a message with descriptors.
    pub fn limit(&self, available: usize) -> usize {
        self.messages
            .front()
            .map_or(available, |message| available.min((message.end - self.consumed) as usize))
    }

    /// Counts bytes that are sent with the event of this number.
    pub fn add(&mut self, count: usize, event: u64) {
        self.sent += count as u64;
        self.last_send_event = event;
    }

    /// Returns whether a report of this event, after that of the `seen` event, stands for exactly one send.
    pub fn is_single_send(&self, event: u64, seen: u64) -> bool {
        event == seen + 1 && event == self.last_send_event
    }

    /// Attaches descriptors to the bytes that are added next.
    pub fn attach(&mut self, descriptors: Vec<OwnedFd>, count: usize) {
        self.messages.push_back(Message { start: self.sent, end: self.sent + count as u64, descriptors });
    }

    /// Counts consumed bytes. Returns the descriptors that were sent with the first of them.
    pub fn consume(&mut self, count: usize) -> Vec<OwnedFd> {
        self.consumed += count as u64;
        let is_reached = self.messages.front().is_some_and(|message| message.start < self.consumed);
        let message = if is_reached { self.messages.pop_front() } else { None };
        message.map(|message| message.descriptors).unwrap_or_default()
    }
}

/// State of a Unix datagram socket.
#[derive(Debug, Default)]
pub(super) struct UnixDatagrams {
    pub queue: VecDeque<UnixPacket>,
    /// Identifier and serial number of the peer.
    pub peer: Option<(u32, u64)>,
    /// Set if the socket and its peer were created as a pair.
    pub is_pair: bool,
    pub passes_credentials: bool,
}

#[derive(Debug)]
pub(super) struct UnixPacket {
    pub payload: Vec<u8>,
    pub source: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl UnixDatagrams {
    pub fn has_packets(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }
}
