//! One ring with its connections, and the lists of due work.

use std::net::TcpListener;

use io_uring::types::Timespec;
use io_uring::{CompletionQueue, SubmissionQueue, Submitter, squeue};

use super::connection::Connection;
use super::enter::Turn;
use super::pool::Pool;
use super::token::Token;
use crate::options::UringOptions;

/// Maximum number of gathered sends per turn. Any further send in the turn contains a single chunk.
pub(super) const MESSAGES: usize = 64;

/// Maximum number of chunks in one send.
pub(super) const MAX_IOVECS: usize = 16;

/// Header of a gathered send. The kernel can read it until it has consumed the submission (`IORING_FEAT_SUBMIT_STABLE`,
/// Linux 5.5).
pub(super) struct Message {
    header: libc::msghdr,
    pub(super) iovecs: [libc::iovec; MAX_IOVECS],
}

impl Message {
    pub(super) fn empty() -> Message {
        // SAFETY: both are C structures of integers and pointers, for which zero is a valid value.
        unsafe { std::mem::zeroed() }
    }

    /// The returned header points into this message, which must not move afterwards.
    #[inline]
    pub(super) fn prepare_header(&mut self, count: usize) -> *const libc::msghdr {
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = count as _;
        &raw const self.header
    }
}

/// State of the accept request, or of the pause once descriptors have run out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptState {
    /// An accept request is in flight.
    Armed,
    /// An accept request must be submitted.
    Unarmed,
    /// Descriptors ran out; a timeout must be submitted.
    PauseDue,
    /// The timeout is in flight.
    Paused,
}

/// Without `CONFIGURABLE`, the options are constants, and the compiler removes all branches for options.
pub(super) struct Server<'ring, const CONFIGURABLE: bool> {
    pub(super) submitter: Submitter<'ring>,
    pub(super) submissions: SubmissionQueue<'ring>,
    pub(super) completions: CompletionQueue<'ring>,
    pub(super) listener: TcpListener,
    pub(super) accept: AcceptState,
    pub(super) pool: Pool<CONFIGURABLE>,
    pub(super) messages: Box<[Message]>,
    pub(super) messages_used: usize,
    pub(super) connections: Vec<Connection>,
    /// Indices of the entries of `connections` without a socket.
    pub(super) free: Vec<u32>,
    /// Connections with chunks or unsent bytes.
    pub(super) to_send: Vec<u32>,
    /// Connections that need to receive and have no receive in flight.
    pub(super) to_arm: Vec<u32>,
    /// Connections with a receive or send in flight that must be cancelled.
    pub(super) to_cancel: Vec<u32>,
    /// Registered files that must be closed.
    pub(super) to_close: Vec<u32>,
    /// Connections from `to_send` whose inline sends were submitted since the submission queue was last empty.
    pub(super) sends_in_flight: Vec<u32>,
    /// Set if the next `io_uring_enter(2)` must not wait: some entries did not fit into the submission queue, or a send
    /// in this turn is followed by another action (more chunks, a close, a receive), and only the return of the call
    /// confirms the send.
    pub(super) skip_wait: bool,
    pub(super) turn: Turn,
    /// Number of free slots in the table of registered files.
    pub(super) free_file_slots: u32,
    /// The kernel reads this field while it consumes a submission. The server does not move, so the address stays
    /// valid.
    pub(super) linked_timeout: Timespec,
    pub(super) selected_options: UringOptions,
}

impl<const CONFIGURABLE: bool> Server<'_, CONFIGURABLE> {
    #[inline(always)]
    pub(super) fn options(&self) -> UringOptions {
        if CONFIGURABLE { self.selected_options } else { UringOptions::default() }
    }

    /// Returns `false` if the submission queue is full.
    #[inline]
    pub(super) fn push(&mut self, entry: squeue::Entry, token: Token) -> bool {
        let entry = entry.user_data(token.0);
        // SAFETY: an entry points to the pool, a message, a stalled connection's `unsent` bytes, the server's timeout
        // or a static. Each stays at its address until the kernel is done with it (invariants of `uring`).
        // Descriptors are open.
        unsafe { self.submissions.push(&entry) }.is_ok()
    }
}
