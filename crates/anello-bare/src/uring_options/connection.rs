//! State of one connection, and its match with a token.
//!
//! ```text
//!   kernel ──▶ chunks: | in flight: chunks_in_flight | waiting |  ──▶ zero_copy_chunks: until notified
//!                       ^ sent_bytes of the first chunk are sent
//! ```
//!
//! Invariants:
//! - A chunk is in `chunks`, in `zero_copy_chunks`, or recycled. The kernel can write only to recycled buffers.
//! - A buffer of the connection belongs to at most one of: the receive in flight, `chunks`, `zero_copy_chunks`.
//! - A connection keeps its slot until nothing of it is in flight. The generation in a token distinguishes it from an
//!   earlier connection in the same slot.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::squeue;
use io_uring::types::Fd;

use crate::uring::message::Message;
use crate::uring::token::Token;

/// Number of received chunks at which a connection stops receiving until they are sent.
pub(super) const MAX_CHUNKS: usize = 64;
/// Number of buffers of each connection: one receives while the other is sent.
pub(super) const CONNECTION_BUFFERS: usize = 2;

pub(super) struct Connection {
    pub(super) socket: Socket,
    /// Number of connections that have used this slot.
    pub(super) generation: u32,
    /// In the list of due connections.
    pub(super) is_due: bool,
    /// Buffer of the receive in flight.
    pub(super) receive_target: Option<ReceiveTarget>,
    pub(super) receive_cancelled: bool,
    /// The buffer ring was empty: receive the next bytes into a buffer of the connection.
    pub(super) ring_exhausted: bool,
    /// Allocated on first use.
    pub(super) buffers: [Vec<u8>; CONNECTION_BUFFERS],
    pub(super) buffers_in_use: [bool; CONNECTION_BUFFERS],
    pub(super) chunks: VecDeque<Chunk>,
    /// Number of bytes of the first chunk that were sent.
    pub(super) sent_bytes: usize,
    /// Number of chunks, from the first, in the send in flight.
    pub(super) chunks_in_flight: usize,
    /// The send in flight completes inline: without a completion, all bytes were sent.
    pub(super) send_unconfirmed: bool,
    pub(super) send_cancelled: bool,
    /// The peer did not accept all bytes: wait for room with each send until all are sent.
    pub(super) is_stalled: bool,
    /// The kernel rejected zero-copy sends on this connection.
    pub(super) zero_copy_refused: bool,
    /// Number of zero-copy sends whose memory the kernel can still read.
    pub(super) pending_notifications: u32,
    pub(super) zero_copy_chunks: Vec<Chunk>,
    /// Header of a gathered send; the kernel can read it until the send completes.
    pub(super) message: Option<Box<Message>>,
    /// The peer has shut down its write half.
    pub(super) received_eof: bool,
    /// The connection was reset, timed out or failed; nothing can be sent.
    pub(super) is_broken: bool,
}

pub(super) enum Socket {
    /// The slot is free.
    None,
    Descriptor(OwnedFd),
    /// Index in the ring's table of registered files.
    Registered(u32),
}

impl Socket {
    /// Returns the descriptor for a submission entry, and the flag that selects its table.
    pub(super) fn target(&self) -> Option<(Fd, squeue::Flags)> {
        match self {
            Socket::None => None,
            Socket::Descriptor(fd) => Some((Fd(fd.as_raw_fd()), squeue::Flags::empty())),
            Socket::Registered(slot) => Some((Fd(*slot as i32), squeue::Flags::FIXED_FILE)),
        }
    }
}

/// Destination of a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveTarget {
    Ring,
    Connection(usize),
}

/// Received data.
#[derive(Clone, Copy)]
pub(super) enum Chunk {
    /// Data in the ring's buffer with this ID.
    Ring(u16),
    /// Data at the start of a buffer of the connection.
    Connection { buffer_id: usize, bytes: u32 },
}

impl Connection {
    pub(super) fn vacant(generation: u32) -> Connection {
        Connection {
            socket: Socket::None,
            generation,
            is_due: false,
            receive_target: None,
            receive_cancelled: false,
            ring_exhausted: false,
            buffers: Default::default(),
            buffers_in_use: Default::default(),
            chunks: VecDeque::new(),
            sent_bytes: 0,
            chunks_in_flight: 0,
            send_unconfirmed: false,
            send_cancelled: false,
            is_stalled: false,
            zero_copy_refused: false,
            pending_notifications: 0,
            zero_copy_chunks: Vec::new(),
            message: None,
            received_eof: false,
            is_broken: false,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.socket, Socket::None)
    }

    pub(super) fn can_send(&self) -> bool {
        !self.is_broken
            && self.chunks_in_flight == 0
            && !self.chunks.is_empty()
            && self.zero_copy_chunks.len() < MAX_CHUNKS
    }

    /// Returns the destination of the next receive if the connection needs one. `own`: use only the connection's
    /// buffers.
    pub(super) fn next_receive_target(&self, own: bool) -> Option<ReceiveTarget> {
        if self.is_broken || self.received_eof || self.receive_target.is_some() {
            None
        } else if own || self.ring_exhausted {
            self.buffers_in_use.iter().position(|used| !used).map(ReceiveTarget::Connection)
        } else {
            (self.chunks.len() < MAX_CHUNKS).then_some(ReceiveTarget::Ring)
        }
    }

    /// Returns `true` if the token belongs to the current connection of this slot.
    pub(super) fn matches_token(&self, token: Token) -> bool {
        self.generation == token.generation() && self.is_open()
    }

    /// Returns `true` if no work is left and nothing is in flight.
    pub(super) fn is_finished(&self) -> bool {
        let is_idle =
            self.receive_target.is_none() && self.chunks_in_flight == 0 && self.pending_notifications == 0;
        is_idle && (self.is_broken || self.received_eof && self.chunks.is_empty())
    }
}
