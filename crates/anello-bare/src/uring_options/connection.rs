//! What the server knows of one connection, and how a completion finds it again.
//!
//! ```text
//!   kernel ──▶ chunks: | being sent: in_flight | waiting |  ──▶ held: sent without a copy, until the kernel lets go
//!                       ^ skip: bytes of the first that are gone
//! ```
//!
//! Invariants:
//! - A chunk is in `chunks`, in `held`, or given back; its memory is the kernel's to write only when given back.
//! - An own buffer is in at most one of: the receive in flight, `chunks`, `held`.
//! - A connection keeps its place until nothing of it is in flight; the generation in a token tells it from the one
//!   who had the place before.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::squeue;
use io_uring::types::Fd;

use crate::uring::message::Message;
use crate::uring::token::Token;

/// Received buffers of one connection at which it stops receiving until they are sent.
pub(super) const MAX_CHUNKS: usize = 64;
/// Buffers that each connection may have for itself: one is received into while the other is sent.
pub(super) const CONNECTION_BUFFERS: usize = 2;

pub(super) struct Connection {
    pub(super) socket: Socket,
    /// Of this place: counts the connections it held.
    pub(super) generation: u32,
    /// In the list of connections that have something to do.
    pub(super) is_due: bool,
    /// The receive in flight fills this.
    pub(super) receive_target: Option<ReceiveTarget>,
    pub(super) receive_cancelled: bool,
    /// The ring had no buffer: receive the next bytes into own memory.
    pub(super) ring_exhausted: bool,
    /// Empty until first used.
    pub(super) buffers: [Vec<u8>; CONNECTION_BUFFERS],
    pub(super) buffers_in_use: [bool; CONNECTION_BUFFERS],
    pub(super) chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that were sent.
    pub(super) sent_bytes: usize,
    /// Chunks, from the first, that are in the send in flight.
    pub(super) chunks_in_flight: usize,
    /// That send completes at submission: no completion means that all was taken.
    pub(super) send_unconfirmed: bool,
    pub(super) send_cancelled: bool,
    /// The peer did not take all: send in the way that waits for room until it has.
    pub(super) is_stalled: bool,
    /// The kernel refused to send without a copy here.
    pub(super) zero_copy_refused: bool,
    /// Zero-copy sends whose memory the kernel has not let go of.
    pub(super) pending_notifications: u32,
    pub(super) zero_copy_chunks: Vec<Chunk>,
    /// The header of a send of several chunks; the kernel may read it until the send completes.
    pub(super) message: Option<Box<Message>>,
    /// The peer has sent all it will.
    pub(super) received_eof: bool,
    /// Reset, late, or worse: nothing more can be sent.
    pub(super) is_broken: bool,
}

pub(super) enum Socket {
    /// The place is free.
    None,
    Descriptor(OwnedFd),
    /// In the ring's table of registered files.
    Registered(u32),
}

impl Socket {
    /// How an entry names it: a number, and the flag that says in which table.
    pub(super) fn target(&self) -> Option<(Fd, squeue::Flags)> {
        match self {
            Socket::None => None,
            Socket::Descriptor(fd) => Some((Fd(fd.as_raw_fd()), squeue::Flags::empty())),
            Socket::Registered(slot) => Some((Fd(*slot as i32), squeue::Flags::FIXED_FILE)),
        }
    }
}

/// Where received bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveTarget {
    Ring,
    Connection(usize),
}

/// Received bytes.
#[derive(Clone, Copy)]
pub(super) enum Chunk {
    /// In the buffer of this number.
    Ring(u16),
    /// At the start of this own buffer.
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

    /// Where to receive to, if it should and does not. `own` says that there is no other place.
    pub(super) fn next_receive_target(&self, own: bool) -> Option<ReceiveTarget> {
        if self.is_broken || self.received_eof || self.receive_target.is_some() {
            None
        } else if own || self.ring_exhausted {
            self.buffers_in_use.iter().position(|used| !used).map(ReceiveTarget::Connection)
        } else {
            (self.chunks.len() < MAX_CHUNKS).then_some(ReceiveTarget::Ring)
        }
    }

    /// Whether a completion of this token is for who has the place now.
    pub(super) fn matches_token(&self, token: Token) -> bool {
        self.generation == token.generation() && self.is_open()
    }

    /// Has nothing left to do, and the kernel nothing of it.
    pub(super) fn is_finished(&self) -> bool {
        let is_idle =
            self.receive_target.is_none() && self.chunks_in_flight == 0 && self.pending_notifications == 0;
        is_idle && (self.is_broken || self.received_eof && self.chunks.is_empty())
    }
}
