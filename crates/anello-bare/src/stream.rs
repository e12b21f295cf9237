//! One connection of the models that wait for readiness: receive once, send it back, keep what was refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Bytes of the buffer into which all connections receive. It never leaves the cache, as it is sent from at once.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// A connection and the bytes that its peer is owed. Invariant: nothing is received while bytes are owed, so at
/// most [`RECEIVE_BUFFER_BYTES`] are.
pub(crate) struct Stream {
    socket: OwnedFd,
    unsent: Vec<u8>,
    sent_bytes: usize,
}

/// How far one step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepResult {
    /// The whole buffer was filled and echoed: more may wait.
    FullRead,
    /// Less than the buffer was there, and echoed: no more data waits, though the end of stream may.
    ShortRead,
    /// Nothing was there.
    WouldBlock,
    /// The peer does not take what it is owed: go on when the socket is writable.
    SendBlocked,
    /// End of stream or a broken connection: drop it.
    Closed,
}

impl Stream {
    /// Takes a connected socket that does not block.
    pub(crate) fn new(socket: OwnedFd) -> Stream {
        Stream { socket, unsent: Vec::new(), sent_bytes: 0 }
    }

    /// Whether to wait for room to send rather than for data.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what is owed, then receives once (`recv(2)`) and echoes it (`send(2)`).
    #[inline]
    pub(crate) fn step(&mut self, buffer: &mut [u8]) -> StepResult {
        if self.is_blocked()
            && let Some(result) = self.flush_unsent()
        {
            return result;
        }
        let received = loop {
            match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((0, _)) => return StepResult::Closed,
                Ok((bytes, _)) => break bytes,
                Err(Errno::AGAIN) => return StepResult::WouldBlock,
                Err(Errno::INTR) => {}
                Err(_) => return StepResult::Closed,
            }
        };
        match send(self.socket.as_fd(), &buffer[..received]) {
            Ok(sent) if sent == received && received == buffer.len() => StepResult::FullRead,
            Ok(sent) if sent == received => StepResult::ShortRead,
            Ok(sent) => {
                self.unsent.extend_from_slice(&buffer[sent..received]);
                StepResult::SendBlocked
            }
            Err(_) => StepResult::Closed,
        }
    }

    /// Sends what is owed. `None`: nothing is owed any more.
    #[cold]
    fn flush_unsent(&mut self) -> Option<StepResult> {
        match send(self.socket.as_fd(), &self.unsent[self.sent_bytes..]) {
            Ok(sent) => self.sent_bytes += sent,
            Err(_) => return Some(StepResult::Closed),
        }
        if self.sent_bytes < self.unsent.len() {
            return Some(StepResult::SendBlocked);
        }
        self.unsent = Vec::new();
        self.sent_bytes = 0;
        None
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes that the kernel took, 0 if it has no room.
#[inline]
fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
