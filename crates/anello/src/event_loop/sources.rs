//! Calls of an event loop for descriptors on which the application does its own I/O.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;

use super::event::{Direction, EventKind, SourceId, check_token};
use super::turn::EventLoop;
use crate::driver::{self, Clear, Interest, Ready, event_waker};

impl EventLoop {
    /// Registers a descriptor on which the application does its own I/O, for example a pipe or a timerfd.
    ///
    /// The loop uses a duplicate of the descriptor. [`crate::io::AsyncFd`] describes how readiness is tracked.
    ///
    /// ```
    /// use anello::event_loop::{EventKind, EventLoop, Events, Interest};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let source = event_loop.register(&socket, Interest::READABLE, 9)?;
    /// assert!(event_loop.poll_ready(source, Interest::READABLE)?.is_pending());
    /// socket.send_to(b"ping", socket.local_addr()?)?;
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// let event = events.iter().next().expect("there is an event");
    /// assert_eq!((event.token(), event.kind()), (9, EventKind::Readable));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the kernel cannot poll the file, the process has no descriptors left, or the driver is
    /// simulated.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn register(
        &mut self,
        descriptor: impl AsFd,
        interest: Interest,
        token: usize,
    ) -> io::Result<SourceId> {
        check_token(token);
        let duplicate: OwnedFd = descriptor.as_fd().try_clone_to_owned()?;
        Ok(SourceId { key: self.driver.enter().register(Rc::new(duplicate), interest)?, token })
    }

    /// Returns the readiness of a registered descriptor for any of the given interest. If there is none, an event of the
    /// corresponding kind follows.
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// use anello::event_loop::{EventLoop, Events, Interest};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let source = event_loop.register(&socket, Interest::WRITABLE, 9)?;
    /// let ready = loop {
    ///     match event_loop.poll_ready(source, Interest::WRITABLE)? {
    ///         Poll::Ready(ready) => break ready,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert!(ready.is_writable());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the descriptor was not registered for the interest, or the identifier is stale.
    pub fn poll_ready(&mut self, source: SourceId, interest: Interest) -> Poll<io::Result<Ready>> {
        let mut found = Ready::EMPTY;
        for direction in interest.directions() {
            let waker = event_waker(source.event(EventKind::of_direction(direction)));
            let polled = self.driver.enter().poll_ready(source.key, direction, &waker, None);
            if let Poll::Ready(event) = polled {
                found |= event?.ready;
                self.clear_deadline_if(true, source, operation_of(direction));
            }
        }
        if found.is_empty() { Poll::Pending } else { Poll::Ready(Ok(found)) }
    }

    /// Clears the readiness of a registered descriptor. Call this after a call on the descriptor has returned
    /// `WouldBlock`, and before the next turn.
    ///
    /// ```
    /// use anello::event_loop::{EventLoop, Events, Interest};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_nonblocking(true)?;
    /// let source = event_loop.register(&socket, Interest::READABLE, 9)?;
    /// socket.send_to(b"ping", socket.local_addr()?)?;
    /// while event_loop.poll_ready(source, Interest::READABLE)?.is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// let mut buffer = [0; 16];
    /// while let Ok(count) = socket.recv(&mut buffer) {
    ///     assert_eq!(&buffer[..count], b"ping");
    /// }
    /// // The last call has returned `WouldBlock`.
    /// event_loop.clear_ready(source, Interest::READABLE);
    /// assert!(event_loop.poll_ready(source, Interest::READABLE)?.is_pending());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn clear_ready(&mut self, source: SourceId, interest: Interest) {
        for direction in interest.directions() {
            if let Ok(event) = self.driver.assumed_ready(source.key, direction) {
                self.driver.enter().clear_ready(source.key, direction, Clear::All, event.tick);
            }
        }
    }

    /// Releases a registered descriptor. The next turn closes the duplicate, if it is still polled. No event follows.
    ///
    /// ```
    /// # use anello::event_loop::{EventLoop, Interest};
    /// # let mut event_loop = EventLoop::new()?;
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let source = event_loop.register(&socket, Interest::READABLE, 9)?;
    /// event_loop.deregister(source);
    /// // The socket itself stays open.
    /// assert_eq!(socket.send_to(b"ping", socket.local_addr()?)?, 4);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn deregister(&mut self, source: SourceId) {
        self.cancel_all(source);
        self.driver.enter().deregister(source.key);
    }
}

/// Returns the operation whose deadline and cancellation apply to a direction.
pub(super) fn operation_of(direction: driver::Direction) -> Direction {
    if direction == driver::Direction::Write { Direction::Send } else { Direction::Receive }
}
