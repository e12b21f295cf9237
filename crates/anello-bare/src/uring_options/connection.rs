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
pub(super) const MOST_CHUNKS: usize = 64;
/// Buffers that each connection may have for itself: one is received into while the other is sent.
pub(super) const OWN_BUFFERS: usize = 2;

pub(super) struct Connection {
    pub(super) socket: Socket,
    /// Of this place: counts the connections it held.
    pub(super) generation: u32,
    /// In the list of connections that have something to do.
    pub(super) listed: bool,
    /// The receive in flight fills this.
    pub(super) receiving: Option<Target>,
    pub(super) receive_cancelled: bool,
    /// The ring had no buffer: receive the next bytes into own memory.
    pub(super) no_buffer: bool,
    /// Empty until first used.
    pub(super) own: [Vec<u8>; OWN_BUFFERS],
    pub(super) own_in_use: [bool; OWN_BUFFERS],
    pub(super) chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that were sent.
    pub(super) skip: usize,
    /// Chunks, from the first, that are in the send in flight.
    pub(super) in_flight: usize,
    /// That send completes at submission: no completion means that all was taken.
    pub(super) unsettled: bool,
    pub(super) send_cancelled: bool,
    /// The peer did not take all: send in the way that waits for room until it has.
    pub(super) stalled: bool,
    /// The kernel refused to send without a copy here.
    pub(super) copies: bool,
    /// Zero-copy sends whose memory the kernel has not let go of.
    pub(super) notifications: u32,
    pub(super) held: Vec<Chunk>,
    /// The header of a send of several chunks; the kernel may read it until the send completes.
    pub(super) message: Option<Box<Message>>,
    /// The peer has sent all it will.
    pub(super) ended: bool,
    /// Reset, late, or worse: nothing more can be sent.
    pub(super) broken: bool,
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
pub(super) enum Target {
    Ring,
    Own(usize),
}

/// Received bytes.
#[derive(Clone, Copy)]
pub(super) enum Chunk {
    /// In the buffer of this number.
    Ring(u16),
    /// At the start of this own buffer.
    Own { number: usize, bytes: u32 },
}

impl Connection {
    pub(super) fn vacant(generation: u32) -> Connection {
        Connection {
            socket: Socket::None,
            generation,
            listed: false,
            receiving: None,
            receive_cancelled: false,
            no_buffer: false,
            own: Default::default(),
            own_in_use: Default::default(),
            chunks: VecDeque::new(),
            skip: 0,
            in_flight: 0,
            unsettled: false,
            send_cancelled: false,
            stalled: false,
            copies: false,
            notifications: 0,
            held: Vec::new(),
            message: None,
            ended: false,
            broken: false,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.socket, Socket::None)
    }

    pub(super) fn wants_to_send(&self) -> bool {
        !self.broken && self.in_flight == 0 && !self.chunks.is_empty() && self.held.len() < MOST_CHUNKS
    }

    /// Where to receive to, if it should and does not. `own` says that there is no other place.
    pub(super) fn wants_to_receive(&self, own: bool) -> Option<Target> {
        if self.broken || self.ended || self.receiving.is_some() {
            None
        } else if own || self.no_buffer {
            self.own_in_use.iter().position(|used| !used).map(Target::Own)
        } else {
            (self.chunks.len() < MOST_CHUNKS).then_some(Target::Ring)
        }
    }

    /// Whether a completion of this token is for who has the place now.
    pub(super) fn is_found_by(&self, token: Token) -> bool {
        self.generation == token.generation() && self.is_open()
    }

    /// Has nothing left to do, and the kernel nothing of it.
    pub(super) fn is_over(&self) -> bool {
        let quiet = self.receiving.is_none() && self.in_flight == 0 && self.notifications == 0;
        quiet && (self.broken || self.ended && self.chunks.is_empty())
    }
}
