//! State of streams, listeners and readiness sources: operations in flight, queues and wakers.

use std::collections::VecDeque;
use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use crate::driver::kernel::token::Kind;
use crate::driver::memory::buffer::{Chunk, copy_prefix};
use crate::driver::memory::key::Key;
use crate::driver::sockets::Family;
use crate::driver::source::interest::DIRECTIONS;
use crate::driver::source::readiness::Readiness;
use crate::driver::stream::accepted::AcceptSink;
use crate::driver::stream::direct_read::DirectRead;
use crate::driver::stream::send_side::SendSide;
use crate::driver::wake::queue::WakerSlot;

/// A stream. The fields are ordered by use: those needed for small messages come first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Stream<S> {
    pub socket: S,
    pub receiving: Receiving,
    pub released: bool,
    pub family: Family,
    pub sending: Sending,
    /// The error number of a failed receive.
    pub receive_error: Option<NonZero<i32>>,
    pub receive_waker: WakerSlot,
    pub received: Received,
    pub sends: SendSide,
    pub reads: DirectRead,
    /// Set if the stream receives with `recv(2)` when it is readable, instead of through the ring.
    pub direct: bool,
    pub hangup_poll: HangupPoll,
    /// Set if the socket has been prepared for sending files.
    pub sends_files: bool,
    pub consecutive_small_reads: u8,
    /// Number of further receives into the ring that are not multishot.
    pub one_shot_receives: u8,
    pub connect: Connect,
}

/// Number of one-shot receives at the start of a connection. A connection for one request then needs neither a hangup
/// poll nor cancellations, for which it would have to wait before it is closed. A long connection pays for two more
/// submissions.
const FIRST_ONE_SHOT_RECEIVES: u8 = 2;

/// A slot of the table adds 8 bytes, and then occupies four cache lines.
const _: () = assert!(size_of::<Stream<OwnedFd>>() <= 248);

impl<S> Stream<S> {
    pub fn new(socket: S, family: Family, connect: Connect, direct: bool) -> Self {
        Self {
            socket,
            receiving: Receiving::Idle,
            hangup_poll: HangupPoll::Idle,
            released: false,
            sending: Sending::Idle,
            receive_waker: WakerSlot::default(),
            received: Received::default(),
            sends: SendSide::default(),
            receive_error: None,
            reads: DirectRead::speculative(family),
            direct,
            sends_files: false,
            consecutive_small_reads: 0,
            one_shot_receives: FIRST_ONE_SHOT_RECEIVES,
            family,
            connect,
        }
    }

    /// Returns `true` if no operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.receiving == Receiving::Idle
            && !self.hangup_poll.is_in_flight()
            && self.sending == Sending::Idle
            && self.connect != Connect::InFlight
    }

    /// Stores the error of a direct receive for the receives that follow. The kernel reports it once, and then EOF, which
    /// would make the data appear complete.
    #[cold]
    pub fn fail_receive(&mut self, error: io::Error) -> io::Error {
        self.receive_error = NonZero::new(error.raw_os_error().unwrap_or(libc::EIO));
        error
    }

    #[inline]
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self.sending, Sending::Inline(_))
    }

    /// Returns whether the socket takes data by a system call. Until the connect operation has been submitted, such a
    /// call would fail with `EPIPE`. The kernel performs queued sends after it.
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.connect != Connect::InFlight
    }
}

/// The receive operation that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    Idle,
    Ring,
    Polling,
    /// An operation of the given kind, `Receive` or `Readable`, whose cancellation is in flight.
    Cancelling(Kind),
    /// An operation of the given kind that may have ended: its final completion may be among those that were dropped. A
    /// cancellation is in flight to determine whether it has. Operations armed later are not affected.
    InDoubt(Kind),
}

impl Receiving {
    /// Returns `true` if an operation of the given kind is in flight.
    pub fn is_in_flight(self, kind: Kind) -> bool {
        match self {
            Self::Idle => false,
            Self::Ring => kind == Kind::Receive,
            Self::Polling => kind == Kind::Readable,
            Self::Cancelling(other) | Self::InDoubt(other) => kind == other,
        }
    }
}

/// State of the hangup poll, on kernels where a receive can miss a connection reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HangupPoll {
    Idle,
    Armed,
    /// Cancellation is in flight.
    Cancelling,
    /// See [`Receiving::InDoubt`].
    InDoubt,
    /// The poll has completed. A receive that starts now reports the hangup.
    Fired,
}

impl HangupPoll {
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Armed | Self::Cancelling | Self::InDoubt)
    }
}

/// The send operation that is in flight, for the front of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// The queue is empty.
    Idle,
    /// An inline send, with its submission index.
    Inline(u32),
    Async,
    /// A zero-copy send, with its key in `zero_copy_sends`.
    ZeroCopy(Key),
    /// A poll for writability. Queued bytes wait until it completes.
    Polling,
    /// A poll for writability. See [`Receiving::InDoubt`].
    PollInDoubt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connect {
    Done,
    InFlight,
    /// The error number, which is less than 4096.
    Failed(u16),
}

/// Received chunks not yet taken by the application. Usually there is at most one, which needs no allocation.
///
/// Invariant: if `front` is `None`, `queued` is empty.
#[derive(Debug, Default)]
pub(super) struct Received {
    front: Option<Chunk>,
    queued: VecDeque<Chunk>,
}

impl Received {
    /// Adds a chunk and returns the number of chunks, including the new one.
    #[inline]
    pub fn push(&mut self, chunk: Chunk) -> usize {
        if self.front.is_none() {
            self.front = Some(chunk);
            return 1;
        }
        self.push_slow(chunk)
    }

    #[cold]
    #[inline(never)]
    fn push_slow(&mut self, chunk: Chunk) -> usize {
        self.queued.push_back(chunk);
        self.queued.len() + 1
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Chunk> {
        // Without this check, the absent chunk would be moved.
        self.front.as_ref()?;
        if self.queued.is_empty() { self.front.take() } else { self.pop_slow() }
    }

    #[cold]
    #[inline(never)]
    fn pop_slow(&mut self) -> Option<Chunk> {
        std::mem::replace(&mut self.front, self.queued.pop_front())
    }

    /// Copies bytes without removing them. Returns their number.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let mut count = 0;
        for chunk in self.front.iter().chain(&self.queued) {
            count += copy_prefix(chunk, &mut buffer[count..]);
        }
        count
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        debug_assert!(
            self.front.is_some() || self.queued.is_empty(),
            "invariant 4: a received chunk is queued behind none"
        );
        self.front.is_none()
    }

    /// Returns the number of chunks.
    #[cfg(debug_assertions)]
    pub fn count(&self) -> usize {
        self.front.iter().chain(&self.queued).count()
    }

    /// Puts back the remaining bytes of the chunk that was popped last.
    pub fn unpop(&mut self, chunk: Chunk) {
        debug_assert!(
            !chunk.is_empty(),
            "invariant 4: a chunk without bytes is queued, which a receive takes for EOF"
        );
        if let Some(front) = self.front.replace(chunk) {
            self.queued.push_front(front);
        }
    }
}

#[derive(Debug)]
pub(super) struct Listener<S> {
    pub socket: S,
    pub family: Family,
    /// Set if other workers accept connections from the same socket.
    pub shared: bool,
    pub armed: bool,
    /// Set if the armed accept operation (the next one if none is armed) may accept connections before the application
    /// polls for them. See `Proactor::set_accept_ahead`.
    pub accepts_ahead: bool,
    pub cancelling: bool,
    /// Set if the armed accept is in doubt. See [`Receiving::InDoubt`].
    pub in_doubt: bool,
    pub released: bool,
    /// Receives the connections that the kernel accepts for a released listener until its accept operation has ended.
    pub accept_sink: Option<Arc<dyn AcceptSink>>,
    /// The error number of a failed accept.
    pub error: Option<i32>,
    pub queue: VecDeque<S>,
    pub waker: WakerSlot,
}

/// A readiness source.
#[derive(Debug)]
pub(super) struct Source<S> {
    pub descriptor: Rc<S>,
    pub readiness: Readiness,
    pub polls: [SourcePoll; DIRECTIONS],
    /// Set if the last one-shot poll for writing reported only a hangup or an error.
    pub write_state_lasts: bool,
    /// The error number of a failed poll.
    pub error: Option<NonZero<i32>>,
    pub released: bool,
}

/// The poll of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SourcePoll {
    #[default]
    Idle,
    Armed,
    /// Cancellation is in flight.
    Cancelling,
    /// See [`Receiving::InDoubt`].
    InDoubt,
}

impl<S> Source<S> {
    pub fn is_idle(&self) -> bool {
        self.polls.iter().all(|poll| *poll == SourcePoll::Idle)
    }
}
