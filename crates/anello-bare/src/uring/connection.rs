//! What the server knows of one connection, and how a completion finds its connection again.
//!
//! Nothing here submits or waits: it is the state that the rest of `uring` decides by. A connection keeps its place
//! in the table until its last completion; the generation in a token tells a completion for it from one for who had
//! the place before.

use std::os::fd::OwnedFd;

use super::pool::Pool;
use super::token::Token;

/// Chunks of one connection at which it stops receiving until they are sent.
pub(super) const MOST_CHUNKS: u16 = 64;

pub(super) struct Connection {
    /// `None`: the place is free.
    pub(super) socket: Option<OwnedFd>,
    /// Of this place: counts the connections it held.
    pub(super) generation: u32,
    /// The list of received chunks, in order.
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) chunks: u16,
    /// How many chunks at its head are in a send.
    pub(super) chunks_in_flight: u16,
    /// The multishot receive is in flight.
    pub(super) armed: bool,
    /// The peer has sent all it will.
    pub(super) ended: bool,
    /// Reset or worse: nothing more can be sent.
    pub(super) broken: bool,
    pub(super) stall: Option<Box<Stall>>,
}

/// What a connection's peer is owed and did not take.
#[derive(Default)]
pub(super) struct Stall {
    /// The kernel may read this while `sending`.
    pub(super) owed: Vec<u8>,
    pub(super) sent: usize,
    pub(super) sending: bool,
    /// Arrived since, before receiving could be stopped.
    pub(super) more: Vec<u8>,
}

impl Connection {
    pub(super) fn vacant(generation: u32) -> Connection {
        Connection {
            socket: None,
            generation,
            first: 0,
            last: 0,
            chunks: 0,
            chunks_in_flight: 0,
            armed: false,
            ended: false,
            broken: false,
            stall: None,
        }
    }

    #[inline]
    pub(super) fn push_chunk(&mut self, pool: &mut Pool, number: u16) {
        if self.chunks == 0 {
            self.first = number;
        } else {
            pool.chunk(self.last).next = number;
        }
        self.last = number;
        self.chunks += 1;
    }

    /// The oldest chunk; there must be one.
    #[inline]
    pub(super) fn pop_chunk(&mut self, pool: &mut Pool) -> u16 {
        let number = self.first;
        self.first = pool.chunk(number).next;
        self.chunks -= 1;
        number
    }

    pub(super) fn is_sending(&self) -> bool {
        self.stall.as_ref().is_some_and(|stall| stall.sending)
    }

    /// Should receive and does not.
    pub(super) fn wants_data(&self) -> bool {
        self.socket.is_some()
            && !self.armed
            && !self.ended
            && !self.broken
            && self.stall.is_none()
            && self.chunks < MOST_CHUNKS
    }

    /// Has nothing left to do, and the kernel nothing of it.
    pub(super) fn is_over(&self) -> bool {
        let quiet = !self.armed && self.chunks_in_flight == 0 && !self.is_sending();
        let echoed = self.chunks == 0 && self.stall.is_none();
        self.socket.is_some() && quiet && (self.broken || self.ended && echoed)
    }
}

/// The connection that a completion is for, unless it is gone.
#[inline]
pub(super) fn find(connections: &mut [Connection], token: Token) -> Option<&mut Connection> {
    let connection = connections.get_mut(token.index() as usize)?;
    (connection.generation == token.generation() && connection.socket.is_some()).then_some(connection)
}
