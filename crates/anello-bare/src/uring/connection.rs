//! State of one connection, and its lookup by token.
//!
//! Nothing here submits or waits. A connection keeps its slot in the table until its last completion. The generation
//! in a token distinguishes a completion for this connection from one for an earlier connection in the same slot.

use std::os::fd::OwnedFd;

use super::pool::Pool;
use super::token::Token;

/// Number of unsent chunks at which a connection stops receiving.
pub(super) const MAX_CHUNKS: u16 = 64;

pub(super) struct Connection {
    /// `None` if the slot is free.
    pub(super) socket: Option<OwnedFd>,
    /// Number of connections that have used this slot.
    pub(super) generation: u32,
    /// Linked list of received chunks, in order.
    pub(super) first_chunk: u16,
    pub(super) last_chunk: u16,
    pub(super) chunk_count: u16,
    /// Number of chunks at the head of the list that are in a send.
    pub(super) chunks_in_flight: u16,
    /// The multishot receive is in flight.
    pub(super) receive_armed: bool,
    /// The peer has shut down its write half.
    pub(super) received_eof: bool,
    /// The connection was reset or failed; nothing can be sent.
    pub(super) is_broken: bool,
    pub(super) stalled_send: Option<Box<StalledSend>>,
}

/// Data that the peer did not accept.
#[derive(Default)]
pub(super) struct StalledSend {
    /// The kernel can read this memory while `in_flight` is set.
    pub(super) unsent: Vec<u8>,
    pub(super) sent_bytes: usize,
    pub(super) in_flight: bool,
    /// Data that was received before the receive could be cancelled.
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

    /// Removes the oldest chunk. The list must not be empty.
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

    /// Returns `true` if the connection can receive and no receive is in flight.
    pub(super) fn needs_receive(&self) -> bool {
        self.socket.is_some()
            && !self.receive_armed
            && !self.received_eof
            && !self.is_broken
            && self.stalled_send.is_none()
            && self.chunk_count < MAX_CHUNKS
    }

    /// Returns `true` if no work is left and nothing is in flight.
    pub(super) fn is_finished(&self) -> bool {
        let is_idle = !self.receive_armed && self.chunks_in_flight == 0 && !self.is_sending();
        let is_echoed = self.chunk_count == 0 && self.stalled_send.is_none();
        self.socket.is_some() && is_idle && (self.is_broken || self.received_eof && is_echoed)
    }
}

/// Returns the connection of a completion, or `None` if it is closed.
#[inline]
pub(super) fn find_connection(connections: &mut [Connection], token: Token) -> Option<&mut Connection> {
    let connection = connections.get_mut(token.index() as usize)?;
    (connection.generation == token.generation() && connection.socket.is_some()).then_some(connection)
}
