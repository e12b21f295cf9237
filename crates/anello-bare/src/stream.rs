//! Connection of the readiness-based models: each step receives once, echoes the data, and keeps the bytes that the
//! kernel did not accept.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Size in bytes of the buffer into which all connections receive.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// A connection and its unsent bytes. Invariant: nothing is received while bytes are unsent, so at most
/// [`RECEIVE_BUFFER_BYTES`] bytes are unsent.
pub(crate) struct Stream {
    pub(crate) socket: OwnedFd,
    unsent: Vec<u8>,
    sent_bytes: usize,
}

/// Result of [`Stream::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepResult {
    /// The whole buffer was filled and echoed: more data may be available.
    FullRead,
    /// Less than a full buffer was received and echoed: no more data is available, but EOF may be.
    ShortRead,
    /// No data was available.
    WouldBlock,
    /// The kernel did not accept all bytes: continue when the socket is writable.
    SendBlocked,
    /// EOF or a connection error: drop the stream.
    Closed,
}

impl Stream {
    /// `socket` must be non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> Stream {
        Stream { socket, unsent: Vec::new(), sent_bytes: 0 }
    }

    /// Returns `true` if the stream is waiting for the socket to become writable.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends unsent bytes, then receives once (`recv(2)`) and echoes the data (`send(2)`).
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

    /// Sends unsent bytes. Returns `None` if all were sent.
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

/// Sends `bytes` and returns the number of bytes that the kernel accepted: 0 if the send buffer is full.
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
