//! Events, and the identifiers of the objects that cause them.

use std::fmt;

use crate::driver::{self, Driver, Key, Side};
use crate::executor::TimerKey;

/// Number of bits of an event that hold its kind.
const KIND_BITS: u32 = 4;

/// Largest token: the other bits of an event hold its kind.
///
/// ```
/// use anello::event_loop::{EventLoop, Events, MAX_TOKEN};
///
/// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
/// event_loop.add_timer(std::time::Duration::ZERO, MAX_TOKEN);
/// while events.is_empty() {
///     event_loop.turn(&mut events, None)?;
/// }
/// assert_eq!(events.iter().next().map(|event| event.token()), Some(MAX_TOKEN));
/// # Ok::<(), std::io::Error>(())
/// ```
pub const MAX_TOKEN: usize = usize::MAX >> KIND_BITS;

#[track_caller]
pub(super) fn check_token(token: usize) {
    assert!(token <= MAX_TOKEN, "token {token} is too large (the maximum is {MAX_TOKEN})");
}

/// What an [`Event`] reports. In each case, repeat the call that returned `Pending`.
///
/// ```
/// use anello::event_loop::{EventKind, EventLoop, Events};
///
/// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
/// event_loop.waker().wake();
/// event_loop.turn(&mut events, None)?;
/// for event in events.iter() {
///     match event.kind() {
///         EventKind::Wake => println!("another thread has sent work"),
///         other => unreachable!("{other:?}"),
///     }
/// }
/// # assert_eq!(events.len(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
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
    /// The deadline of [`Direction::Receive`] has passed.
    ReceiveDeadline,
    /// The deadline of [`Direction::Send`] has passed.
    SendDeadline,
    /// A timer is due.
    Timer,
    /// Another thread has called [`LoopWaker::wake`](super::LoopWaker::wake). The token is 0.
    Wake,
    /// A registered descriptor or a UDP socket is readable.
    Readable,
    /// A registered descriptor or a UDP socket is writable.
    Writable,
    /// A registered descriptor has urgent data or another exceptional condition.
    Priority,
    /// A registered descriptor has an error.
    Error,
    /// A read or write of a file has ended; [`poll_file`](super::EventLoop::poll_file) returns its result.
    File,
}

impl EventKind {
    const ALL: [Self; 13] = [
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
        Self::File,
    ];

    pub(super) fn of_direction(direction: driver::Direction) -> Self {
        match direction {
            driver::Direction::Read => Self::Readable,
            driver::Direction::Write => Self::Writable,
            driver::Direction::Priority => Self::Priority,
            driver::Direction::Error => Self::Error,
        }
    }
}

/// An event of an [`EventLoop`](super::EventLoop).
///
/// ```
/// use std::io::Write;
///
/// use anello::event_loop::{EventKind, EventLoop, Events};
///
/// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
/// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
/// let stream = event_loop.import_stream(near, 5)?;
/// assert!(event_loop.recv(stream)?.is_pending());
/// far.write_all(b"ping")?;
/// while events.is_empty() {
///     event_loop.turn(&mut events, None)?;
/// }
/// let event = events.iter().next().expect("there is an event");
/// assert_eq!((event.token(), event.kind()), (5, EventKind::Receive));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(usize);

impl Event {
    #[inline(always)]
    pub(super) fn encode(token: usize, kind: EventKind) -> usize {
        token << KIND_BITS | kind as usize
    }

    /// Returns the token that was passed when the object was created.
    ///
    /// ```
    /// # use anello::event_loop::{EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// event_loop.add_timer(std::time::Duration::ZERO, 7);
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert!(events.iter().all(|event| event.token() == 7));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn token(self) -> usize {
        self.0 >> KIND_BITS
    }

    /// Returns what the event reports.
    ///
    /// ```
    /// # use anello::event_loop::{EventKind, EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// event_loop.add_timer(std::time::Duration::ZERO, 7);
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert!(events.iter().all(|event| event.kind() == EventKind::Timer));
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
///
/// ```
/// use std::time::Duration;
///
/// use anello::event_loop::{EventLoop, Events};
///
/// let (mut event_loop, mut events) = (EventLoop::new()?, Events::with_capacity(64));
/// event_loop.waker().wake();
/// event_loop.turn(&mut events, None)?;
/// assert_eq!(events.len(), 1);
/// // The next turn removes the event.
/// event_loop.turn(&mut events, Some(Duration::ZERO))?;
/// assert!(events.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Events {
    pub(super) data: Vec<usize>,
}

impl Events {
    /// Creates an empty list. It grows as needed.
    ///
    /// ```
    /// let events = anello::event_loop::Events::new();
    /// assert!(events.is_empty());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty list with room for `capacity` events. It still grows as needed.
    ///
    /// ```
    /// let events = anello::event_loop::Events::with_capacity(64);
    /// assert!(events.is_empty());
    /// ```
    pub fn with_capacity(capacity: usize) -> Self {
        Self { data: Vec::with_capacity(capacity) }
    }

    /// Returns the number of events.
    ///
    /// ```
    /// # use anello::event_loop::{EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// event_loop.waker().wake();
    /// event_loop.turn(&mut events, None)?;
    /// assert_eq!(events.len(), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Returns `true` if there are no events.
    ///
    /// ```
    /// # use anello::event_loop::{EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// // There is nothing to wait for.
    /// event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// assert!(events.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the events in the order in which they occurred.
    ///
    /// ```
    /// # use anello::event_loop::{EventKind, EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// event_loop.waker().wake();
    /// event_loop.turn(&mut events, None)?;
    /// let kinds: Vec<_> = events.iter().map(|event| event.kind()).collect();
    /// assert_eq!(kinds, [EventKind::Wake]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
///
/// ```
/// use anello::event_loop::EventLoop;
///
/// let mut event_loop = EventLoop::new()?;
/// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
/// assert_eq!(listener.token(), 3);
/// event_loop.close_listener(listener);
/// assert!(event_loop.local_addr(listener).is_err(), "the identifier is stale");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a stream of an [`EventLoop`](super::EventLoop). A stale identifier is an error, never another stream.
///
/// ```
/// use anello::event_loop::EventLoop;
///
/// let mut event_loop = EventLoop::new()?;
/// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
/// let stream = event_loop.import_stream(near, 5)?;
/// assert_eq!(stream.token(), 5);
/// event_loop.abort(stream);
/// assert!(event_loop.shutdown_write(stream).is_err(), "the identifier is stale");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a registered descriptor of an [`EventLoop`](super::EventLoop).
///
/// ```
/// use anello::event_loop::{EventLoop, Interest};
///
/// let mut event_loop = EventLoop::new()?;
/// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// let source = event_loop.register(&socket, Interest::READABLE, 9)?;
/// assert_eq!(source.token(), 9);
/// event_loop.deregister(source);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a UDP socket of an [`EventLoop`](super::EventLoop). A stale identifier is an error, never another socket.
///
/// ```
/// use anello::event_loop::EventLoop;
///
/// let mut event_loop = EventLoop::new()?;
/// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 3)?;
/// assert_eq!(socket.token(), 3);
/// event_loop.close_udp(socket);
/// assert!(event_loop.udp_local_addr(socket).is_err(), "the identifier is stale");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a read or write of a file by an [`EventLoop`](super::EventLoop). Stale once its result has been returned.
///
/// ```
/// use anello::event_loop::EventLoop;
/// use anello::fs::{AlignedBuf, File};
///
/// let mut event_loop = EventLoop::new()?;
/// let file = File::from_std(std::fs::File::open("/proc/version")?);
/// let read = event_loop.read_at(&file, AlignedBuf::new(4096), 0, 7);
/// assert_eq!(read.token(), 7);
/// assert!(event_loop.cancel_file(read));
/// assert!(!event_loop.cancel_file(read), "the identifier is stale");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub(super) key: Key,
    pub(super) token: usize,
}

/// Identifies a stream, listener, UDP socket or registered descriptor of an [`EventLoop`](super::EventLoop).
///
/// ```
/// use anello::event_loop::{Direction, EventLoop, ObjectId};
///
/// let mut event_loop = EventLoop::new()?;
/// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
/// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 4)?;
/// for id in [ObjectId::from(listener), ObjectId::from(socket)] {
///     assert!(!event_loop.cancel(id, Direction::Receive), "no call is waiting");
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    pub(super) key: Key,
    pub(super) token: usize,
    pub(super) kind: ObjectKind,
}

/// The table of the driver that an object is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ObjectKind {
    Stream,
    Listener,
    Source,
}

impl ObjectId {
    /// Returns the waker slots of a direction.
    pub(super) fn sides(self, direction: Direction) -> &'static [Side] {
        use driver::Direction::{Error, Priority, Read, Write};

        match (self.kind, direction) {
            (ObjectKind::Stream, Direction::Receive) => &[Side::Receive],
            (ObjectKind::Stream, Direction::Send) => &[Side::Send],
            (ObjectKind::Listener, Direction::Receive) => &[Side::Accept],
            (ObjectKind::Listener, Direction::Send) => &[],
            (ObjectKind::Source, Direction::Receive) => {
                &[Side::Source(Read), Side::Source(Priority), Side::Source(Error)]
            }
            (ObjectKind::Source, Direction::Send) => &[Side::Source(Write)],
        }
    }

    /// Cancels the wait of a direction. Returns `false` if no call was waiting.
    pub(super) fn stop_waiting(self, driver: &mut Driver, direction: Direction) -> bool {
        let stop = |was_waiting, side: &Side| driver.stop_waiting(self.key, *side) | was_waiting;
        self.sides(direction).iter().fold(false, stop)
    }
}

/// Identifies a timer of an [`EventLoop`](super::EventLoop). Stale once the timer has fired or been cancelled.
///
/// ```
/// use std::time::Duration;
///
/// use anello::event_loop::EventLoop;
///
/// let mut event_loop = EventLoop::new()?;
/// let timer = event_loop.add_timer(Duration::from_secs(60), 1);
/// assert!(event_loop.cancel_timer(timer));
/// assert!(!event_loop.cancel_timer(timer), "the identifier is stale");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerId(pub(super) TimerKey);

/// A direction of a socket or registered descriptor, which can have one waiting call and one deadline.
///
/// ```
/// use std::task::Poll;
///
/// use anello::event_loop::{Direction, EventLoop};
///
/// let mut event_loop = EventLoop::new()?;
/// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
/// let stream = event_loop.import_stream(near, 5)?;
/// assert!(event_loop.recv(stream)?.is_pending());
/// assert!(event_loop.cancel(stream, Direction::Receive));
/// assert!(!event_loop.cancel(stream, Direction::Send), "no send is waiting");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Direction {
    /// [`recv`](super::EventLoop::recv) or [`read`](super::EventLoop::read); [`accept`](super::EventLoop::accept);
    /// [`recv_from`](super::EventLoop::recv_from) or [`recv_batch`](super::EventLoop::recv_batch);
    /// [`poll_ready`](super::EventLoop::poll_ready) for any interest but
    /// [`Interest::WRITABLE`](super::Interest::WRITABLE).
    Receive,
    /// [`send`](super::EventLoop::send), [`write`](super::EventLoop::write),
    /// [`send_file`](super::EventLoop::send_file), [`flush`](super::EventLoop::flush) or
    /// [`poll_connect`](super::EventLoop::poll_connect);
    /// [`send_to`](super::EventLoop::send_to) or [`send_batch`](super::EventLoop::send_batch);
    /// [`poll_ready`](super::EventLoop::poll_ready) for [`Interest::WRITABLE`](super::Interest::WRITABLE).
    Send,
}

/// Implements the methods of an identifier. The example starts with `$setup`, which creates one with the token 7.
macro_rules! impl_id {
    ($name:ident, $setup:literal) => {
        impl $name {
            /// Returns the token of the events that this object causes.
            ///
            /// ```
            #[doc = $setup]
            /// assert_eq!(id.token(), 7);
            /// # Ok::<(), std::io::Error>(())
            /// ```
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

/// Implements the conversion of an identifier to that of an object of any kind.
macro_rules! impl_object {
    ($($name:ident => $kind:ident),+) => {$(
        impl From<$name> for ObjectId {
            #[inline]
            fn from(id: $name) -> Self {
                Self { key: id.key, token: id.token, kind: ObjectKind::$kind }
            }
        }
    )+};
}

impl_object!(StreamId => Stream, ListenerId => Listener, SourceId => Source, UdpId => Source);

impl_id!(
    ListenerId,
    "let mut event_loop = anello::event_loop::EventLoop::new()?;\n\
     let id = event_loop.listen(\"127.0.0.1:0\".parse().expect(\"valid address\"), 7)?;"
);
impl_id!(
    StreamId,
    "let mut event_loop = anello::event_loop::EventLoop::new()?;\n\
     let (near, _far) = std::os::unix::net::UnixStream::pair()?;\n\
     let id = event_loop.import_stream(near, 7)?;"
);
impl_id!(
    SourceId,
    "# use anello::event_loop::Interest;\n\
     let mut event_loop = anello::event_loop::EventLoop::new()?;\n\
     let socket = std::net::UdpSocket::bind(\"127.0.0.1:0\")?;\n\
     let id = event_loop.register(&socket, Interest::READABLE, 7)?;"
);
impl_id!(
    UdpId,
    "let mut event_loop = anello::event_loop::EventLoop::new()?;\n\
     let id = event_loop.bind_udp(\"127.0.0.1:0\".parse().expect(\"valid address\"), 7)?;"
);
impl_id!(
    FileId,
    "# use anello::fs::{AlignedBuf, File};\n\
     let mut event_loop = anello::event_loop::EventLoop::new()?;\n\
     let file = File::from_std(std::fs::File::open(\"/proc/version\")?);\n\
     let id = event_loop.read_at(&file, AlignedBuf::new(4096), 0, 7);"
);

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
