//! Operations as data: what a driver asks of a kernel that completes things, and what comes back.
//!
//! The set is closed. The io_uring kernel turns each into a submission queue entry; the simulated kernel interprets
//! the same values, which is why the whole state machine of [`proactor`](super::proactor) can be tested against seeded
//! faults.

use std::net::SocketAddr;

use super::token::Token;

/// One operation on a socket of the kernel, `S` (a file descriptor, or a simulated one).
#[derive(Debug)]
pub(crate) enum Op<'a, S> {
    /// Accept until cancelled where the kernel has multishot accept, once otherwise.
    Accept { listener: &'a S },
    /// Connect. The address is copied by the kernel layer and kept until the completion.
    Connect { socket: &'a S, address: SocketAddr },
    /// Receive into the buffer ring: until cancelled, or once, as the kernel was configured.
    Receive { socket: &'a S },
    /// Send memory that stays where it is until the send is settled.
    Send { socket: &'a S, data: *const u8, length_bytes: u32, how: SendHow },
    /// Report whenever the socket becomes readable, until cancelled.
    Readable { socket: &'a S },
    /// Ask the operation of that token to end.
    Cancel { target: Token },
}

/// How a send completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendHow {
    /// Never waits: no completion once the submission is consumed means that all bytes were taken; a completion gives
    /// the short count or the error.
    AtSubmission,
    /// Waits for room; one completion with the count.
    Ordinary,
    /// Without a copy; a completion with the count and, when it says so, a second one when the memory is free again.
    ZeroCopy,
}

/// What a kernel reports about an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub token: Token,
    /// A count, a descriptor or a mask; negative: the error number.
    pub result: i32,
    /// More completions of this operation follow; without it, the operation has ended.
    pub more: bool,
    /// The buffer of the ring that was filled.
    pub buffer: Option<u16>,
    /// The socket holds more bytes than were received.
    pub more_to_receive: bool,
    /// The memory of a zero-copy send is free again; the result means nothing.
    pub notification: bool,
}

/// How long to wait for something to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// At most so many nanoseconds.
    For(u64),
    /// Until something happens.
    Forever,
}
