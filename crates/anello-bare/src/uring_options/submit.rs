//! What a connection's state asks for, as submissions.

use std::mem::{replace, take};
use std::os::fd::AsRawFd;
use std::ptr;

use io_uring::types::{DestinationSlot, Fd, Fixed};
use io_uring::{opcode, squeue};

use super::Server;
use super::connection::{Chunk, Connection, MOST_CHUNKS, Socket, Target};
use crate::options::SendCompletion;
use crate::uring::accept::{Accept, accept_many, pause};
use crate::uring::message::{Message, PARTS, SEND_ALL, SEND_NOW};
use crate::uring::pool::GROUP;
use crate::uring::token::{Kind, Token};

/// Most entries that one connection asks for at once: two cancellations, a send, a receive and its timeout, a close.
const MOST_ENTRIES: usize = 6;

impl Server<'_> {
    /// Queues all there is to do, as far as the submission queue has room.
    pub(super) fn submit(&mut self) {
        self.submissions.sync();
        // Not settled yet: the kernel left submissions behind.
        self.follow_up = !self.unsettled.is_empty();
        self.submit_accept();
        let mut due = take(&mut self.due);
        let mut done = 0;
        while done < due.len() && self.has_room(MOST_ENTRIES) {
            self.advance(due[done]);
            done += 1;
        }
        due.drain(..done);
        self.due = due;
        self.follow_up |= !self.due.is_empty();
    }

    fn has_room(&self, entries: usize) -> bool {
        self.submissions.capacity() - self.submissions.len() >= entries
    }

    fn submit_accept(&mut self) {
        if !self.has_room(1) {
            self.follow_up = true;
            return;
        }
        match self.accept {
            Accept::Wanted if self.options.registered_files => self.accept_registered(),
            Accept::Wanted => {
                self.push(accept_many(&self.listener), Token::new(Kind::Accept, 0, 0));
                self.accept = Accept::Armed;
            }
            Accept::PauseWanted => {
                self.push(pause(), Token::new(Kind::AcceptPause, 0, 0));
                self.accept = Accept::Paused;
            }
            Accept::Armed | Accept::Paused => {}
        }
    }

    /// Accepts one connection, and only if there is a place for it: the kernel accepts first, and drops a connection for
    /// which the table has none.
    fn accept_registered(&mut self) {
        if let Some(left) = self.places.checked_sub(1) {
            self.places = left;
            let listener = Fd(self.listener.as_raw_fd());
            let accept = opcode::Accept::new(listener, ptr::null_mut(), ptr::null_mut());
            let accept = accept.file_index(Some(DestinationSlot::auto_target())).build();
            self.push(accept, Token::new(Kind::Accept, 0, 0));
            self.accept = Accept::Armed;
        }
    }

    /// Queues an entry; the caller has seen that there is room.
    fn push(&mut self, entry: squeue::Entry, token: Token) {
        let entry = entry.user_data(token.0);
        // SAFETY: what an entry points to is a ring's buffer, an own buffer, a connection's message, the server's
        // deadline or a static; each stays where it is until the kernel is done with it (module invariants).
        // Descriptors are open.
        let pushed = unsafe { self.submissions.push(&entry) };
        debug_assert!(pushed.is_ok(), "room was looked for");
    }

    /// Queues a receive or a send, for a worker thread if that is forced.
    fn push_transfer(&mut self, entry: squeue::Entry, token: Token) {
        let forced = if self.options.forced_async { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        self.push(entry.flags(forced), token);
    }

    /// Does what the state of a connection asks for: send, receive, cancel, close.
    fn advance(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        connection.listed = false;
        let Some(target) = connection.socket.target() else { return };
        if connection.wants_to_send() {
            self.send(index, target);
        }
        if let Some(place) = self.connections[index as usize].wants_to_receive(self.options.own_buffers) {
            self.receive(index, target, place);
        }
        self.cancel(index);
        let connection = &self.connections[index as usize];
        self.follow_up |= connection.unsettled
            && (connection.chunks.len() > connection.in_flight || connection.receiving.is_none());
        if connection.is_over() {
            self.close(index);
        }
    }

    /// Sends the first chunks, as many as go into one send.
    fn send(&mut self, index: u32, (fd, file): (Fd, squeue::Flags)) {
        let connection = &mut self.connections[index as usize];
        let token = Token::new(Kind::Send, connection.generation, index);
        let way = match self.sends {
            SendCompletion::Inline if connection.stalled => SendCompletion::PerSend,
            SendCompletion::ZeroCopy if connection.copies => SendCompletion::PerSend,
            way => way,
        };
        let count = connection.chunks.len().min(PARTS);
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PARTS];
        for (part, chunk) in parts.iter_mut().zip(&connection.chunks) {
            let (start, bytes) = match *chunk {
                Chunk::Ring(number) => self.buffers.part(number),
                Chunk::Own { number, bytes } => (connection.own[number].as_ptr(), bytes),
            };
            *part = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes as usize };
        }
        // Less than all of the first was sent, or it would be gone.
        let first = &mut parts[0];
        first.iov_base = first.iov_base.wrapping_byte_add(connection.skip);
        first.iov_len = first.iov_len.saturating_sub(connection.skip);
        let (start, bytes) = (first.iov_base.cast_const().cast(), first.iov_len as u32);
        let flags = if way == SendCompletion::Inline { SEND_NOW } else { SEND_ALL };
        let entry = if count == 1 {
            match way {
                SendCompletion::ZeroCopy => opcode::SendZc::new(fd, start, bytes).flags(flags).build(),
                _ => opcode::Send::new(fd, start, bytes).flags(flags).build(),
            }
        } else {
            let message = connection.message.get_or_insert_with(|| Box::new(Message::empty()));
            message.parts = parts;
            let header = message.header_of(count);
            match way {
                SendCompletion::ZeroCopy => opcode::SendMsgZc::new(fd, header).flags(flags as u32).build(),
                _ => opcode::SendMsg::new(fd, header).flags(flags as u32).build(),
            }
        };
        connection.in_flight = count;
        connection.send_cancelled = false;
        connection.unsettled = way == SendCompletion::Inline;
        if way == SendCompletion::Inline {
            self.unsettled.push(index);
            self.push(entry.flags(file | squeue::Flags::SKIP_SUCCESS), token);
        } else {
            self.push_transfer(entry.flags(file), token);
        }
    }

    /// Receives, once or for good, into the ring's buffers or into one of the connection's own.
    fn receive(&mut self, index: u32, (fd, file): (Fd, squeue::Flags), place: Target) {
        let connection = &mut self.connections[index as usize];
        let token = Token::new(Kind::Receive, connection.generation, index);
        connection.receiving = Some(place);
        connection.receive_cancelled = false;
        let entry = match (place, self.multishot, self.options.bundles) {
            (Target::Own(number), _, _) => {
                connection.own_in_use[number] = true;
                let memory = &mut connection.own[number];
                memory.resize(self.own_buffer_bytes, 0);
                opcode::Recv::new(fd, memory.as_mut_ptr(), memory.len() as u32).build()
            }
            (Target::Ring, true, false) => opcode::RecvMulti::new(fd, GROUP).build(),
            (Target::Ring, true, true) => opcode::RecvMultiBundle::new(fd, GROUP).build(),
            (Target::Ring, false, true) => opcode::RecvBundle::new(fd, GROUP).build(),
            (Target::Ring, false, false) => {
                let receive = opcode::Recv::new(fd, ptr::null_mut(), 0).buf_group(GROUP);
                receive.build().flags(squeue::Flags::BUFFER_SELECT)
            }
        };
        let entry = entry.flags(file);
        if self.options.linked_timeout.is_none() {
            return self.push_transfer(entry, token);
        }
        self.push_transfer(entry.flags(squeue::Flags::IO_LINK), token);
        let timeout = opcode::LinkTimeout::new(&*self.deadline).build();
        self.push(timeout, Token::new(Kind::Ignored, 0, index));
    }

    /// Cancels what is in flight of a broken connection, and the receive of one that has received enough.
    fn cancel(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let enough = self.multishot && connection.chunks.len() >= MOST_CHUNKS;
        let receive = connection.receiving.is_some() && (connection.broken || enough);
        let send = connection.in_flight > 0 && !connection.unsettled && connection.broken;
        let cancel_receive = receive && !replace(&mut connection.receive_cancelled, true);
        let cancel_send = send && !replace(&mut connection.send_cancelled, true);
        let generation = connection.generation;
        let receive = (cancel_receive, Kind::Receive, Kind::CancelReceive);
        let send = (cancel_send, Kind::Send, Kind::CancelSend);
        for (wanted, target, kind) in [receive, send] {
            if wanted {
                let entry = opcode::AsyncCancel::new(Token::new(target, generation, index).0).build();
                self.push(entry.flags(squeue::Flags::SKIP_SUCCESS), Token::new(kind, generation, index));
            }
        }
    }

    /// Frees the place of a connection of which nothing is in flight.
    fn close(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        for chunk in take(&mut connection.chunks) {
            if let Chunk::Ring(number) = chunk {
                self.buffers.give_back(number);
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
