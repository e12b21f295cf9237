//! Completion handling: updates the state of the connections and the lists of due work.

use std::io;
use std::mem::{swap, take};
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::cqueue;
use rustix::io::Errno;

use super::connection::{Connection, MAX_CHUNKS, Socket, StalledSend, find_connection};
use super::enter::errno;
use super::server::{AcceptState, Server};
use super::token::{Kind, Token};
use crate::accept::AcceptError;
use crate::errors::unsupported;

impl<const CONFIGURABLE: bool> Server<'_, CONFIGURABLE> {
    #[inline]
    pub(super) fn handle_completion(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let (token, result, flags) = (Token(completion.user_data()), completion.result(), completion.flags());
        match token.kind() {
            Kind::Receive => return self.on_receive(token, result, flags),
            Kind::SendAll => self.on_blocking_send(token, result),
            Kind::Accept => return self.on_accept(result, cqueue::more(flags)),
            Kind::AcceptPause => self.accept = AcceptState::Unarmed,
            Kind::Send if self.options().completes_sends_inline() => self.on_short_send(token, result),
            Kind::Send => self.on_send(token, result, flags),
            Kind::Cancel => self.on_cancel(token, result),
            Kind::Close => self.free_file_slots += 1,
            // The completion of the receive reports whether a timeout expired.
            Kind::Timeout => {}
        }
        Ok(())
    }

    #[inline]
    fn on_receive(&mut self, token: Token, result: i32, flags: u32) -> io::Result<()> {
        let index = token.index();
        let mut buffer = cqueue::buffer_select(flags).map(u32::from);
        let Some(connection) = find_connection(&mut self.connections, token) else {
            buffer.into_iter().for_each(|buffer_id| self.pool.recycle(buffer_id));
            return Ok(());
        };
        connection.receive_armed = cqueue::more(flags);
        if CONFIGURABLE && let Some(buffer_id) = connection.extra.own_receive.take() {
            connection.extra.is_ring_exhausted = false;
            buffer = Some(buffer_id);
        }
        let mut bytes = u32::try_from(result).unwrap_or(0);
        while let Some(buffer_id) = buffer {
            self.pool.mark_received(buffer_id, bytes);
            if bytes == 0 || connection.is_broken {
                self.pool.recycle(buffer_id);
                self.to_cancel.push(index);
            } else if let Some(stalled) = &mut connection.stalled_send {
                stalled.received.extend_from_slice(self.pool.bytes(buffer_id));
                self.pool.recycle(buffer_id);
                self.turn.is_full = true;
                self.to_cancel.push(index);
            } else {
                connection.push_chunk(&mut self.pool, buffer_id);
                match connection.chunk_count {
                    1 => self.to_send.push(index),
                    MAX_CHUNKS.. => {
                        self.turn.is_full = true;
                        self.to_cancel.push(index);
                    }
                    _ => {}
                }
            }
            // Only a bundle can span several buffers.
            if !CONFIGURABLE || bytes <= self.pool.buffer_bytes {
                break;
            }
            bytes -= self.pool.buffer_bytes;
            buffer = Some(self.pool.followers[buffer_id as usize].into());
        }
        if result > 0 && connection.receive_armed { Ok(()) } else { self.on_receive_end(index, result) }
    }

    /// Handles the final completion of a receive, which can indicate EOF.
    #[cold]
    fn on_receive_end(&mut self, index: u32, result: i32) -> io::Result<()> {
        let has_timeout = self.options().linked_timeout.is_some();
        let connection = &mut self.connections[index as usize];
        if result == 0 {
            connection.received_eof = true;
        } else if result < 0 {
            match errno(result) {
                Errno::NOBUFS => {
                    self.turn.is_full = true;
                    let has_grown = self.pool.grow();
                    connection.extra.is_ring_exhausted = CONFIGURABLE && !has_grown;
                }
                // A receive with a timeout is one-shot: it is cancelled only if the timeout expires or the connection
                // is broken.
                Errno::CANCELED if has_timeout => connection.is_broken = true,
                Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                Errno::INVAL => {
                    let reason = "receive rejected by the kernel: multishot requires Linux 6.0, bundles 6.10 \
                                  (upgrade the kernel or use epoll)";
                    return Err(unsupported(reason));
                }
                _ => connection.is_broken = true,
            }
            if connection.is_broken {
                self.to_cancel.push(index);
            }
        }
        self.advance(index);
        Ok(())
    }

    /// Confirms the submitted inline sends that posted no completion: all of their bytes were sent. Chunks received in
    /// the meantime come after the sent chunks in the list.
    #[inline]
    pub(super) fn confirm_sends(&mut self) {
        if !self.submissions.is_empty() {
            return;
        }
        self.messages_used = 0;
        for position in 0..self.sends_in_flight.len() {
            self.on_sent(self.sends_in_flight[position]);
        }
        self.sends_in_flight.clear();
    }

    /// Recycles the buffers of a complete send.
    #[inline]
    fn on_sent(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        for _ in 0..take(&mut connection.chunks_in_flight) {
            let buffer_id = connection.pop_chunk(&mut self.pool);
            connection.release(&mut self.pool, buffer_id);
        }
        if connection.chunk_count > 0 {
            self.to_send.push(index);
        }
        if !connection.receive_armed {
            self.advance(index);
        }
    }

    /// Handles the completion of a send or the notification that the kernel is no longer reading the memory of the
    /// send. Successful sends post a completion only with some options.
    fn on_send(&mut self, token: Token, result: i32, flags: u32) {
        let index = token.index();
        let Some(connection) = find_connection(&mut self.connections, token) else { return };
        if cqueue::notif(flags) {
            let extra = &mut connection.extra;
            extra.pending_notifications = extra.pending_notifications.saturating_sub(1);
            if extra.pending_notifications == 0 {
                extra.zero_copy_chunks.drain(..).for_each(|buffer_id| self.pool.recycle(buffer_id));
                self.to_send.push(index);
            }
            return self.advance(index);
        }
        if cqueue::more(flags) {
            connection.extra.pending_notifications += 1;
        }
        let (mut buffer_id, mut unsent) = (connection.first_chunk, 0);
        for _ in 0..connection.chunks_in_flight {
            unsent += i64::from(self.pool.raw_chunk(buffer_id).1);
            buffer_id = self.pool.chunk(buffer_id).next;
        }
        if i64::from(result) == unsent { self.on_sent(index) } else { self.on_short_send(token, result) }
    }

    /// Handles the completion of an incomplete or failed send from the receive buffers.
    #[cold]
    fn on_short_send(&mut self, token: Token, result: i32) {
        let zero_copy = self.options().zero_copy_sends;
        let index = token.index();
        let Some(connection) = find_connection(&mut self.connections, token) else { return };
        connection.chunks_in_flight = 0;
        let mut stalled = Box::<StalledSend>::default();
        let mut skip = usize::try_from(result).unwrap_or(0);
        while connection.chunk_count > 0 {
            let buffer_id = connection.pop_chunk(&mut self.pool);
            let bytes = self.pool.bytes(buffer_id);
            stalled.unsent.extend_from_slice(&bytes[skip.min(bytes.len())..]);
            skip = skip.saturating_sub(bytes.len());
            connection.release(&mut self.pool, buffer_id);
        }
        let can_retry = result >= 0
            || match errno(result) {
                Errno::AGAIN | Errno::INTR => true,
                // The locked-memory limit is reached, or the socket does not support zero copy.
                Errno::NOMEM | Errno::NOBUFS | Errno::OPNOTSUPP if zero_copy => {
                    !std::mem::replace(&mut connection.extra.is_zero_copy_refused, true)
                }
                _ => false,
            };
        if can_retry {
            connection.stalled_send = Some(stalled);
            self.to_send.push(index);
        } else {
            connection.is_broken = true;
        }
        self.to_cancel.push(index);
        self.advance(index);
    }

    /// Handles the completion of a blocking send.
    #[cold]
    fn on_blocking_send(&mut self, token: Token, result: i32) {
        let index = token.index();
        let Some(connection) = find_connection(&mut self.connections, token) else { return };
        let Some(stalled) = &mut connection.stalled_send else { return };
        stalled.in_flight = false;
        match usize::try_from(result) {
            Ok(bytes) => stalled.sent_bytes += bytes,
            Err(_) if matches!(errno(result), Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                connection.is_broken = true;
                self.to_cancel.push(index);
            }
        }
        if stalled.sent_bytes >= stalled.unsent.len() {
            swap(&mut stalled.unsent, &mut stalled.received);
            stalled.received = Vec::new();
            stalled.sent_bytes = 0;
        }
        if stalled.unsent.is_empty() {
            connection.stalled_send = None;
        } else {
            self.to_send.push(index);
        }
        self.advance(index);
    }

    /// Handles the completion of a failed cancellation. A request that is running on a worker thread is not always
    /// cancelled (`EALREADY`). A multishot receive then continues once the worker has armed it; if the connection was
    /// reset in the meantime, the receive may never complete (observed on Linux 6.18). The cancellation is therefore
    /// repeated.
    #[cold]
    fn on_cancel(&mut self, token: Token, result: i32) {
        let is_open = find_connection(&mut self.connections, token).is_some();
        if is_open && errno(result) == Errno::ALREADY {
            self.to_cancel.push(token.index());
        }
    }

    #[cold]
    fn on_accept(&mut self, result: i32, armed: bool) -> io::Result<()> {
        let registered_files = self.options().registered_files;
        if !armed {
            self.accept = AcceptState::Unarmed;
        }
        let socket = if result < 0 {
            self.free_file_slots += u32::from(registered_files);
            match AcceptError::from(errno(result)) {
                AcceptError::OutOfResources if !armed => self.accept = AcceptState::PauseDue,
                AcceptError::Fatal(errno) => return Err(errno.into()),
                AcceptError::WouldBlock | AcceptError::Transient | AcceptError::OutOfResources => {}
            }
            return Ok(());
        } else if registered_files {
            Socket::Registered(result as u32)
        } else {
            // SAFETY: the kernel opened this descriptor for this completion, and it has no other owner.
            Socket::Descriptor(unsafe { OwnedFd::from_raw_fd(result) })
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::default());
            (self.connections.len() - 1) as u32
        });
        self.connections[index as usize].socket = socket;
        self.to_arm.push(index);
        Ok(())
    }

    /// Performs the next action for the connection's state: receive again, or close once all data is sent and nothing
    /// is in flight.
    #[cold]
    fn advance(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if connection.needs_receive() {
            self.to_arm.push(index);
        } else if connection.is_finished() {
            while connection.chunk_count > 0 {
                let buffer_id = connection.pop_chunk(&mut self.pool);
                self.pool.recycle(buffer_id);
            }
            if let Socket::Registered(slot) = connection.reset() {
                self.to_close.push(slot);
            }
            self.free.push(index);
        }
    }
}
