//! State of one connection, and its lookup by token.
//!
//! A connection keeps its slot in the table until its last completion. The generation in a token distinguishes a
//! completion for this connection from one for an earlier connection in the same slot.

use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::types::Fd;

use super::pool::Pool;
use super::token::Token;

/// Number of unsent chunks at which a connection stops receiving.
pub(super) const MAX_CHUNKS: u16 = 64;

#[derive(Default)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    /// Number of connections that have used this slot.
    pub(super) generation: u32,
    /// Linked list of received chunks, in order.
    pub(super) first_chunk: u32,
    pub(super) last_chunk: u32,
    pub(super) chunk_count: u16,
    /// Number of chunks at the head of the list that are part of a send in flight.
    pub(super) chunks_in_flight: u16,
    /// A receive is in flight.
    pub(super) receive_armed: bool,
    /// The peer has shut down its write half.
    pub(super) received_eof: bool,
    /// The connection was reset, timed out or failed; nothing can be sent.
    pub(super) is_broken: bool,
    pub(super) stalled_send: Option<Box<StalledSend>>,
    pub(super) extra: ExtraState,
}

/// Connection state that is unused without options.
#[derive(Default)]
pub(super) struct ExtraState {
    /// ID of the first connection buffer. The buffers stay with the slot.
    pub(super) own_buffers: Option<u32>,
    /// Connection buffer used by the receive in flight.
    pub(super) own_receive: Option<u32>,
    /// The buffer ring was empty: receive the next bytes into a connection buffer.
    pub(super) is_ring_exhausted: bool,
    /// The kernel rejected zero-copy sends on this connection.
    pub(super) is_zero_copy_refused: bool,
    /// Number of zero-copy sends whose memory the kernel can still read.
    pub(super) pending_notifications: u32,
    /// Sent chunks that the kernel can still read.
    pub(super) zero_copy_chunks: Vec<u32>,
}

#[derive(Default)]
pub(super) enum Socket {
    /// The slot is free.
    #[default]
    None,
    Descriptor(OwnedFd),
    /// Index in the ring's table of registered files.
    Registered(u32),
}

impl Socket {
    #[inline]
    pub(super) fn fd(&self) -> Option<Fd> {
        match self {
            Socket::None => None,
            Socket::Descriptor(fd) => Some(Fd(fd.as_raw_fd())),
            Socket::Registered(slot) => Some(Fd(*slot as i32)),
        }
    }

    #[inline]
    fn is_open(&self) -> bool {
        !matches!(self, Socket::None)
    }
}

/// Data that remains to be sent after a short or rejected send.
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
    /// Frees the slot for the next connection and returns the socket.
    pub(super) fn reset(&mut self) -> Socket {
        let extra = ExtraState { own_buffers: self.extra.own_buffers, ..ExtraState::default() };
        let generation = Token::next_generation(self.generation);
        std::mem::replace(self, Connection { generation, extra, ..Connection::default() }).socket
    }

    #[inline]
    pub(super) fn push_chunk<const CONFIGURABLE: bool>(
        &mut self,
        pool: &mut Pool<CONFIGURABLE>,
        buffer_id: u32,
    ) {
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
    pub(super) fn pop_chunk<const CONFIGURABLE: bool>(&mut self, pool: &mut Pool<CONFIGURABLE>) -> u32 {
        let buffer_id = self.first_chunk;
        self.first_chunk = pool.chunk(buffer_id).next;
        self.chunk_count -= 1;
        buffer_id
    }

    /// Recycles the buffer of a removed chunk as soon as the kernel is no longer reading it.
    #[inline]
    pub(super) fn release<const CONFIGURABLE: bool>(
        &mut self,
        pool: &mut Pool<CONFIGURABLE>,
        buffer_id: u32,
    ) {
        if CONFIGURABLE && self.extra.pending_notifications > 0 {
            self.extra.zero_copy_chunks.push(buffer_id);
        } else {
            pool.recycle(buffer_id);
        }
    }

    pub(super) fn is_sending(&self) -> bool {
        self.stalled_send.as_ref().is_some_and(|send| send.in_flight)
    }

    /// Returns `true` if the connection can receive and no receive is in flight.
    pub(super) fn needs_receive(&self) -> bool {
        self.socket.is_open()
            && !self.receive_armed
            && !self.received_eof
            && !self.is_broken
            && self.stalled_send.is_none()
            && self.chunk_count < MAX_CHUNKS
    }

    /// Returns `true` if no work is left and nothing is in flight.
    pub(super) fn is_finished(&self) -> bool {
        let is_idle = !self.receive_armed
            && self.chunks_in_flight == 0
            && !self.is_sending()
            && self.extra.pending_notifications == 0;
        let is_echoed = self.chunk_count == 0 && self.stalled_send.is_none();
        self.socket.is_open() && is_idle && (self.is_broken || self.received_eof && is_echoed)
    }
}

/// Returns the connection to which a completion belongs, or `None` if the connection is closed.
#[inline]
pub(super) fn find_connection(connections: &mut [Connection], token: Token) -> Option<&mut Connection> {
    let connection = connections.get_mut(token.index() as usize)?;
    (connection.generation == token.generation() && connection.socket.is_open()).then_some(connection)
}
