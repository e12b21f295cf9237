//! Completion handling: updates the state of the connections.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::cqueue;
use rustix::io::Errno;

use super::Server;
use super::connection::{Chunk, Connection, MAX_CHUNKS, ReceiveTarget, Socket};
use crate::uring::accept::AcceptState;
use crate::uring::enter::errno;
use crate::uring::token::{Kind, Token};

impl Server<'_> {
    pub(super) fn handle_completion(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let (token, result, flags) = (Token(completion.user_data()), completion.result(), completion.flags());
        match token.kind() {
            Kind::Receive => self.on_receive(token, result, flags),
            Kind::Send => {
                self.on_send(token, result, flags);
                Ok(())
            }
            Kind::Accept => self.on_accept(result, cqueue::more(flags)),
            Kind::AcceptPause => {
                self.accept = AcceptState::Unarmed;
                Ok(())
            }
            Kind::Close => {
                self.free_file_slots += 1;
                Ok(())
            }
            Kind::CancelReceive | Kind::CancelSend => {
                self.on_cancel(token, result);
                Ok(())
            }
            // The completion of the target reports whether a timeout expired.
            Kind::Ignored | Kind::SendAll => Ok(()),
        }
    }

    fn on_accept(&mut self, result: i32, armed: bool) -> io::Result<()> {
        let Some(socket) = self.accept.on_completion(result, armed)? else {
            if self.options.registered_files {
                self.free_file_slots += 1;
            }
            return Ok(());
        };
        let socket = if self.options.registered_files {
            Socket::Registered(socket as u32)
        } else {
            // SAFETY: the kernel opened this descriptor for this completion, and it has no other owner.
            Socket::Descriptor(unsafe { OwnedFd::from_raw_fd(socket) })
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::vacant(0));
            (self.connections.len() - 1) as u32
        });
        self.connections[index as usize].socket = socket;
        self.mark_due(index);
        Ok(())
    }

    fn on_receive(&mut self, token: Token, result: i32, flags: u32) -> io::Result<()> {
        let (index, buffer) = (token.index(), cqueue::buffer_select(flags));
        let bytes = u32::try_from(result).unwrap_or(0);
        let connection =
            self.connections.get_mut(index as usize).filter(|connection| connection.matches_token(token));
        // A connection keeps its slot until its receive has completed.
        let Some(connection) = connection else { return Ok(()) };
        let target = connection.receive_target;
        if !cqueue::more(flags) {
            connection.receive_target = None;
        }
        match (buffer, target) {
            (Some(buffer_id), _) if bytes == 0 => self.buffers.recycle(buffer_id),
            (Some(first), _) => {
                let chunks = &mut connection.chunks;
                self.buffers
                    .take_received(first, bytes, |buffer_id| chunks.push_back(Chunk::Ring(buffer_id)));
            }
            (None, Some(ReceiveTarget::Connection(buffer_id))) if bytes == 0 => {
                connection.buffers_in_use[buffer_id] = false
            }
            (None, Some(ReceiveTarget::Connection(buffer_id))) => {
                connection.ring_exhausted = false;
                connection.chunks.push_back(Chunk::Connection { buffer_id, bytes });
            }
            (None, _) => {}
        }
        if connection.chunks.len() >= MAX_CHUNKS {
            self.turn.stop_receiving();
        }
        if result == 0 {
            connection.received_eof = true;
        } else if result < 0 {
            self.on_receive_error(index, errno(result))?;
        }
        self.mark_due(index);
        Ok(())
    }

    fn on_receive_error(&mut self, index: u32, errno: Errno) -> io::Result<()> {
        let connection = &mut self.connections[index as usize];
        match errno {
            Errno::NOBUFS => {
                self.turn.stop_receiving();
                connection.ring_exhausted = !self.buffers.grow();
            }
            // A receive that this server did not cancel was cancelled by its timeout.
            Errno::CANCELED if !connection.receive_cancelled && self.options.linked_timeout.is_some() => {
                connection.is_broken = true;
            }
            Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
            Errno::INVAL => {
                let reason = "receive rejected by the kernel: multishot requires Linux 6.0, bundles 6.10";
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
            _ => connection.is_broken = true,
        }
        Ok(())
    }

    fn on_send(&mut self, token: Token, result: i32, flags: u32) {
        let index = token.index();
        let connection =
            self.connections.get_mut(index as usize).filter(|connection| connection.matches_token(token));
        let Some(connection) = connection else { return };
        if cqueue::notif(flags) {
            connection.pending_notifications = connection.pending_notifications.saturating_sub(1);
            if connection.pending_notifications == 0 {
                self.release_buffers(index);
            }
            return self.mark_due(index);
        }
        if cqueue::more(flags) {
            connection.pending_notifications += 1;
        }
        let was_inline = connection.send_unconfirmed;
        connection.send_unconfirmed = false;
        match usize::try_from(result) {
            Ok(bytes) => self.record_sent(index, bytes),
            Err(_) => match errno(result) {
                // The send buffer is full, reported by a send that does not wait.
                Errno::AGAIN | Errno::INTR => self.record_sent(index, 0),
                // The locked-memory limit is reached, or the socket does not support zero copy.
                Errno::NOMEM | Errno::NOBUFS | Errno::OPNOTSUPP if !connection.zero_copy_refused => {
                    connection.zero_copy_refused = true;
                    self.record_sent(index, 0);
                }
                _ => {
                    connection.chunks_in_flight = 0;
                    connection.is_broken = true;
                }
            },
        }
        let connection = &mut self.connections[index as usize];
        connection.is_stalled = !connection.chunks.is_empty() && (was_inline || connection.is_stalled);
        self.mark_due(index);
    }

    /// Handles the completion of a cancellation. A request that is running on a worker thread is not always cancelled
    /// (`EALREADY`). A multishot receive then continues once the worker has armed it, and if the connection was reset
    /// in the meantime, it may never complete (observed on Linux 6.18). The cancellation is therefore repeated.
    fn on_cancel(&mut self, token: Token, result: i32) {
        let index = token.index();
        let connection =
            self.connections.get_mut(index as usize).filter(|connection| connection.matches_token(token));
        if let Some(connection) = connection.filter(|_| result == -Errno::ALREADY.raw_os_error()) {
            match token.kind() {
                Kind::CancelReceive => connection.receive_cancelled = false,
                _ => connection.send_cancelled = false,
            }
            self.mark_due(index);
        }
    }

    /// Confirms the submitted inline sends without a completion, which sent all bytes. Chunks that were received in
    /// the meantime follow them.
    pub(super) fn confirm_sends(&mut self) {
        if !self.submissions.is_empty() {
            return;
        }
        while let Some(index) = self.unconfirmed_sends.pop() {
            let connection = &mut self.connections[index as usize];
            if std::mem::take(&mut connection.send_unconfirmed) {
                self.record_sent(index, usize::MAX);
                self.mark_due(index);
            }
        }
    }

    /// Records that the send in flight sent `bytes` bytes, at most its length.
    fn record_sent(&mut self, index: u32, bytes: usize) {
        let connection = &mut self.connections[index as usize];
        let mut bytes = bytes.saturating_add(connection.sent_bytes);
        connection.sent_bytes = 0;
        for _ in 0..std::mem::take(&mut connection.chunks_in_flight) {
            let Some(&chunk) = connection.chunks.front() else { break };
            let length = match chunk {
                Chunk::Ring(buffer_id) => self.buffers.raw_chunk(buffer_id).1,
                Chunk::Connection { bytes, .. } => bytes,
            } as usize;
            if bytes < length {
                connection.sent_bytes = bytes;
                break;
            }
            bytes -= length;
            connection.chunks.pop_front();
            connection.zero_copy_chunks.push(chunk);
        }
        if connection.pending_notifications == 0 {
            self.release_buffers(index);
        }
    }

    /// Recycles the buffers of sent chunks, which the kernel no longer reads.
    fn release_buffers(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        for chunk in connection.zero_copy_chunks.drain(..) {
            match chunk {
                Chunk::Ring(buffer_id) => self.buffers.recycle(buffer_id),
                Chunk::Connection { buffer_id, .. } => connection.buffers_in_use[buffer_id] = false,
            }
        }
    }
}
