//! Submission of due work.

use std::mem::{swap, take};
use std::os::fd::AsRawFd;
use std::ptr;

use io_uring::types::{DestinationSlot, Fd, Fixed, Timespec};
use io_uring::{opcode, squeue};

use super::connection::MAX_CHUNKS;
use super::pool::BUFFER_GROUP;
use super::server::{AcceptState, MAX_IOVECS, Server};
use super::token::{Kind, Token};
use crate::accept::ACCEPT_PAUSE;

/// Flags for a send with inline completion, which sends only the bytes that fit into the send buffer and reports a
/// short count if some do not.
const INLINE_SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
/// Flags for a blocking send, which waits until all bytes are accepted.
const BLOCKING_SEND_FLAGS: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

static ACCEPT_PAUSE_TIMESPEC: Timespec = Timespec::new().nsec(ACCEPT_PAUSE.subsec_nanos());

impl<const CONFIGURABLE: bool> Server<'_, CONFIGURABLE> {
    /// Queues all due entries that fit into the submission queue.
    #[inline]
    pub(super) fn queue_submissions(&mut self) {
        // If the kernel did not consume all submissions, sends are still unconfirmed: do not wait.
        self.skip_wait = !self.sends_in_flight.is_empty();
        if !self.to_arm.is_empty()
            || !self.to_cancel.is_empty()
            || CONFIGURABLE && !self.to_close.is_empty()
            || self.accept != AcceptState::Armed
        {
            self.queue_rare_submissions();
        }
        let mut done = 0;
        while let Some(&index) = self.to_send.get(done)
            && self.send(index)
        {
            done += 1;
        }
        if !self.options().completes_sends_inline() {
            self.to_send.drain(..done);
            self.skip_wait |= !self.to_send.is_empty();
        } else if done == self.to_send.len() && self.sends_in_flight.is_empty() {
            swap(&mut self.sends_in_flight, &mut self.to_send);
        } else {
            self.sends_in_flight.extend(self.to_send.drain(..done));
            self.skip_wait = true;
        }
    }

    #[cold]
    fn queue_rare_submissions(&mut self) {
        self.queue_all(|server| &mut server.to_cancel, Self::cancel);
        self.queue_all(|server| &mut server.to_arm, Self::arm_receive);
        self.queue_all(
            |server| &mut server.to_close,
            |server, slot| {
                server.push(opcode::Close::new(Fixed(slot)).build(), Token::new(Kind::Close, 0, slot))
            },
        );
        let is_queued = match self.accept {
            AcceptState::Unarmed => self.accept(),
            AcceptState::PauseDue => {
                let timeout = opcode::Timeout::new(&ACCEPT_PAUSE_TIMESPEC).build();
                let is_queued = self.push(timeout, Token::new(Kind::AcceptPause, 0, 0));
                if is_queued {
                    self.accept = AcceptState::Paused;
                }
                is_queued
            }
            AcceptState::Armed | AcceptState::Paused => true,
        };
        self.skip_wait |= !is_queued;
    }

    /// Removes items from a list and queues their entries until the submission queue is full.
    fn queue_all(&mut self, list: fn(&mut Self) -> &mut Vec<u32>, queue: fn(&mut Self, u32) -> bool) {
        let mut due = take(list(self));
        let done = due.iter().take_while(|item| queue(self, **item)).count();
        due.drain(..done);
        self.skip_wait |= !due.is_empty();
        *list(self) = due;
    }

    fn accept(&mut self) -> bool {
        let listener = Fd(self.listener.as_raw_fd());
        let entry = if !self.options().registered_files {
            opcode::AcceptMulti::new(listener).flags(libc::SOCK_CLOEXEC).build()
        } else if self.free_file_slots == 0 {
            return true;
        } else {
            // An accept request needs a free slot, because the kernel accepts a connection first and drops it if no
            // slot is free.
            let accept = opcode::Accept::new(listener, ptr::null_mut(), ptr::null_mut());
            accept.file_index(Some(DestinationSlot::auto_target())).build()
        };
        let is_queued = self.push(entry, Token::new(Kind::Accept, 0, 0));
        if is_queued {
            self.accept = AcceptState::Armed;
            self.free_file_slots = self.free_file_slots.saturating_sub(1);
        }
        is_queued
    }

    /// Returns the flags for all receives and sends.
    #[inline]
    fn transfer_flags(&self) -> squeue::Flags {
        let options = self.options();
        let mut flags = squeue::Flags::empty();
        if options.registered_files {
            flags |= squeue::Flags::FIXED_FILE;
        }
        if options.forced_async {
            flags |= squeue::Flags::ASYNC;
        }
        flags
    }

    /// Queues a send of the connection's data. Returns `false` if the submission queue is full.
    #[inline]
    fn send(&mut self, index: u32) -> bool {
        let connection = &self.connections[index as usize];
        let Some(fd) = connection.socket.fd() else { return true };
        if connection.is_broken || connection.chunks_in_flight > 0 {
            return true;
        }
        if connection.stalled_send.is_some() {
            return self.send_stalled(index, fd);
        }
        let zero_copy = self.options().zero_copy_sends && !connection.extra.is_zero_copy_refused;
        if zero_copy && connection.extra.zero_copy_chunks.len() >= MAX_CHUNKS.into() {
            return true;
        }
        let count = connection.chunk_count;
        let token = Token::new(Kind::Send, connection.generation, index);
        let (entry, chunks) = match count {
            0 => return true,
            1 => (self.single_send(connection.first_chunk, fd, zero_copy), 1),
            _ => self.gather_send(index, fd, zero_copy),
        };
        let is_inline = self.options().completes_sends_inline();
        let success = if is_inline { squeue::Flags::SKIP_SUCCESS } else { squeue::Flags::empty() };
        if !self.push(entry.flags(self.transfer_flags() | success), token) {
            return false;
        }
        let connection = &mut self.connections[index as usize];
        connection.chunks_in_flight = chunks;
        self.skip_wait |= is_inline && (chunks < count || !connection.receive_armed);
        true
    }

    #[inline]
    fn single_send(&self, buffer_id: u32, fd: Fd, zero_copy: bool) -> squeue::Entry {
        let (start, bytes) = self.pool.raw_chunk(buffer_id);
        if zero_copy {
            opcode::SendZc::new(fd, start, bytes).flags(INLINE_SEND_FLAGS).build()
        } else {
            opcode::Send::new(fd, start, bytes).flags(INLINE_SEND_FLAGS).build()
        }
    }

    /// Builds a gathered send, or a send of one chunk if every `Message` is in use. Returns the send and its number of
    /// chunks.
    fn gather_send(&mut self, index: u32, fd: Fd, zero_copy: bool) -> (squeue::Entry, u16) {
        let connection = &self.connections[index as usize];
        let mut buffer_id = connection.first_chunk;
        let Some(message) = self.messages.get_mut(self.messages_used) else {
            return (self.single_send(buffer_id, fd, zero_copy), 1);
        };
        self.messages_used += 1;
        let chunks = connection.chunk_count.min(MAX_IOVECS as u16);
        for part in &mut message.iovecs[..usize::from(chunks)] {
            let (start, bytes) = self.pool.raw_chunk(buffer_id);
            *part = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes as usize };
            buffer_id = self.pool.chunk(buffer_id).next;
        }
        let header = message.prepare_header(chunks.into());
        let flags = INLINE_SEND_FLAGS as u32;
        let entry = if zero_copy {
            opcode::SendMsgZc::new(fd, header).flags(flags).build()
        } else {
            opcode::SendMsg::new(fd, header).flags(flags).build()
        };
        (entry, chunks)
    }

    #[cold]
    fn send_stalled(&mut self, index: u32, fd: Fd) -> bool {
        let connection = &mut self.connections[index as usize];
        let Some(stalled) = connection.stalled_send.as_mut().filter(|stalled| !stalled.in_flight) else {
            return true;
        };
        let unsent = &stalled.unsent[stalled.sent_bytes..];
        // A send is limited to 4 GiB; another send follows.
        let bytes = u32::try_from(unsent.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(fd, unsent.as_ptr(), bytes).flags(BLOCKING_SEND_FLAGS).build();
        let token = Token::new(Kind::SendAll, connection.generation, index);
        let is_queued = self.push(entry.flags(self.transfer_flags()), token);
        if let Some(stalled) = &mut self.connections[index as usize].stalled_send {
            stalled.in_flight = is_queued;
        }
        is_queued
    }

    /// Queues a receive into the ring's buffers or into a connection buffer. Returns `false` if the submission queue is
    /// full.
    fn arm_receive(&mut self, index: u32) -> bool {
        // The queue must have room for a receive and its timeout.
        if self.submissions.capacity() - self.submissions.len() < 2 {
            return false;
        }
        let options = self.options();
        let connection = &mut self.connections[index as usize];
        let Some(fd) = connection.socket.fd().filter(|_| connection.needs_receive()) else { return true };
        let entry = if options.per_connection_buffers || connection.extra.is_ring_exhausted {
            let first = *connection.extra.own_buffers.get_or_insert_with(|| self.pool.add_own_buffers());
            // If both buffers are in use, the receive is queued when one is recycled.
            let Some((buffer_id, start, bytes)) = self.pool.take_own_buffer(first) else { return true };
            connection.extra.own_receive = Some(buffer_id);
            opcode::Recv::new(fd, start, bytes).build()
        } else {
            match (options.uses_multishot_receive(), options.bundles) {
                (true, false) => opcode::RecvMulti::new(fd, BUFFER_GROUP).build(),
                (true, true) => opcode::RecvMultiBundle::new(fd, BUFFER_GROUP).build(),
                (false, true) => opcode::RecvBundle::new(fd, BUFFER_GROUP).build(),
                (false, false) => {
                    let receive = opcode::Recv::new(fd, ptr::null_mut(), 0).buf_group(BUFFER_GROUP);
                    receive.build().flags(squeue::Flags::BUFFER_SELECT)
                }
            }
        };
        connection.receive_armed = true;
        let token = Token::new(Kind::Receive, connection.generation, index);
        let entry = entry.flags(self.transfer_flags());
        if options.linked_timeout.is_none() {
            return self.push(entry, token);
        }
        let timeout = opcode::LinkTimeout::new(&raw const self.linked_timeout).build();
        self.push(entry.flags(squeue::Flags::IO_LINK), token)
            && self.push(timeout, Token::new(Kind::Timeout, 0, index))
    }

    /// Cancels the in-flight operations of a broken connection, or the multishot receive of a connection that must stop
    /// receiving. Returns `false` if the submission queue is full.
    fn cancel(&mut self, index: u32) -> bool {
        let connection = &self.connections[index as usize];
        let generation = connection.generation;
        let must_stop = connection.is_broken || self.options().uses_multishot_receive();
        let targets = [
            (connection.receive_armed && must_stop, Kind::Receive),
            (connection.is_broken && connection.is_sending(), Kind::SendAll),
        ];
        targets.into_iter().filter(|(is_due, _)| *is_due).all(|(_, kind)| {
            let target = Token::new(kind, generation, index);
            let entry = opcode::AsyncCancel::new(target.0).build().flags(squeue::Flags::SKIP_SUCCESS);
            self.push(entry, Token::new(Kind::Cancel, generation, index))
        })
    }
}
