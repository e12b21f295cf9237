//! What came of the submissions, as changes of the connections' state.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::cqueue;
use rustix::io::Errno;

use super::Server;
use super::connection::{Chunk, Connection, MOST_CHUNKS, Socket, Target};
use crate::uring::accept::Accept;
use crate::uring::enter::errno;
use crate::uring::token::{Kind, Token};

impl Server<'_> {
    pub(super) fn complete(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let (token, result, flags) = (Token(completion.user_data()), completion.result(), completion.flags());
        match token.kind() {
            Kind::Receive => self.received(token, result, flags),
            Kind::Send => {
                self.send_completed(token, result, flags);
                Ok(())
            }
            Kind::Accept => self.accepted(result, cqueue::more(flags)),
            Kind::AcceptPause => {
                self.accept = Accept::Wanted;
                Ok(())
            }
            Kind::Close => {
                self.places += 1;
                Ok(())
            }
            Kind::CancelReceive | Kind::CancelSend => {
                self.not_cancelled(token, result);
                Ok(())
            }
            // Whether a timeout found its target is told by the target's own completion.
            Kind::Ignored | Kind::SendAll => Ok(()),
        }
    }

    fn accepted(&mut self, result: i32, armed: bool) -> io::Result<()> {
        let Some(socket) = self.accept.completed(result, armed)? else {
            if self.options.registered_files {
                self.places += 1;
            }
            return Ok(());
        };
        let socket = if self.options.registered_files {
            Socket::Registered(socket as u32)
        } else {
            // SAFETY: the kernel opened this descriptor for this completion, and nobody else has it.
            Socket::Descriptor(unsafe { OwnedFd::from_raw_fd(socket) })
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::vacant(0));
            (self.connections.len() - 1) as u32
        });
        self.connections[index as usize].socket = socket;
        self.list(index);
        Ok(())
    }

    fn received(&mut self, token: Token, result: i32, flags: u32) -> io::Result<()> {
        let (index, buffer) = (token.index(), cqueue::buffer_select(flags));
        let bytes = u32::try_from(result).unwrap_or(0);
        let found =
            self.connections.get_mut(index as usize).filter(|connection| connection.is_found_by(token));
        // A connection keeps its place until its receive has ended.
        let Some(connection) = found else { return Ok(()) };
        let place = connection.receiving;
        if !cqueue::more(flags) {
            connection.receiving = None;
        }
        match (buffer, place) {
            (Some(number), _) if bytes == 0 => self.buffers.give_back(number),
            (Some(first), _) => {
                let chunks = &mut connection.chunks;
                self.buffers.take(first, bytes, |number| chunks.push_back(Chunk::Ring(number)));
            }
            (None, Some(Target::Own(number))) if bytes == 0 => connection.own_in_use[number] = false,
            (None, Some(Target::Own(number))) => {
                connection.no_buffer = false;
                connection.chunks.push_back(Chunk::Own { number, bytes });
            }
            (None, _) => {}
        }
        if connection.chunks.len() >= MOST_CHUNKS {
            self.turn.fill();
        }
        if result == 0 {
            connection.ended = true;
        } else if result < 0 {
            self.receive_failed(index, errno(result))?;
        }
        self.list(index);
        Ok(())
    }

    fn receive_failed(&mut self, index: u32, errno: Errno) -> io::Result<()> {
        let connection = &mut self.connections[index as usize];
        match errno {
            Errno::NOBUFS => {
                self.turn.fill();
                connection.no_buffer = !self.buffers.grow();
            }
            // Only a timeout cancels a receive that was not to be cancelled.
            Errno::CANCELED if !connection.receive_cancelled && self.options.linked_timeout.is_some() => {
                connection.broken = true;
            }
            Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
            Errno::INVAL => {
                let reason =
                    "the kernel refuses this way to receive: multishot needs Linux 6.0, bundles 6.10";
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
            _ => connection.broken = true,
        }
        Ok(())
    }

    fn send_completed(&mut self, token: Token, result: i32, flags: u32) {
        let index = token.index();
        let found =
            self.connections.get_mut(index as usize).filter(|connection| connection.is_found_by(token));
        let Some(connection) = found else { return };
        if cqueue::notif(flags) {
            connection.notifications = connection.notifications.saturating_sub(1);
            if connection.notifications == 0 {
                self.let_go(index);
            }
            return self.list(index);
        }
        if cqueue::more(flags) {
            connection.notifications += 1;
        }
        let at_submission = connection.unsettled;
        connection.unsettled = false;
        match usize::try_from(result) {
            Ok(bytes) => self.sent(index, bytes),
            Err(_) => match errno(result) {
                // No room, told by a send that does not wait.
                Errno::AGAIN | Errno::INTR => self.sent(index, 0),
                // Out of the memory that may be pinned, or no zero copy on this socket.
                Errno::NOMEM | Errno::NOBUFS | Errno::OPNOTSUPP if !connection.copies => {
                    connection.copies = true;
                    self.sent(index, 0);
                }
                _ => {
                    connection.in_flight = 0;
                    connection.broken = true;
                }
            },
        }
        let connection = &mut self.connections[index as usize];
        connection.stalled = !connection.chunks.is_empty() && (at_submission || connection.stalled);
        self.list(index);
    }

    /// A request that a worker thread has at this moment is not always cancelled (`EALREADY`): a multishot receive goes on
    /// when the worker has armed it, and of a connection that was reset meanwhile it may never tell (seen on Linux 6.18).
    fn not_cancelled(&mut self, token: Token, result: i32) {
        let index = token.index();
        let found =
            self.connections.get_mut(index as usize).filter(|connection| connection.is_found_by(token));
        if let Some(connection) = found.filter(|_| result == -Errno::ALREADY.raw_os_error()) {
            match token.kind() {
                Kind::CancelReceive => connection.receive_cancelled = false,
                _ => connection.send_cancelled = false,
            }
            self.list(index);
        }
    }

    /// Every send that completes at submission, was submitted and has no completion took everything. What was received
    /// meanwhile stands behind it.
    pub(super) fn settle(&mut self) {
        if !self.submissions.is_empty() {
            return;
        }
        while let Some(index) = self.unsettled.pop() {
            let connection = &mut self.connections[index as usize];
            if std::mem::take(&mut connection.unsettled) {
                self.sent(index, usize::MAX);
                self.list(index);
            }
        }
    }

    /// The send in flight has taken `bytes`, or all it had if that is more.
    fn sent(&mut self, index: u32, bytes: usize) {
        let connection = &mut self.connections[index as usize];
        let mut bytes = bytes.saturating_add(connection.skip);
        connection.skip = 0;
        for _ in 0..std::mem::take(&mut connection.in_flight) {
            let Some(&chunk) = connection.chunks.front() else { break };
            let length = match chunk {
                Chunk::Ring(number) => self.buffers.part(number).1,
                Chunk::Own { bytes, .. } => bytes,
            } as usize;
            if bytes < length {
                connection.skip = bytes;
                break;
            }
            bytes -= length;
            connection.chunks.pop_front();
            connection.held.push(chunk);
        }
        if connection.notifications == 0 {
            self.let_go(index);
        }
    }

    /// Gives back what was sent: the kernel reads it no more.
    fn let_go(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        for chunk in connection.held.drain(..) {
            match chunk {
                Chunk::Ring(number) => self.buffers.give_back(number),
                Chunk::Own { number, .. } => connection.own_in_use[number] = false,
            }
        }
    }
}
