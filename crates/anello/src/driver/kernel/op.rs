//! Operations and completions of a completion-based kernel, as plain data.
//!
//! The set of operations is closed. The io_uring kernel turns each operation into a submission queue entry, and the
//! simulated kernel interprets the same values. The complete [`proactor`](crate::driver::proactor) state machine can therefore
//! be tested against seeded faults.

use std::net::SocketAddr;

use rustix::event::Timespec;

use super::token::Token;

/// Bit in the result of [`Op::Readable`] on a Unix socket, set only if the result stands for exactly one wake-up of the
/// poll, that is, for one message. Some kernels never set it.
///
/// With io_uring, the result for one wake-up contains the event bits of that wake-up. In all other cases, the kernel
/// queries the state of the socket, which never contains this bit.
pub(crate) const SINGLE_WAKE_UP: i32 = libc::POLLRDBAND as i32;

/// An operation on a socket. `S` is the socket type of the kernel: a file descriptor or a simulated socket.
#[derive(Debug)]
pub(crate) enum Op<'a, S> {
    /// Accepts one connection or, if `multishot` is set and the kernel supports it, all connections until cancelled.
    Accept { listener: &'a S, multishot: bool },
    /// Connects to an address. The kernel layer copies the address and keeps it until the completion.
    Connect { socket: &'a S, address: SocketAddr },
    /// Receives into the buffer ring once or, if `multishot` is set and the kernel supports it, until cancelled.
    Receive { socket: &'a S, multishot: bool },
    /// Sends bytes, whose memory must not move until the send is confirmed.
    Send { socket: &'a S, data: *const u8, length_bytes: u32, mode: SendMode },
    /// Reports every time the socket becomes readable, until cancelled. See [`SINGLE_WAKE_UP`].
    Readable { socket: &'a S },
    /// Reports once when the socket is writable.
    Writable { socket: &'a S },
    /// Reports once when the peer has shut down its write side or the connection is broken.
    Hangup { socket: &'a S },
    /// Reports the given event bits once, or, if `multishot` is set, when the poll starts and at every event until
    /// cancelled.
    Poll { socket: &'a S, events: u32, multishot: bool },
    /// Requests cancellation of the operation with the token `target`.
    Cancel { target: Token },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Never waits for room in the socket buffer. If the kernel has consumed the submission and posts no completion,
    /// all bytes were sent. Otherwise a completion carries the short count or the error.
    Inline,
    /// Waits for room in the socket buffer. Posts one completion with the byte count.
    Async,
    /// Sends without a copy. Posts a completion with the byte count and, if this completion has the `MORE` flag, a
    /// notification when the memory is no longer in use.
    ZeroCopy,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub token: Token,
    /// A byte count, a descriptor or a poll mask. A negative value is a negated error number.
    pub result: i32,
    /// Flags in io_uring format, decoded on demand.
    pub flags: u32,
}

impl Completion {
    /// Bits of `io_uring_cqe.flags`. If `BUFFER` is set, the upper 16 bits are the buffer ID.
    pub const BUFFER: u32 = 1;
    pub const MORE: u32 = 2;
    pub const SOCKET_NONEMPTY: u32 = 4;
    pub const NOTIFICATION: u32 = 8;
    pub const BUFFER_SHIFT: u32 = 16;

    /// Returns `true` if more completions of this operation follow. Otherwise the operation has ended.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.flags & Self::MORE != 0
    }

    /// Returns the ID of the ring buffer that was filled.
    #[inline]
    pub fn buffer(&self) -> Option<u16> {
        (self.flags & Self::BUFFER != 0).then_some((self.flags >> Self::BUFFER_SHIFT) as u16)
    }

    /// Returns the buffer ID if this completion carries bytes, more completions follow, and the socket was drained.
    #[inline]
    pub fn plain_multishot_buffer(&self) -> Option<u16> {
        let all = Self::BUFFER | Self::MORE | Self::SOCKET_NONEMPTY;
        let plain = self.flags & all == Self::BUFFER | Self::MORE && self.result > 0;
        plain.then_some((self.flags >> Self::BUFFER_SHIFT) as u16)
    }

    /// Returns `true` if the socket holds more bytes than were received.
    pub fn is_socket_nonempty(&self) -> bool {
        self.flags & Self::SOCKET_NONEMPTY != 0
    }

    /// Returns `true` if this completion reports that the memory of a zero-copy send is no longer in use. Its result is
    /// then meaningless.
    pub fn is_notification(&self) -> bool {
        self.flags & Self::NOTIFICATION != 0
    }
}

/// How long a turn waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    None,
    /// At most this many nanoseconds.
    For(u64),
    Forever,
}

pub(crate) fn timespec(nanoseconds: u64) -> Timespec {
    Timespec {
        tv_sec: (nanoseconds / 1_000_000_000).try_into().unwrap_or(i64::MAX),
        tv_nsec: (nanoseconds % 1_000_000_000) as _,
    }
}
