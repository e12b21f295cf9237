//! One connection of the models that wait for readiness: receive once, send it back, keep what was refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Bytes of the buffer into which all connections receive. It never leaves the cache, as it is sent from at once.
pub(crate) const HOT_BYTES: usize = 64 * 1024;

/// A connection and the bytes that its peer is owed. Invariant: nothing is received while bytes are owed, so at
/// most [`HOT_BYTES`] are.
pub(crate) struct Stream {
    socket: OwnedFd,
    owed: Vec<u8>,
    sent: usize,
}

/// How far one step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The whole buffer was filled and echoed: more may wait.
    Full,
    /// Less than the buffer was there, and echoed: no more data waits, though the end of stream may.
    Short,
    /// Nothing was there.
    Empty,
    /// The peer does not take what it is owed: go on when the socket is writable.
    Blocked,
    /// End of stream or a broken connection: drop it.
    Closed,
}

impl Stream {
    /// Takes a connected socket that does not block.
    pub(crate) fn new(socket: OwnedFd) -> Stream {
        Stream { socket, owed: Vec::new(), sent: 0 }
    }

    /// Whether to wait for room to send rather than for data.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Sends what is owed, then receives once (`recv(2)`) and echoes it (`send(2)`).
    #[inline]
    pub(crate) fn step(&mut self, hot: &mut [u8]) -> Step {
        if self.is_blocked() {
            let step = self.send_owed();
            if step != Step::Full {
                return step;
            }
        }
        let received = loop {
            match rustix::net::recv(&self.socket, &mut *hot, RecvFlags::empty()) {
                Ok((0, _)) => return Step::Closed,
                Ok((bytes, _)) => break bytes,
                Err(Errno::AGAIN) => return Step::Empty,
                Err(Errno::INTR) => {}
                Err(_) => return Step::Closed,
            }
        };
        match send(self.socket.as_fd(), &hot[..received]) {
            Ok(sent) if sent == received && received == hot.len() => Step::Full,
            Ok(sent) if sent == received => Step::Short,
            Ok(sent) => {
                self.owed.extend_from_slice(&hot[sent..received]);
                Step::Blocked
            }
            Err(_) => Step::Closed,
        }
    }

    /// `Full` when nothing is owed any more.
    #[cold]
    fn send_owed(&mut self) -> Step {
        match send(self.socket.as_fd(), &self.owed[self.sent..]) {
            Ok(sent) => self.sent += sent,
            Err(_) => return Step::Closed,
        }
        if self.sent < self.owed.len() {
            return Step::Blocked;
        }
        self.owed = Vec::new();
        self.sent = 0;
        Step::Full
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
