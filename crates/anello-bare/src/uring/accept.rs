//! Accept state of a ring: when to submit an accept and when to pause.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

use io_uring::types::{Fd, Timespec};
use io_uring::{opcode, squeue};

use super::enter::errno;
use crate::accept::{ACCEPT_PAUSE, AcceptError};

static ACCEPT_PAUSE_TIMESPEC: Timespec = Timespec::new().nsec(ACCEPT_PAUSE.subsec_nanos());

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptState {
    /// The accept is in flight.
    Armed,
    /// An accept must be submitted.
    Unarmed,
    /// Descriptors ran out; a timeout must be submitted.
    PauseDue,
    /// The timeout is in flight.
    Paused,
}

impl AcceptState {
    /// Handles a completion of the accept and returns the new socket, if any. `armed` is `true` if more completions
    /// follow. Returns an error if the listener is unusable.
    pub(super) fn on_completion(&mut self, result: i32, armed: bool) -> io::Result<Option<i32>> {
        if !armed {
            *self = AcceptState::Unarmed;
        }
        if result >= 0 {
            return Ok(Some(result));
        }
        match AcceptError::from(errno(result)) {
            AcceptError::WouldBlock | AcceptError::Transient => {}
            AcceptError::OutOfResources if armed => {}
            AcceptError::OutOfResources => *self = AcceptState::PauseDue,
            AcceptError::Fatal(errno) => return Err(errno.into()),
        }
        Ok(None)
    }
}

/// Accepts connections until an error.
pub(super) fn multishot_accept(listener: &TcpListener) -> squeue::Entry {
    opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).flags(libc::SOCK_CLOEXEC).build()
}

/// Completes after [`ACCEPT_PAUSE`].
pub(super) fn pause_timeout() -> squeue::Entry {
    opcode::Timeout::new(&ACCEPT_PAUSE_TIMESPEC).build()
}
