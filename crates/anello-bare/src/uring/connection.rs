//! What the server knows of one connection, and how a completion finds its connection again.
//!
//! Nothing here submits or waits: it is the state that the rest of `uring` decides by. A connection keeps its place
//! in the table until its last completion; the generation in a token tells a completion for it from one for who had
//! the place before.

use std::os::fd::OwnedFd;

use super::pool::Pool;
use super::token::Token;

/// Chunks of one connection at which it stops receiving until they are sent.
pub(super) const MAX_CHUNKS: u16 = 64;

pub(super) struct Connection {
    /// `None`: the place is free.
    pub(super) socket: Option<OwnedFd>,
    /// Of this place: counts the connections it held.
    pub(super) generation: u32,
    /// The list of received chunks, in order.
    pub(super) first_chunk: u16,
    pub(super) last_chunk: u16,
    pub(super) chunk_count: u16,
    /// How many chunks at its head are in a send.
    pub(super) chunks_in_flight: u16,
    /// The multishot receive is in flight.
    pub(super) receive_armed: bool,
    /// The peer has sent all it will.
    pub(super) received_eof: bool,
    /// Reset or worse: nothing more can be sent.
    pub(super) is_broken: bool,
    pub(super) stalled_send: Option<Box<StalledSend>>,
}

/// What a connection's peer is owed and did not take.
#[derive(Default)]
pub(super) struct StalledSend {
    /// The kernel may read this while `sending`.
    pub(super) unsent: Vec<u8>,
    pub(super) sent_bytes: usize,
    pub(super) in_flight: bool,
    /// Arrived since, before receiving could be stopped.
    pub(super) received: Vec<u8>,
}

impl Connection {
    pub(super) fn vacant(generation: u32) -> Connection {
        Connection {
            socket: None,
            generation,
            first_chunk: 0,
            last_chunk: 0,
            chunk_count: 0,
            chunks_in_flight: 0,
            receive_armed: false,
            received_eof: false,
            is_broken: false,
            stalled_send: None,
        }
    }

    #[inline]
    pub(super) fn push_chunk(&mut self, pool: &mut Pool, buffer_id: u16) {
        if self.chunk_count == 0 {
            self.first_chunk = buffer_id;
        } else {
            pool.chunk(self.last_chunk).next = buffer_id;
        }
        self.last_chunk = buffer_id;
        self.chunk_count += 1;
    }

    /// The oldest chunk; there must be one.
    #[inline]
    pub(super) fn pop_chunk(&mut self, pool: &mut Pool) -> u16 {
        let buffer_id = self.first_chunk;
        self.first_chunk = pool.chunk(buffer_id).next;
        self.chunk_count -= 1;
        buffer_id
    }

    pub(super) fn is_sending(&self) -> bool {
        self.stalled_send.as_ref().is_some_and(|send| send.in_flight)
    }

    /// Should receive and does not.
    pub(super) fn needs_receive(&self) -> bool {
        self.socket.is_some()
            && !self.receive_armed
            && !self.received_eof
            && !self.is_broken
            && self.stalled_send.is_none()
            && self.chunk_count < MAX_CHUNKS
    }

    /// Has nothing left to do, and the kernel nothing of it.
    pub(super) fn is_finished(&self) -> bool {
        let is_idle = !self.receive_armed && self.chunks_in_flight == 0 && !self.is_sending();
        let is_echoed = self.chunk_count == 0 && self.stalled_send.is_none();
        self.socket.is_some() && is_idle && (self.is_broken || self.received_eof && is_echoed)
    }
}

/// The connection that a completion is for, unless it is gone.
#[inline]
pub(super) fn find_connection(connections: &mut [Connection], token: Token) -> Option<&mut Connection> {
    let connection = connections.get_mut(token.index() as usize)?;
    (connection.generation == token.generation() && connection.socket.is_some()).then_some(connection)
}
