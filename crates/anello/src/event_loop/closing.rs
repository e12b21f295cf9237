//! Deadlines and cancellation of operations, and calls that close a stream.

use std::io;
use std::time::Duration;

use super::event::{Direction, ObjectId, StreamId};
use super::timers::deadline_ns;
use super::turn::EventLoop;
use crate::driver::gone;

impl EventLoop {
    /// Sets the deadline of an operation, from now. It applies to the call that has returned `Pending`, or to the next
    /// one. A call that completes removes it.
    ///
    /// If the deadline passes while the operation is waiting, the operation is cancelled, and an event of the kind
    /// [`EventKind::ReceiveDeadline`](super::EventKind::ReceiveDeadline) or
    /// [`EventKind::SendDeadline`](super::EventKind::SendDeadline) is reported instead. The object stays usable. If its
    /// own event has been reported before, the deadline has no effect.
    ///
    /// `object` is the identifier of a stream, listener, UDP socket or registered descriptor. For a file, use a timer;
    /// see [`cancel_file`](Self::cancel_file).
    ///
    /// # Errors
    /// Returns an error if the identifier is stale.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{Direction, EventKind, EventLoop, Events};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.recv(stream)?.is_pending());
    /// event_loop.set_deadline(stream, Direction::Receive, Duration::from_millis(1))?;
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// let event = events.iter().next().expect("there is an event");
    /// assert_eq!((event.token(), event.kind()), (5, EventKind::ReceiveDeadline));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_deadline(
        &mut self,
        object: impl Into<ObjectId>,
        operation: Direction,
        after: Duration,
    ) -> io::Result<()> {
        let object = object.into();
        if !self.holds(object) {
            return Err(gone());
        }
        let deadline_ns = deadline_ns(self.driver.now_ns(), after);
        self.timers.set_deadline(object, operation, deadline_ns);
        Ok(())
    }

    /// Removes the deadline of an operation, if it has one.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::Direction;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.recv(stream)?.is_pending());
    /// event_loop.set_deadline(stream, Direction::Receive, Duration::from_millis(1))?;
    /// event_loop.clear_deadline(stream, Direction::Receive);
    /// event_loop.turn(&mut events, Some(Duration::from_millis(2)))?;
    /// assert!(events.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn clear_deadline(&mut self, object: impl Into<ObjectId>, operation: Direction) {
        let object = object.into();
        if self.holds(object) {
            self.timers.clear_deadline(object, operation);
        }
    }

    fn holds(&mut self, object: ObjectId) -> bool {
        object.sides(Direction::Receive).iter().any(|side| self.driver.enter().has_side(object.key, *side))
    }

    /// Cancels a call that has returned `Pending`, and its deadline: no event of this operation follows. Received
    /// bytes, datagrams and accepted connections stay queued, and accepted bytes are still sent. Returns `false` if the
    /// operation was not waiting; its event may be in the current list.
    ///
    /// `object` is the identifier of a stream, listener, UDP socket or registered descriptor. See
    /// [`cancel_file`](Self::cancel_file) for files and [`cancel_timer`](Self::cancel_timer) for timers.
    ///
    /// ```
    /// use anello::event_loop::Direction;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.recv(stream)?.is_pending());
    /// assert!(event_loop.cancel(stream, Direction::Receive));
    /// assert!(!event_loop.cancel(stream, Direction::Receive), "no receive is waiting any more");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cancel(&mut self, object: impl Into<ObjectId>, operation: Direction) -> bool {
        let object = object.into();
        self.clear_deadline(object, operation);
        object.stop_waiting(&mut self.driver.enter(), operation)
    }

    /// Closes a stream after sending its accepted bytes. If the kernel takes none for 30 seconds, because the peer does
    /// not read, the stream is aborted. A pending connection attempt is cancelled. No event follows, but earlier events
    /// of the stream can still be in the current list. Do not use the identifier afterwards: while accepted bytes are
    /// being sent, calls with it may still succeed.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.write(stream, b"ping")?.is_ready());
    /// event_loop.close(stream);
    /// # far.set_nonblocking(true)?;
    /// let mut received = Vec::new();
    /// while far.read_to_end(&mut received).is_err() {
    ///     event_loop.turn(&mut events, Some(std::time::Duration::from_millis(1)))?;
    /// }
    /// assert_eq!(received, b"ping", "EOF follows");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn close(&mut self, stream: StreamId) {
        self.forget(stream);
        if self.driver.enter().release(stream.key) {
            // Rejects later sends. An error means that nothing more is sent anyway.
            self.driver.enter().shutdown_write(stream.key).ok();
            self.timers.linger(&self.driver, stream.key);
        }
    }

    /// Closes a stream immediately. Accepted bytes are discarded, and a TCP connection is reset, so that the peer knows
    /// that the data may be incomplete. The peer of a Unix stream receives the bytes that the kernel has taken, and then
    /// EOF.
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// event_loop.abort(stream);
    /// assert!(event_loop.shutdown_write(stream).is_err(), "the identifier is stale");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn abort(&mut self, stream: StreamId) {
        self.forget(stream);
        self.driver.enter().abort(stream.key);
    }

    /// Removes what the loop, not the driver, stores for a stream.
    fn forget(&mut self, stream: StreamId) {
        if !self.connecting.is_empty() {
            self.connecting.remove(&stream.key);
        }
        self.clear_deadlines(stream);
    }

    /// Removes the deadlines of an object that is closed.
    pub(super) fn clear_deadlines(&mut self, object: impl Into<ObjectId>) {
        if self.timers.deadline_count > 0 {
            let object = object.into();
            self.clear_deadline(object, Direction::Receive);
            self.clear_deadline(object, Direction::Send);
        }
    }

    /// Cancels the calls for a source that is closed. The driver would wake them when their polls have ended.
    pub(super) fn cancel_all(&mut self, source: impl Into<ObjectId>) {
        let source = source.into();
        self.cancel(source, Direction::Receive);
        self.cancel(source, Direction::Send);
    }

    #[inline(always)]
    pub(super) fn clear_deadline_if(
        &mut self,
        is_complete: bool,
        object: impl Into<ObjectId>,
        operation: Direction,
    ) {
        if self.timers.deadline_count > 0 && is_complete {
            self.clear_deadline(object, operation);
        }
    }
}
