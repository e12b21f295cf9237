//! One connection: what the kernel has in flight for it, and what waits on either side.

use std::collections::VecDeque;
use std::io;
use std::num::NonZero;

use crate::driver::buffer::Chunk;
use crate::driver::direct_read::DirectRead;
use crate::driver::send_queue::{SendQueue, WriteSide};
use crate::driver::sockets::Family;
use crate::driver::token::{Key, Kind};
use crate::driver::wake::WakerSlot;

/// In the order of use: what a small message touches comes first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Stream<S> {
    pub socket: S,
    pub receiving: Receiving,
    /// Nobody holds the key any more.
    pub released: bool,
    pub write_side: WriteSide,
    pub sending: Sending,
    /// The kernel's result that ended sending.
    pub send_error: Option<NonZero<i32>>,
    pub receive_waker: WakerSlot,
    pub received: Received,
    pub send_queue: SendQueue,
    pub send_waker: WakerSlot,
    /// The kernel's result that ended receiving.
    pub receive_error: Option<NonZero<i32>>,
    pub reads: DirectRead,
    /// Whether this stream is received by `recv(2)` on readiness instead of by the ring.
    pub direct: bool,
    pub hangup_poll: HangupPoll,
    /// Whether the socket is prepared for sending files.
    pub sends_files: bool,
    pub consecutive_small_reads: u8,
    pub family: Family,
    pub connect: Connect,
}

impl<S> Stream<S> {
    pub fn new(socket: S, family: Family, connect: Connect, direct: bool) -> Self {
        Self {
            socket,
            receiving: Receiving::Idle,
            hangup_poll: HangupPoll::Idle,
            released: false,
            write_side: WriteSide::Open,
            sending: Sending::Idle,
            receive_waker: WakerSlot::default(),
            received: Received::default(),
            send_queue: SendQueue::default(),
            send_waker: WakerSlot::default(),
            send_error: None,
            receive_error: None,
            reads: DirectRead::speculative(family),
            direct,
            sends_files: false,
            consecutive_small_reads: 0,
            family,
            connect,
        }
    }

    #[inline]
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self.sending, Sending::Inline(_))
    }

    /// A call has failed that sends, while nothing was in flight: nothing is sent any more.
    #[cold]
    pub fn fail(&mut self, error: io::Error) -> io::Error {
        self.send_error = NonZero::new(-error.raw_os_error().unwrap_or(libc::EIO));
        self.send_queue.clear();
        error
    }
}

/// What the kernel has in flight for receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    Idle,
    Ring,
    Polling,
    /// Either, `Receive` or `Readable`, with a cancellation under way.
    Cancelling(Kind),
}

/// Whether the kernel has a poll for the end of the connection in flight, where receives may miss it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HangupPoll {
    Idle,
    Armed,
    /// Being cancelled.
    Cancelling,
    /// It has come: a receive that starts now sees it.
    Fired,
}

impl HangupPoll {
    /// Whether the kernel has the poll.
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Armed | Self::Cancelling)
    }
}

/// What the kernel has in flight for sending: the front of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// Nothing, and the queue is empty.
    Idle,
    /// With its place in the order of submission.
    Inline(u32),
    Async,
    /// Without a copy, with the key of what it holds.
    ZeroCopy(Key),
    /// A poll that reports when the socket takes bytes again; what is in the queue waits for it.
    Polling,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connect {
    Done,
    InFlight,
    Failed(i32),
}

/// Chunks not yet taken by the program: mostly none or one, which needs no memory beside the stream.
///
/// Nothing stands behind an empty front.
#[derive(Debug, Default)]
pub(super) struct Received {
    front: Option<Chunk>,
    queued: VecDeque<Chunk>,
}

impl Received {
    /// Adds a chunk; how many there are now.
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
        if self.queued.is_empty() { self.front.take() } else { self.pop_slow() }
    }

    #[cold]
    #[inline(never)]
    fn pop_slow(&mut self) -> Option<Chunk> {
        std::mem::replace(&mut self.front, self.queued.pop_front())
    }

    /// Puts back what is left of the chunk popped last.
    pub fn unpop(&mut self, chunk: Chunk) {
        if let Some(front) = self.front.replace(chunk) {
            self.queued.push_front(front);
        }
    }
}
