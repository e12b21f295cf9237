//! Accepting on a ring: when to ask for connections, and when to pause.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

use io_uring::types::{Fd, Timespec};
use io_uring::{opcode, squeue};

use super::enter::errno;
use crate::accept::{ACCEPT_PAUSE, AcceptFailure};

static ACCEPT_PAUSE_TIMESPEC: Timespec = Timespec::new().nsec(ACCEPT_PAUSE.subsec_nanos());

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accept {
    /// The accept is in flight.
    Armed,
    /// It is to be submitted.
    Wanted,
    /// Descriptors ran out: a timeout is to be submitted.
    PauseWanted,
    /// The timeout is in flight.
    Paused,
}

impl Accept {
    /// What a completion of the accept brought: a socket, by its number, or none. `armed`: more completions follow. An
    /// error: the listener is of no use any more.
    pub(crate) fn completed(&mut self, result: i32, armed: bool) -> io::Result<Option<i32>> {
        if !armed {
            *self = Accept::Wanted;
        }
        if result >= 0 {
            return Ok(Some(result));
        }
        match AcceptFailure::from(errno(result)) {
            AcceptFailure::Empty | AcceptFailure::Gone => {}
            AcceptFailure::Exhausted if armed => {}
            AcceptFailure::Exhausted => *self = Accept::PauseWanted,
            AcceptFailure::Broken(errno) => return Err(errno.into()),
        }
        Ok(None)
    }
}

/// Accepts all that come, until it fails.
pub(crate) fn accept_many(listener: &TcpListener) -> squeue::Entry {
    opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).flags(libc::SOCK_CLOEXEC).build()
}

/// Completes after [`ACCEPT_PAUSE`].
pub(crate) fn pause() -> squeue::Entry {
    opcode::Timeout::new(&ACCEPT_PAUSE_TIMESPEC).build()
}
