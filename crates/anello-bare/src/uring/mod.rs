//! `uring`: one `io_uring_enter(2)` per turn submits all entries and waits for the next completions. If more task
//! work is pending than one enter runs, further enters run it before anything is echoed.
//!
//! One multishot accept creates connections. One multishot receive per connection fills buffers from a shared buffer
//! ring. Received data is sent directly from those buffers with inline completion: MSG_DONTWAIT makes the kernel
//! accept only what fits into the send buffer, and IOSQE_CQE_SKIP_SUCCESS suppresses the completion if all bytes were
//! accepted. When the enter returns, a send without a completion is therefore complete and its buffers are free. A
//! short or rejected send posts a completion: the remaining bytes are copied out of the buffers, the connection stops
//! receiving, and a blocking send, which waits for room, sends the rest.
//!
//! ```text
//!            receive                 enter                   no completion
//!   idle ──────────────▶ chunks ──────────────▶ in flight ──────────────────▶ idle
//!                                                   │ short send
//!                                                   ▼       all sent, receive again
//!                                                stalled ───────────────────▶ idle
//! ```
//!
//! Invariants:
//! - Sends of one connection never overlap: either chunks are in flight, or one blocking send, or neither.
//! - The kernel accesses only the pool, `messages`, and the `unsent` bytes of a stalled connection whose send is in
//!   flight. None of them moves or is freed during that time: pool and messages live as long as the process, and a
//!   connection keeps its slot until its last completion.
//! - The lists of due work hold indices and are hints; the state of the connection decides.
//!
//! `uring_options` has its own connection state and event loop. The submodules here are shared by both.

pub(crate) mod accept;
mod connection;
pub(crate) mod enter;
pub(crate) mod message;
pub(crate) mod pool;
pub(crate) mod setup;
pub(crate) mod token;

use std::io;
use std::mem::{ManuallyDrop, swap, take};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::types::Fd;
use io_uring::{CompletionQueue, EnterFlags, SubmissionQueue, Submitter, cqueue, opcode, squeue};
use rustix::io::Errno;

use self::accept::{AcceptState, multishot_accept, pause_timeout};
use self::connection::{Connection, MAX_CHUNKS, StalledSend, find_connection};
use self::enter::{BUSY_PAUSE, Turn, enter, errno, flush_overflow, is_busy};
use self::message::{BLOCKING_SEND_FLAGS, INLINE_SEND_FLAGS, MAX_IOVECS, Message};
use self::pool::Pool;
use self::token::{Kind, Token};
use crate::options::Options;

/// Returns the names of the ring flags that this process can use.
pub(crate) fn check() -> io::Result<&'static str> {
    setup::build_ring("epoll").map(|(_, flags)| flags)
}

pub(crate) fn run(listener: TcpListener, options: &Options) -> io::Result<()> {
    let (mut ring, _) = setup::build_ring("epoll")?;
    let (mut submitter, submissions, completions) = ring.split();
    // Linux 5.18: saves the lookup of the descriptor. If it fails, the descriptor is used.
    let _registered = submitter.register_ring_fd().is_ok();
    let pool = Pool::new(&submitter, options.uring_buffers, options.uring_buffer_bytes)?;
    // Never dropped: after an error, requests in flight still access this memory and these descriptors.
    let mut server = ManuallyDrop::new(Server {
        submitter,
        submissions,
        completions,
        listener,
        accept: AcceptState::Unarmed,
        pool,
        messages: (0..MESSAGES).map(|_| Message::empty()).collect(),
        messages_used: 0,
        connections: Vec::new(),
        free: Vec::new(),
        to_send: Vec::new(),
        to_arm: Vec::new(),
        to_cancel: Vec::new(),
        sends_in_flight: Vec::new(),
        skip_wait: false,
        turn: Turn::default(),
    });
    server.serve()
}

/// Maximum number of gathered sends per turn. When no message is left, a connection sends one chunk at a time.
const MESSAGES: usize = 64;

struct Server<'ring> {
    submitter: Submitter<'ring>,
    submissions: SubmissionQueue<'ring>,
    completions: CompletionQueue<'ring>,
    listener: TcpListener,
    accept: AcceptState,
    pool: Pool,
    messages: Box<[Message]>,
    messages_used: usize,
    connections: Vec<Connection>,
    /// Indices of `connections` without a socket.
    free: Vec<u32>,
    /// Connections with chunks or unsent bytes.
    to_send: Vec<u32>,
    /// Connections that need to receive and have no receive in flight.
    to_arm: Vec<u32>,
    /// Connections with a receive or send in flight that must be cancelled.
    to_cancel: Vec<u32>,
    /// Connections of `to_send` that were submitted since the submission queue was last empty.
    sends_in_flight: Vec<u32>,
    /// Enter without waiting: some entries did not fit into the submission queue, or a send of this turn has a
    /// subsequent action (more chunks, a close, a receive) and only the return of the enter confirms the send.
    skip_wait: bool,
    turn: Turn,
}

impl Server<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.queue_submissions();
            self.pool.publish();
            let busy = self.enter()?;
            let mut reaped = self.reap()?;
            while self.turn.run_task_work(&self.submitter, &self.submissions) {
                reaped |= self.reap()?;
            }
            self.confirm_sends();
            if busy && !reaped {
                std::thread::sleep(BUSY_PAUSE);
            }
        }
    }

    // Submission.

    /// Queues all due entries for which the submission queue has room.
    #[inline]
    fn queue_submissions(&mut self) {
        // Not yet confirmed: the kernel did not consume all submissions.
        self.skip_wait = !self.sends_in_flight.is_empty();
        let mut done = 0;
        while let Some(&index) = self.to_send.get(done)
            && self.send(index)
        {
            done += 1;
        }
        if done == self.to_send.len() && self.sends_in_flight.is_empty() {
            swap(&mut self.sends_in_flight, &mut self.to_send);
        } else {
            self.sends_in_flight.extend(self.to_send.drain(..done));
            self.skip_wait = true;
        }
        if !self.to_arm.is_empty() || !self.to_cancel.is_empty() || self.accept != AcceptState::Armed {
            self.queue_rare_submissions();
        }
    }

    #[cold]
    fn queue_rare_submissions(&mut self) {
        let mut due = take(&mut self.to_cancel);
        let done = due.iter().take_while(|index| self.cancel(**index)).count();
        due.drain(..done);
        self.to_cancel = due;
        let mut due = take(&mut self.to_arm);
        let done = due.iter().take_while(|index| self.arm_receive(**index)).count();
        due.drain(..done);
        self.to_arm = due;
        match self.accept {
            AcceptState::Unarmed => {
                if self.push(multishot_accept(&self.listener), Token::new(Kind::Accept, 0, 0)) {
                    self.accept = AcceptState::Armed;
                }
            }
            AcceptState::PauseDue => {
                if self.push(pause_timeout(), Token::new(Kind::AcceptPause, 0, 0)) {
                    self.accept = AcceptState::Paused;
                }
            }
            AcceptState::Armed | AcceptState::Paused => {}
        }
        self.skip_wait |= !self.to_arm.is_empty()
            || !self.to_cancel.is_empty()
            || matches!(self.accept, AcceptState::Unarmed | AcceptState::PauseDue);
    }

    /// Returns `false` if the submission queue is full.
    #[inline]
    fn push(&mut self, entry: squeue::Entry, token: Token) -> bool {
        let entry = entry.user_data(token.0);
        // SAFETY: an entry points to the pool, a message, a stalled connection's `unsent` bytes or a static. Each
        // stays at its address until the kernel is done with it (module invariants). Descriptors are open.
        unsafe { self.submissions.push(&entry) }.is_ok()
    }

    /// Queues a send of the connection's data. Returns `false` if the submission queue is full.
    #[inline]
    fn send(&mut self, index: u32) -> bool {
        let connection = &mut self.connections[index as usize];
        let Some(socket) = &connection.socket else { return true };
        let fd = Fd(socket.as_raw_fd());
        if connection.is_broken || connection.chunks_in_flight > 0 {
            return true;
        }
        if connection.stalled_send.is_some() {
            return self.send_stalled(index, fd);
        }
        let count = connection.chunk_count;
        let token = Token::new(Kind::Send, connection.generation, index);
        let (entry, chunks) = match count {
            0 => return true,
            1 => {
                let (start, bytes) = self.pool.raw_chunk(connection.first_chunk);
                (opcode::Send::new(fd, start, bytes).flags(INLINE_SEND_FLAGS).build(), 1)
            }
            _ => self.gather_send(index, fd),
        };
        if !self.push(entry.flags(squeue::Flags::SKIP_SUCCESS), token) {
            return false;
        }
        let connection = &mut self.connections[index as usize];
        connection.chunks_in_flight = chunks;
        self.skip_wait |= chunks < count || !connection.receive_armed;
        true
    }

    /// Builds a gathered send and returns its number of chunks; without a free message, a send of one chunk.
    fn gather_send(&mut self, index: u32, fd: Fd) -> (squeue::Entry, u16) {
        let connection = &self.connections[index as usize];
        let mut buffer_id = connection.first_chunk;
        let Some(message) = self.messages.get_mut(self.messages_used) else {
            let (start, bytes) = self.pool.raw_chunk(buffer_id);
            return (opcode::Send::new(fd, start, bytes).flags(INLINE_SEND_FLAGS).build(), 1);
        };
        self.messages_used += 1;
        let chunks = connection.chunk_count.min(MAX_IOVECS as u16);
        for part in &mut message.iovecs[..usize::from(chunks)] {
            let (start, bytes) = self.pool.raw_chunk(buffer_id);
            *part = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes as usize };
            buffer_id = self.pool.chunk(buffer_id).next;
        }
        let header = message.prepare_header(chunks.into());
        (opcode::SendMsg::new(fd, header).flags(INLINE_SEND_FLAGS as u32).build(), chunks)
    }

    #[cold]
    fn send_stalled(&mut self, index: u32, fd: Fd) -> bool {
        let connection = &mut self.connections[index as usize];
        let Some(stalled) = connection.stalled_send.as_mut().filter(|stalled| !stalled.in_flight) else {
            return true;
        };
        let unsent = &stalled.unsent[stalled.sent_bytes..];
        // A send takes at most 4 GiB; another send follows.
        let bytes = u32::try_from(unsent.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(fd, unsent.as_ptr(), bytes).flags(BLOCKING_SEND_FLAGS).build();
        let token = Token::new(Kind::SendAll, connection.generation, index);
        stalled.in_flight = true;
        let is_queued = self.push(entry, token);
        if !is_queued && let Some(stalled) = &mut self.connections[index as usize].stalled_send {
            stalled.in_flight = false;
        }
        is_queued
    }

    fn arm_receive(&mut self, index: u32) -> bool {
        let connection = &self.connections[index as usize];
        let Some(socket) = connection.socket.as_ref().filter(|_| connection.needs_receive()) else {
            return true;
        };
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), pool::BUFFER_GROUP).build();
        let is_queued = self.push(entry, Token::new(Kind::Receive, connection.generation, index));
        self.connections[index as usize].receive_armed = is_queued;
        is_queued
    }

    fn cancel(&mut self, index: u32) -> bool {
        let connection = &self.connections[index as usize];
        let generation = connection.generation;
        let (receive_armed, send_broken) =
            (connection.receive_armed, connection.is_broken && connection.is_sending());
        let targets = [(receive_armed, Kind::Receive), (send_broken, Kind::SendAll)];
        targets.into_iter().filter(|(is_due, _)| *is_due).all(|(_, kind)| {
            let target = Token::new(kind, generation, index);
            let entry = opcode::AsyncCancel::new(target.0).build().flags(squeue::Flags::SKIP_SUCCESS);
            self.push(entry, Token::new(Kind::Ignored, generation, index))
        })
    }

    /// Submits the queued entries, and waits for a completion unless `skip_wait` is set. Returns `true` if the kernel
    /// lacks memory or completion queue space.
    #[inline]
    fn enter(&mut self) -> io::Result<bool> {
        self.submissions.sync();
        let (entries, wait_for) = (self.submissions.len(), (!self.skip_wait).into());
        let entered = enter(&self.submitter, entries, wait_for, EnterFlags::GETEVENTS);
        // The head of the queue shows which entries were consumed; the result of the call does not.
        self.submissions.sync();
        is_busy(entered)
    }

    // Completion.

    /// Handles all completions, including those in the kernel's overflow list. Returns `true` if there were any.
    #[inline]
    fn reap(&mut self) -> io::Result<bool> {
        let mut has_completions = false;
        loop {
            self.completions.sync();
            while let Some(completion) = self.completions.next() {
                has_completions = true;
                self.handle_completion(&completion)?;
            }
            self.completions.sync();
            if !self.submissions.cq_overflow() {
                return Ok(has_completions);
            }
            flush_overflow(&self.submitter)?;
        }
    }

    /// Confirms the submitted sends without a completion, which sent all bytes, and recycles their buffers. Chunks
    /// that were received in the meantime follow them in the list.
    #[inline]
    fn confirm_sends(&mut self) {
        if !self.submissions.is_empty() {
            return;
        }
        self.messages_used = 0;
        for position in 0..self.sends_in_flight.len() {
            let index = self.sends_in_flight[position];
            let connection = &mut self.connections[index as usize];
            for _ in 0..take(&mut connection.chunks_in_flight) {
                let buffer_id = connection.pop_chunk(&mut self.pool);
                self.pool.recycle(buffer_id);
            }
            if connection.chunk_count > 0 {
                self.to_send.push(index);
            }
            if !connection.receive_armed {
                self.advance(index);
            }
        }
        self.sends_in_flight.clear();
    }

    /// Handles the completion of an inline send, which sent only a part or nothing, or failed.
    #[cold]
    fn on_short_send(&mut self, token: Token, result: i32) {
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
            self.pool.recycle(buffer_id);
        }
        if result >= 0 || errno(result) == Errno::AGAIN {
            connection.stalled_send = Some(stalled);
            self.to_send.push(index);
        } else {
            connection.is_broken = true;
        }
        self.to_cancel.push(index);
        self.advance(index);
    }

    #[inline]
    fn handle_completion(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let token = Token(completion.user_data());
        match token.kind() {
            Kind::Receive => self.on_receive(token, completion.result(), completion.flags()),
            Kind::SendAll => {
                self.on_blocking_send(token, completion.result());
                Ok(())
            }
            Kind::Accept => self.on_accept(completion.result(), cqueue::more(completion.flags())),
            Kind::AcceptPause => {
                self.accept = AcceptState::Unarmed;
                Ok(())
            }
            Kind::Send => {
                self.on_short_send(token, completion.result());
                Ok(())
            }
            // The completion of the target reports whether a cancellation succeeded.
            Kind::Ignored | Kind::Close | Kind::CancelReceive | Kind::CancelSend => Ok(()),
        }
    }

    #[inline]
    fn on_receive(&mut self, token: Token, result: i32, flags: u32) -> io::Result<()> {
        let index = token.index();
        let buffer = cqueue::buffer_select(flags);
        let Some(connection) = find_connection(&mut self.connections, token) else {
            buffer.into_iter().for_each(|buffer_id| self.pool.recycle(buffer_id));
            return Ok(());
        };
        connection.receive_armed = cqueue::more(flags);
        if let Some(buffer_id) = buffer {
            self.pool.mark_received(buffer_id, result.try_into().unwrap_or(0));
            if result <= 0 || connection.is_broken {
                self.pool.recycle(buffer_id);
                self.to_cancel.push(index);
            } else if let Some(stalled) = &mut connection.stalled_send {
                stalled.received.extend_from_slice(self.pool.bytes(buffer_id));
                self.pool.recycle(buffer_id);
                self.turn.stop_receiving();
                self.to_cancel.push(index);
            } else {
                connection.push_chunk(&mut self.pool, buffer_id);
                match connection.chunk_count {
                    1 => self.to_send.push(index),
                    MAX_CHUNKS.. => {
                        self.turn.stop_receiving();
                        self.to_cancel.push(index);
                    }
                    _ => {}
                }
            }
        }
        if result > 0 && connection.receive_armed { Ok(()) } else { self.on_receive_end(index, result) }
    }

    /// Handles the end of a multishot receive, which can be EOF.
    #[cold]
    fn on_receive_end(&mut self, index: u32, result: i32) -> io::Result<()> {
        let connection = &mut self.connections[index as usize];
        if result == 0 {
            connection.received_eof = true;
        } else if result < 0 {
            match errno(result) {
                Errno::NOBUFS => {
                    self.turn.stop_receiving();
                    self.pool.grow();
                }
                Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                Errno::INVAL => {
                    let reason =
                        "multishot receive unavailable: it requires Linux 6.0 or later (or use epoll)";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
                }
                _ => {
                    connection.is_broken = true;
                    self.to_cancel.push(index);
                }
            }
        }
        self.advance(index);
        Ok(())
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

    fn on_accept(&mut self, result: i32, armed: bool) -> io::Result<()> {
        if let Some(socket) = self.accept.on_completion(result, armed)? {
            // SAFETY: the kernel opened this descriptor for this completion, and it has no other owner.
            self.add_connection(unsafe { OwnedFd::from_raw_fd(socket) });
        }
        Ok(())
    }

    // Connections.

    fn add_connection(&mut self, socket: OwnedFd) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::vacant(0));
            (self.connections.len() - 1) as u32
        });
        self.connections[index as usize].socket = Some(socket);
        self.to_arm.push(index);
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
            *connection = Connection::vacant(Token::next_generation(connection.generation));
            self.free.push(index);
        }
    }
}
