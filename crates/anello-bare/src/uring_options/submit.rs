//! Submission of the entries that the state of the connections requires.

use std::mem::{replace, take};
use std::os::fd::AsRawFd;
use std::ptr;

use io_uring::types::{DestinationSlot, Fd, Fixed};
use io_uring::{opcode, squeue};

use super::Server;
use super::connection::{Chunk, Connection, MAX_CHUNKS, ReceiveTarget, Socket};
use crate::options::SendCompletion;
use crate::uring::accept::{AcceptState, multishot_accept, pause_timeout};
use crate::uring::message::{BLOCKING_SEND_FLAGS, INLINE_SEND_FLAGS, MAX_IOVECS, Message};
use crate::uring::pool::BUFFER_GROUP;
use crate::uring::token::{Kind, Token};

/// Maximum number of entries that one connection needs at once: two cancellations, a send, a receive with its
/// timeout, a close.
const MAX_ENTRIES_PER_CONNECTION: usize = 6;

impl Server<'_> {
    /// Queues all due entries for which the submission queue has room.
    pub(super) fn submit(&mut self) {
        self.submissions.sync();
        // Not yet confirmed: the kernel did not consume all submissions.
        self.skip_wait = !self.unconfirmed_sends.is_empty();
        self.submit_accept();
        let mut due = take(&mut self.due);
        let mut done = 0;
        while done < due.len() && self.has_room(MAX_ENTRIES_PER_CONNECTION) {
            self.advance(due[done]);
            done += 1;
        }
        due.drain(..done);
        self.due = due;
        self.skip_wait |= !self.due.is_empty();
    }

    fn has_room(&self, entries: usize) -> bool {
        self.submissions.capacity() - self.submissions.len() >= entries
    }

    fn submit_accept(&mut self) {
        if !self.has_room(1) {
            self.skip_wait = true;
            return;
        }
        match self.accept {
            AcceptState::Unarmed if self.options.registered_files => self.accept_registered(),
            AcceptState::Unarmed => {
                self.push(multishot_accept(&self.listener), Token::new(Kind::Accept, 0, 0));
                self.accept = AcceptState::Armed;
            }
            AcceptState::PauseDue => {
                self.push(pause_timeout(), Token::new(Kind::AcceptPause, 0, 0));
                self.accept = AcceptState::Paused;
            }
            AcceptState::Armed | AcceptState::Paused => {}
        }
    }

    /// Accepts one connection if the table of registered files has a free slot. The kernel accepts first, and drops a
    /// connection for which the table has no slot.
    fn accept_registered(&mut self) {
        if let Some(left) = self.free_file_slots.checked_sub(1) {
            self.free_file_slots = left;
            let listener = Fd(self.listener.as_raw_fd());
            let accept = opcode::Accept::new(listener, ptr::null_mut(), ptr::null_mut());
            let accept = accept.file_index(Some(DestinationSlot::auto_target())).build();
            self.push(accept, Token::new(Kind::Accept, 0, 0));
            self.accept = AcceptState::Armed;
        }
    }

    /// Queues an entry. The caller has checked that there is room.
    fn push(&mut self, entry: squeue::Entry, token: Token) {
        let entry = entry.user_data(token.0);
        // SAFETY: an entry points to a ring's buffer, a connection's buffer or message, the server's timeout or a
        // static. Each stays at its address until the kernel is done with it (module invariants). Descriptors are
        // open.
        let pushed = unsafe { self.submissions.push(&entry) };
        debug_assert!(pushed.is_ok(), "submission queue has room");
    }

    /// Queues a receive or a send, for a worker thread with `forced_async`.
    fn push_transfer(&mut self, entry: squeue::Entry, token: Token) {
        let forced = if self.options.forced_async { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        self.push(entry.flags(forced), token);
    }

    /// Performs the next actions for the state of a connection: send, receive, cancel, close.
    fn advance(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        connection.is_due = false;
        let Some(target) = connection.socket.target() else { return };
        if connection.can_send() {
            self.send(index, target);
        }
        if let Some(destination) =
            self.connections[index as usize].next_receive_target(self.options.per_connection_buffers)
        {
            self.receive(index, target, destination);
        }
        self.cancel(index);
        let connection = &self.connections[index as usize];
        self.skip_wait |= connection.send_unconfirmed
            && (connection.chunks.len() > connection.chunks_in_flight || connection.receive_target.is_none());
        if connection.is_finished() {
            self.close(index);
        }
    }

    /// Queues a send of as many chunks as fit into one send.
    fn send(&mut self, index: u32, (fd, file): (Fd, squeue::Flags)) {
        let connection = &mut self.connections[index as usize];
        let token = Token::new(Kind::Send, connection.generation, index);
        let completion = match self.send_completion {
            SendCompletion::Inline if connection.is_stalled => SendCompletion::PerSend,
            SendCompletion::ZeroCopy if connection.zero_copy_refused => SendCompletion::PerSend,
            completion => completion,
        };
        let count = connection.chunks.len().min(MAX_IOVECS);
        let mut iovecs = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MAX_IOVECS];
        for (part, chunk) in iovecs.iter_mut().zip(&connection.chunks) {
            let (start, bytes) = match *chunk {
                Chunk::Ring(buffer_id) => self.buffers.raw_chunk(buffer_id),
                Chunk::Connection { buffer_id, bytes } => (connection.buffers[buffer_id].as_ptr(), bytes),
            };
            *part = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes as usize };
        }
        // The first chunk is not completely sent, or it would have been removed.
        let first = &mut iovecs[0];
        first.iov_base = first.iov_base.wrapping_byte_add(connection.sent_bytes);
        first.iov_len = first.iov_len.saturating_sub(connection.sent_bytes);
        let (start, bytes) = (first.iov_base.cast_const().cast(), first.iov_len as u32);
        let flags =
            if completion == SendCompletion::Inline { INLINE_SEND_FLAGS } else { BLOCKING_SEND_FLAGS };
        let entry = if count == 1 {
            match completion {
                SendCompletion::ZeroCopy => opcode::SendZc::new(fd, start, bytes).flags(flags).build(),
                _ => opcode::Send::new(fd, start, bytes).flags(flags).build(),
            }
        } else {
            let message = connection.message.get_or_insert_with(|| Box::new(Message::empty()));
            message.iovecs = iovecs;
            let header = message.prepare_header(count);
            match completion {
                SendCompletion::ZeroCopy => opcode::SendMsgZc::new(fd, header).flags(flags as u32).build(),
                _ => opcode::SendMsg::new(fd, header).flags(flags as u32).build(),
            }
        };
        connection.chunks_in_flight = count;
        connection.send_cancelled = false;
        connection.send_unconfirmed = completion == SendCompletion::Inline;
        if completion == SendCompletion::Inline {
            self.unconfirmed_sends.push(index);
            self.push(entry.flags(file | squeue::Flags::SKIP_SUCCESS), token);
        } else {
            self.push_transfer(entry.flags(file), token);
        }
    }

    /// Queues a one-shot or multishot receive into the ring's buffers or into a buffer of the connection.
    fn receive(&mut self, index: u32, (fd, file): (Fd, squeue::Flags), target: ReceiveTarget) {
        let connection = &mut self.connections[index as usize];
        let token = Token::new(Kind::Receive, connection.generation, index);
        connection.receive_target = Some(target);
        connection.receive_cancelled = false;
        let entry = match (target, self.multishot, self.options.bundles) {
            (ReceiveTarget::Connection(buffer_id), _, _) => {
                connection.buffers_in_use[buffer_id] = true;
                let memory = &mut connection.buffers[buffer_id];
                memory.resize(self.connection_buffer_bytes, 0);
                opcode::Recv::new(fd, memory.as_mut_ptr(), memory.len() as u32).build()
            }
            (ReceiveTarget::Ring, true, false) => opcode::RecvMulti::new(fd, BUFFER_GROUP).build(),
            (ReceiveTarget::Ring, true, true) => opcode::RecvMultiBundle::new(fd, BUFFER_GROUP).build(),
            (ReceiveTarget::Ring, false, true) => opcode::RecvBundle::new(fd, BUFFER_GROUP).build(),
            (ReceiveTarget::Ring, false, false) => {
                let receive = opcode::Recv::new(fd, ptr::null_mut(), 0).buf_group(BUFFER_GROUP);
                receive.build().flags(squeue::Flags::BUFFER_SELECT)
            }
        };
        let entry = entry.flags(file);
        if self.options.linked_timeout.is_none() {
            return self.push_transfer(entry, token);
        }
        self.push_transfer(entry.flags(squeue::Flags::IO_LINK), token);
        let timeout = opcode::LinkTimeout::new(&*self.linked_timeout).build();
        self.push(timeout, Token::new(Kind::Ignored, 0, index));
    }

    /// Cancels the operations in flight of a broken connection, and the receive of one with the maximum number of
    /// chunks.
    fn cancel(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let enough = self.multishot && connection.chunks.len() >= MAX_CHUNKS;
        let receive = connection.receive_target.is_some() && (connection.is_broken || enough);
        let send = connection.chunks_in_flight > 0 && !connection.send_unconfirmed && connection.is_broken;
        let cancel_receive = receive && !replace(&mut connection.receive_cancelled, true);
        let cancel_send = send && !replace(&mut connection.send_cancelled, true);
        let generation = connection.generation;
        let receive = (cancel_receive, Kind::Receive, Kind::CancelReceive);
        let send = (cancel_send, Kind::Send, Kind::CancelSend);
        for (is_due, target, kind) in [receive, send] {
            if is_due {
                let entry = opcode::AsyncCancel::new(Token::new(target, generation, index).0).build();
                self.push(entry.flags(squeue::Flags::SKIP_SUCCESS), Token::new(kind, generation, index));
            }
        }
    }

    /// Frees the slot of a connection with nothing in flight.
    fn close(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        for chunk in take(&mut connection.chunks) {
            if let Chunk::Ring(buffer_id) = chunk {
                self.buffers.recycle(buffer_id);
            }
        }
        let next = Connection::vacant(Token::next_generation(connection.generation));
        let closed = replace(connection, next);
        self.free.push(index);
        if let Socket::Registered(slot) = closed.socket {
            self.push(opcode::Close::new(Fixed(slot)).build(), Token::new(Kind::Close, 0, index));
        }
    }
}
