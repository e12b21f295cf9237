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
    /// Accept until cancelled if `multishot` is set and the kernel has multishot accept, once otherwise.
    Accept { listener: &'a S, multishot: bool },
    /// Connect. The address is copied by the kernel layer and kept until the completion.
    Connect { socket: &'a S, address: SocketAddr },
    /// Receive into the buffer ring: until cancelled, or once, as the kernel was configured.
    Receive { socket: &'a S },
    /// Send memory that stays where it is until the send is settled.
    Send { socket: &'a S, data: *const u8, length_bytes: u32, mode: SendMode },
    /// Report whenever the socket becomes readable, until cancelled.
    Readable { socket: &'a S },
    /// Report once when the socket takes bytes again.
    Writable { socket: &'a S },
    /// Report once when the peer has ended its side or the connection is broken.
    Hangup { socket: &'a S },
    /// Ask the operation of that token to end.
    Cancel { target: Token },
}

/// How a send completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Never waits: no completion once the submission is consumed means that all bytes were taken; a completion gives
    /// the short count or the error.
    Inline,
    /// Waits for room; one completion with the count.
    Async,
    /// Without a copy; a completion with the count and, when it says so, a second one when the memory is free again.
    ZeroCopy,
}

/// What a kernel reports about an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub token: Token,
    /// A count, a descriptor or a mask; negative: the error number.
    pub result: i32,
    /// As io_uring gives them: taken apart only when somebody asks.
    flags: u32,
}

impl Completion {
    /// The bits of `io_uring_cqe.flags`; with `BUFFER`, the upper half is its id.
    const BUFFER: u32 = 1;
    const MORE: u32 = 2;
    const SOCKET_NONEMPTY: u32 = 4;
    const NOTIFICATION: u32 = 8;
    const BUFFER_SHIFT: u32 = 16;

    #[inline]
    pub fn new(token: Token, result: i32, flags: u32) -> Self {
        Self { token, result, flags }
    }

    /// More completions of this operation follow; without it, the operation has ended.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.flags & Self::MORE != 0
    }

    /// The buffer of the ring that was filled.
    #[inline]
    pub fn buffer(&self) -> Option<u16> {
        (self.flags & Self::BUFFER != 0).then_some((self.flags >> Self::BUFFER_SHIFT) as u16)
    }

    /// The buffer, if this brings bytes, is not the last of its operation and has left nothing in the socket.
    #[inline]
    pub fn plain_multishot_buffer(&self) -> Option<u16> {
        let all = Self::BUFFER | Self::MORE | Self::SOCKET_NONEMPTY;
        let plain = self.flags & all == Self::BUFFER | Self::MORE && self.result > 0;
        plain.then_some((self.flags >> Self::BUFFER_SHIFT) as u16)
    }

    /// The socket holds more bytes than were received.
    pub fn is_socket_nonempty(&self) -> bool {
        self.flags & Self::SOCKET_NONEMPTY != 0
    }

    /// The memory of a zero-copy send is free again; the result means nothing.
    pub fn is_notification(&self) -> bool {
        self.flags & Self::NOTIFICATION != 0
    }

    pub fn with_more(self, more: bool) -> Self {
        Self { flags: self.flags | if more { Self::MORE } else { 0 }, ..self }
    }

    pub fn with_buffer(self, buffer: Option<u16>) -> Self {
        let flags = buffer.map_or(0, |id| Self::BUFFER | u32::from(id) << Self::BUFFER_SHIFT);
        Self { flags: self.flags | flags, ..self }
    }

    pub fn with_socket_nonempty(self, more: bool) -> Self {
        Self { flags: self.flags | if more { Self::SOCKET_NONEMPTY } else { 0 }, ..self }
    }

    pub fn as_notification(self) -> Self {
        Self { flags: self.flags | Self::NOTIFICATION, ..self }
    }
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
