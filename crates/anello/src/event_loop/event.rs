//! Events, and the identifiers of the objects that cause them.

use std::fmt;

use crate::driver::{Direction, Key};
use crate::executor::TimerKey;

/// Number of bits of an event that hold its kind.
const KIND_BITS: u32 = 4;

/// Largest token: the other bits of an event hold its kind.
pub const MAX_TOKEN: usize = usize::MAX >> KIND_BITS;

/// What an [`Event`] reports. In each case, repeat the call that returned `Pending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum EventKind {
    /// [`accept`](super::EventLoop::accept) may return a connection.
    Accept,
    /// The connection attempt has ended; [`poll_connect`](super::EventLoop::poll_connect) returns its result.
    Connect,
    /// [`recv`](super::EventLoop::recv) may return bytes, EOF or an error.
    Receive,
    /// [`send`](super::EventLoop::send) may accept bytes, or [`flush`](super::EventLoop::flush) may have finished.
    Send,
    /// The deadline of a receive has passed.
    ReceiveDeadline,
    /// The deadline of a send, a flush or a connect has passed.
    SendDeadline,
    /// A timer is due.
    Timer,
    /// Another thread has called [`LoopWaker::wake`](super::LoopWaker::wake). The token is 0.
    Wake,
    /// A registered descriptor is readable.
    Readable,
    /// A registered descriptor is writable.
    Writable,
    /// A registered descriptor has urgent data or another exceptional condition.
    Priority,
    /// A registered descriptor has an error.
    Error,
}

impl EventKind {
    const ALL: [Self; 12] = [
        Self::Accept,
        Self::Connect,
        Self::Receive,
        Self::Send,
        Self::ReceiveDeadline,
        Self::SendDeadline,
        Self::Timer,
        Self::Wake,
        Self::Readable,
        Self::Writable,
        Self::Priority,
        Self::Error,
    ];

    pub(super) fn of_direction(direction: Direction) -> Self {
        match direction {
            Direction::Read => Self::Readable,
            Direction::Write => Self::Writable,
            Direction::Priority => Self::Priority,
            Direction::Error => Self::Error,
        }
    }
}

/// An event of an [`EventLoop`](super::EventLoop).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(usize);

impl Event {
    #[inline(always)]
    pub(super) fn encode(token: usize, kind: EventKind) -> usize {
        token << KIND_BITS | kind as usize
    }

    /// Returns the token that was passed when the object was created.
    #[inline]
    pub fn token(self) -> usize {
        self.0 >> KIND_BITS
    }

    /// Returns what the event reports.
    #[inline]
    pub fn kind(self) -> EventKind {
        EventKind::ALL[self.0 % (1 << KIND_BITS) % EventKind::ALL.len()]
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Event").field("token", &self.token()).field("kind", &self.kind()).finish()
    }
}

/// The events of one [`turn`](super::EventLoop::turn). Its memory is reused.
#[derive(Clone, Default)]
pub struct Events {
    pub(super) data: Vec<usize>,
}

impl Events {
    /// Creates an empty list. It grows as needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty list with room for `capacity` events. It still grows as needed.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { data: Vec::with_capacity(capacity) }
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Returns `true` if there are no events.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the events in the order in which they occurred.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.data.iter().map(|data| Event(*data))
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

/// Identifies a listener of an [`EventLoop`](super::EventLoop). A stale identifier is an error, never another listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a stream of an [`EventLoop`](super::EventLoop). A stale identifier is an error, never another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a registered descriptor of an [`EventLoop`](super::EventLoop).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a timer of an [`EventLoop`](super::EventLoop). Stale once the timer has fired or been cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerId(pub(super) TimerKey);

/// A direction of a stream, which can have one operation in flight and one deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`recv`](super::EventLoop::recv) or [`read`](super::EventLoop::read).
    Receive,
    /// [`send`](super::EventLoop::send), [`write`](super::EventLoop::write), [`flush`](super::EventLoop::flush) or
    /// [`poll_connect`](super::EventLoop::poll_connect).
    Send,
}

macro_rules! impl_id {
    ($name:ident) => {
        impl $name {
            /// Returns the token of the events that this object causes.
            pub fn token(self) -> usize {
                self.token
            }

            #[inline(always)]
            pub(super) fn event(self, kind: EventKind) -> usize {
                Event::encode(self.token, kind)
            }
        }
    };
}

impl_id!(ListenerId);
impl_id!(StreamId);
impl_id!(SourceId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_round_trips_token_and_kind() {
        for kind in EventKind::ALL {
            for token in [0, 1, MAX_TOKEN] {
                let event = Event(Event::encode(token, kind));
                assert_eq!((event.token(), event.kind()), (token, kind));
            }
        }
        let mut events = Events::with_capacity(1);
        events.data.push(Event::encode(7, EventKind::Timer));
        assert_eq!(format!("{events:?}"), "[Event { token: 7, kind: Timer }]");
    }
}
