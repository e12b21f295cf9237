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
pub(in crate::driver) const DIRECTIONS: usize = 4;

const HANGUP: u32 = (libc::POLLHUP | libc::POLLRDHUP) as u32;
pub(in crate::driver) const ERROR: u32 = libc::POLLERR as u32;

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
    pub(in crate::driver) fn ready(self, events: u32) -> Ready {
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
    pub(in crate::driver) fn assumed(self) -> Ready {
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
    /// A direction of a readiness source, without the futures that have a ticket.
    Source(Direction),
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
    ///
    /// ```
    /// # use anello::io::Interest;
    /// assert!(Interest::READABLE.is_readable());
    /// assert!(!Interest::READABLE.is_writable());
    /// ```
    pub const READABLE: Self = Self(1 << Direction::Read as u8);
    /// Data can be written (`POLLOUT`).
    ///
    /// ```
    /// # use anello::io::Interest;
    /// assert!((Interest::READABLE | Interest::WRITABLE).is_writable());
    /// ```
    pub const WRITABLE: Self = Self(1 << Direction::Write as u8);
    /// There is urgent data or another exceptional condition (`POLLPRI`).
    ///
    /// ```
    /// # use anello::io::Interest;
    /// // Also reports urgent data.
    /// let interest = Interest::READABLE | Interest::PRIORITY;
    /// assert!(interest.is_priority());
    /// ```
    pub const PRIORITY: Self = Self(1 << Direction::Priority as u8);
    /// There is an error, or data in the error queue of a socket (`POLLERR`). The other interests also report errors.
    ///
    /// ```
    /// # use anello::io::Interest;
    /// // Reports only errors, for example timestamps in the error queue of a socket.
    /// assert!(Interest::ERROR.is_error() && !Interest::ERROR.is_readable());
    /// ```
    pub const ERROR: Self = Self(1 << Direction::Error as u8);

    /// Returns `true` if the interest includes [`READABLE`](Self::READABLE).
    ///
    /// ```
    /// # use anello::io::Interest;
    /// assert!(Interest::READABLE.is_readable() && !Interest::WRITABLE.is_readable());
    /// ```
    pub const fn is_readable(self) -> bool {
        self.0 & Self::READABLE.0 != 0
    }

    /// Returns `true` if the interest includes [`WRITABLE`](Self::WRITABLE).
    ///
    /// ```
    /// # use anello::io::Interest;
    /// assert!(Interest::WRITABLE.is_writable() && !Interest::READABLE.is_writable());
    /// ```
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE.0 != 0
    }

    /// Returns `true` if the interest includes [`PRIORITY`](Self::PRIORITY).
    ///
    /// ```
    /// # use anello::io::Interest;
    /// assert!(Interest::PRIORITY.is_priority() && !Interest::READABLE.is_priority());
    /// ```
    pub const fn is_priority(self) -> bool {
        self.0 & Self::PRIORITY.0 != 0
    }

    /// Returns `true` if the interest includes [`ERROR`](Self::ERROR).
    ///
    /// ```
    /// # use anello::io::Interest;
    /// assert!(Interest::ERROR.is_error() && !Interest::READABLE.is_error());
    /// ```
    pub const fn is_error(self) -> bool {
        self.0 & Self::ERROR.0 != 0
    }

    /// Returns the union of two interests.
    ///
    /// ```
    /// # use anello::io::Interest;
    /// // In contrast to `|`, can be used in constants.
    /// const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);
    /// assert_eq!(BOTH, Interest::READABLE | Interest::WRITABLE);
    /// ```
    #[must_use]
    pub const fn add(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns this interest without the other one, or `None` if nothing is left.
    ///
    /// ```
    /// # use anello::io::Interest;
    /// let both = Interest::READABLE | Interest::WRITABLE;
    /// assert_eq!(both.remove(Interest::WRITABLE), Some(Interest::READABLE));
    /// assert_eq!(both.remove(both), None);
    /// ```
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
    pub(in crate::driver) fn requested_events(self) -> u32 {
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
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::EMPTY.is_empty());
    /// assert_eq!(Ready::EMPTY, Ready::default());
    /// ```
    pub const EMPTY: Self = Self(0);
    /// Data can be read, or EOF.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::READABLE.is_readable() && !Ready::READABLE.is_read_closed());
    /// ```
    pub const READABLE: Self = Self(1);
    /// Data can be written.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::WRITABLE.is_writable() && !Ready::WRITABLE.is_write_closed());
    /// ```
    pub const WRITABLE: Self = Self(2);
    /// The peer has shut down or closed its write side (`POLLRDHUP` or `POLLHUP`).
    ///
    /// ```
    /// # use anello::io::Ready;
    /// // A read returns immediately, with 0 bytes.
    /// assert!(Ready::READ_CLOSED.is_readable());
    /// ```
    pub const READ_CLOSED: Self = Self(4);
    /// The write side is closed or broken (`POLLHUP` or `POLLERR`).
    ///
    /// ```
    /// # use anello::io::Ready;
    /// // A write returns immediately, with an error.
    /// assert!(Ready::WRITE_CLOSED.is_writable());
    /// ```
    pub const WRITE_CLOSED: Self = Self(8);
    /// There is urgent data or another exceptional condition (`POLLPRI`).
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::PRIORITY.is_priority() && !Ready::PRIORITY.is_readable());
    /// ```
    pub const PRIORITY: Self = Self(16);
    /// There is an error (`POLLERR`).
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::ERROR.is_error() && !Ready::ERROR.is_readable());
    /// ```
    pub const ERROR: Self = Self(32);
    /// All of the above.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::ALL.is_readable() && Ready::ALL.is_writable() && Ready::ALL.is_error());
    /// assert!((Ready::ALL - Ready::ALL).is_empty());
    /// ```
    pub const ALL: Self = Self(63);

    pub(in crate::driver) const CLOSED: Self = Self(Self::READ_CLOSED.0 | Self::WRITE_CLOSED.0);

    /// Returns `true` if nothing is ready.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!((Ready::READABLE - Ready::READABLE).is_empty());
    /// assert!(!Ready::READABLE.is_empty());
    /// ```
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns `true` if data can be read, or the read side is closed.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::READABLE.is_readable() && Ready::READ_CLOSED.is_readable());
    /// assert!(!Ready::WRITABLE.is_readable());
    /// ```
    pub const fn is_readable(self) -> bool {
        self.0 & (Self::READABLE.0 | Self::READ_CLOSED.0) != 0
    }

    /// Returns `true` if data can be written, or the write side is closed.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::WRITABLE.is_writable() && Ready::WRITE_CLOSED.is_writable());
    /// assert!(!Ready::READABLE.is_writable());
    /// ```
    pub const fn is_writable(self) -> bool {
        self.0 & (Self::WRITABLE.0 | Self::WRITE_CLOSED.0) != 0
    }

    /// Returns `true` if the peer has shut down or closed its write side.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::READ_CLOSED.is_read_closed() && !Ready::READABLE.is_read_closed());
    /// ```
    pub const fn is_read_closed(self) -> bool {
        self.0 & Self::READ_CLOSED.0 != 0
    }

    /// Returns `true` if the write side is closed or broken.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::WRITE_CLOSED.is_write_closed() && !Ready::WRITABLE.is_write_closed());
    /// ```
    pub const fn is_write_closed(self) -> bool {
        self.0 & Self::WRITE_CLOSED.0 != 0
    }

    /// Returns `true` if there is urgent data or another exceptional condition.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::PRIORITY.is_priority() && !Ready::READABLE.is_priority());
    /// ```
    pub const fn is_priority(self) -> bool {
        self.0 & Self::PRIORITY.0 != 0
    }

    /// Returns `true` if there is an error.
    ///
    /// ```
    /// # use anello::io::Ready;
    /// assert!(Ready::ERROR.is_error() && !Ready::READ_CLOSED.is_error());
    /// ```
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
