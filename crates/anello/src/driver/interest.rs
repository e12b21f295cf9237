//! Kinds of readiness.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// A kind of readiness that tasks can wait for. The discriminants are part of the format of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    Read = 0,
    Write = 1,
    Priority = 2,
    Error = 3,
}

/// Number of directions.
pub(super) const DIRECTIONS: usize = 4;

const HANGUP: u32 = (libc::POLLHUP | libc::POLLRDHUP) as u32;
pub(super) const ERROR: u32 = libc::POLLERR as u32;

impl Direction {
    pub const ALL: [Self; DIRECTIONS] = [Self::Read, Self::Write, Self::Priority, Self::Error];

    /// Returns the event bits to request. The kernel also reports `POLLERR` and `POLLHUP`.
    pub fn requested_events(self) -> u32 {
        (match self {
            Self::Read => libc::POLLIN | libc::POLLRDHUP,
            Self::Write => libc::POLLOUT,
            Self::Priority => libc::POLLPRI,
            Self::Error => 0,
        }) as u32
    }

    /// Returns the readiness of this direction that a set of event bits reports. An error makes reads and writes ready,
    /// because the next call returns it.
    pub(super) fn ready(self, events: u32) -> Ready {
        let has = |bits: i16, ready| if events & bits as u32 != 0 { ready } else { Ready::EMPTY };
        let error = if events & ERROR != 0 { Ready::ERROR } else { Ready::EMPTY };
        let closed = |ready| if events & HANGUP != 0 { ready } else { Ready::EMPTY };
        match self {
            Self::Read => has(libc::POLLIN, Ready::READABLE) | closed(Ready::READ_CLOSED) | error,
            Self::Write => {
                has(libc::POLLOUT, Ready::WRITABLE)
                    | has(libc::POLLHUP | libc::POLLERR, Ready::WRITE_CLOSED)
                    | error
            }
            Self::Priority => has(libc::POLLPRI, Ready::PRIORITY) | closed(Ready::READ_CLOSED) | error,
            Self::Error => error,
        }
    }

    /// Returns the readiness that is assumed before the first event.
    pub(super) fn assumed(self) -> Ready {
        match self {
            Self::Read => Ready::READABLE,
            Self::Write => Ready::WRITABLE,
            Self::Priority => Ready::PRIORITY,
            Self::Error => Ready::ERROR,
        }
    }
}

/// A waker slot of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Receive,
    Send,
    Accept,
}

/// The kinds of readiness that a descriptor is registered for.
///
/// Combine values with `|` or [`add`](Self::add).
///
/// ```
/// use anello::io::Interest;
///
/// let both = Interest::READABLE | Interest::WRITABLE;
/// assert!(both.is_readable() && both.is_writable() && !both.is_priority());
/// assert_eq!(both.remove(Interest::WRITABLE), Some(Interest::READABLE));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest(u8);

impl Interest {
    /// Data can be read, or EOF (`POLLIN`, `POLLRDHUP`).
    pub const READABLE: Self = Self(1 << Direction::Read as u8);
    /// Data can be written (`POLLOUT`).
    pub const WRITABLE: Self = Self(1 << Direction::Write as u8);
    /// There is urgent data or another exceptional condition (`POLLPRI`).
    pub const PRIORITY: Self = Self(1 << Direction::Priority as u8);
    /// There is an error, or data in the error queue of a socket (`POLLERR`). The other interests also report errors.
    pub const ERROR: Self = Self(1 << Direction::Error as u8);

    /// Returns `true` if the interest includes [`READABLE`](Self::READABLE).
    pub const fn is_readable(self) -> bool {
        self.0 & Self::READABLE.0 != 0
    }

    /// Returns `true` if the interest includes [`WRITABLE`](Self::WRITABLE).
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE.0 != 0
    }

    /// Returns `true` if the interest includes [`PRIORITY`](Self::PRIORITY).
    pub const fn is_priority(self) -> bool {
        self.0 & Self::PRIORITY.0 != 0
    }

    /// Returns `true` if the interest includes [`ERROR`](Self::ERROR).
    pub const fn is_error(self) -> bool {
        self.0 & Self::ERROR.0 != 0
    }

    /// Returns the union of two interests.
    #[must_use]
    pub const fn add(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns this interest without the other one, or `None` if nothing is left.
    #[must_use]
    pub const fn remove(self, other: Self) -> Option<Self> {
        match self.0 & !other.0 {
            0 => None,
            rest => Some(Self(rest)),
        }
    }

    #[inline]
    pub(crate) fn contains(self, direction: Direction) -> bool {
        self.0 & (1 << direction as u8) != 0
    }

    pub(crate) fn directions(self) -> impl Iterator<Item = Direction> {
        Direction::ALL.into_iter().filter(move |direction| self.contains(*direction))
    }

    /// Returns the event bits to request.
    pub(super) fn requested_events(self) -> u32 {
        self.directions().fold(0, |events, direction| events | direction.requested_events())
    }
}

impl From<Direction> for Interest {
    fn from(direction: Direction) -> Self {
        Self(1 << direction as u8)
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.add(other)
    }
}

impl BitOrAssign for Interest {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.add(other);
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["READABLE", "WRITABLE", "PRIORITY", "ERROR"];
        write_flags(formatter, "Interest", self.0, &names)
    }
}

/// The readiness of a descriptor.
///
/// ```
/// use anello::io::Ready;
///
/// let ready = Ready::READABLE | Ready::READ_CLOSED;
/// assert!(ready.is_readable() && ready.is_read_closed() && !ready.is_writable());
/// assert_eq!(ready - Ready::READ_CLOSED, Ready::READABLE);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ready(u8);

impl Ready {
    /// Not ready.
    pub const EMPTY: Self = Self(0);
    /// Data can be read, or EOF.
    pub const READABLE: Self = Self(1);
    /// Data can be written.
    pub const WRITABLE: Self = Self(2);
    /// The peer has shut down or closed its write side (`POLLRDHUP` or `POLLHUP`).
    pub const READ_CLOSED: Self = Self(4);
    /// The write side is closed or broken (`POLLHUP` or `POLLERR`).
    pub const WRITE_CLOSED: Self = Self(8);
    /// There is urgent data or another exceptional condition (`POLLPRI`).
    pub const PRIORITY: Self = Self(16);
    /// There is an error (`POLLERR`).
    pub const ERROR: Self = Self(32);
    /// All of the above.
    pub const ALL: Self = Self(63);

    pub(super) const CLOSED: Self = Self(Self::READ_CLOSED.0 | Self::WRITE_CLOSED.0);

    /// Returns `true` if nothing is ready.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns `true` if data can be read, or the read side is closed.
    pub const fn is_readable(self) -> bool {
        self.0 & (Self::READABLE.0 | Self::READ_CLOSED.0) != 0
    }

    /// Returns `true` if data can be written, or the write side is closed.
    pub const fn is_writable(self) -> bool {
        self.0 & (Self::WRITABLE.0 | Self::WRITE_CLOSED.0) != 0
    }

    /// Returns `true` if the peer has shut down or closed its write side.
    pub const fn is_read_closed(self) -> bool {
        self.0 & Self::READ_CLOSED.0 != 0
    }

    /// Returns `true` if the write side is closed or broken.
    pub const fn is_write_closed(self) -> bool {
        self.0 & Self::WRITE_CLOSED.0 != 0
    }

    /// Returns `true` if there is urgent data or another exceptional condition.
    pub const fn is_priority(self) -> bool {
        self.0 & Self::PRIORITY.0 != 0
    }

    /// Returns `true` if there is an error.
    pub const fn is_error(self) -> bool {
        self.0 & Self::ERROR.0 != 0
    }
}

impl BitOr for Ready {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Ready {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Ready {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Sub for Ready {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["READABLE", "WRITABLE", "READ_CLOSED", "WRITE_CLOSED", "PRIORITY", "ERROR"];
        write_flags(formatter, "Ready", self.0, &names)
    }
}

fn write_flags(formatter: &mut fmt::Formatter<'_>, name: &str, bits: u8, names: &[&str]) -> fmt::Result {
    let set = names.iter().enumerate().filter(|(index, _)| bits & 1 << index != 0);
    let text = set.map(|(_, name)| *name).collect::<Vec<_>>().join(" | ");
    write!(formatter, "{name}({})", if text.is_empty() { "EMPTY" } else { &text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_printed_by_name() {
        assert_eq!(format!("{:?}", Interest::READABLE | Interest::ERROR), "Interest(READABLE | ERROR)");
        assert_eq!(format!("{:?} {:?}", Ready::EMPTY, Ready::PRIORITY), "Ready(EMPTY) Ready(PRIORITY)");
    }
}
