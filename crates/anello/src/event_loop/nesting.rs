//! Calls with which another event loop waits for an event loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::turn::EventLoop;
use crate::driver::Wait;

impl EventLoop {
    /// Returns the descriptor with which another event loop waits for this one: it polls readable while a turn with a
    /// zero timeout has events of the kernel to process.
    ///
    /// The outer loop waits for at most [`max_wait`](Self::max_wait), which covers timers and queued operations, and
    /// then runs a turn with a zero timeout. Readiness is level-triggered, and can be spurious.
    ///
    /// On epoll, this is the epoll descriptor. On io_uring, it is the ring, whose task work must not be deferred
    /// ([`TaskWork::Cooperative`](crate::TaskWork::Cooperative), not the default): otherwise the kernel does not wake
    /// the outer loop. Task work runs when the outer loop's wait, which must be on this loop's thread, is interrupted;
    /// if it returns `EINTR`, repeat it.
    ///
    /// # Errors
    /// Returns `InvalidInput` on io_uring if task work is deferred, and an error on the simulated driver.
    ///
    /// ```
    /// use std::io::{ErrorKind, Write};
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventKind, EventLoop, Events};
    /// use anello::{DriverOptions, TaskWork};
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// let options = DriverOptions::default().task_work(TaskWork::Cooperative);
    /// let (mut event_loop, mut events) = (EventLoop::builder().options(options).build()?, Events::new());
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.recv(stream)?.is_pending());
    /// far.write_all(b"ping")?;
    /// while events.is_empty() {
    ///     // The outer loop. It can also wait for other descriptors.
    ///     let timeout = event_loop.max_wait().map(|wait| Timespec::try_from(wait).expect("a short time"));
    ///     let descriptor = event_loop.pollable_fd()?;
    ///     match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], timeout.as_ref()) {
    ///         Err(error) if error.kind() == ErrorKind::Interrupted => continue,
    ///         ready => ready?,
    ///     };
    ///     event_loop.turn(&mut events, Some(Duration::ZERO))?;
    /// }
    /// let event = events.iter().next().expect("there is an event");
    /// assert_eq!((event.token(), event.kind()), (5, EventKind::Receive));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn pollable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.driver.pollable_fd()
    }

    /// Returns the longest time for which another event loop can wait on the [descriptor](Self::pollable_fd) before it
    /// runs a turn, or `None` if there is no limit.
    ///
    /// The limit is the time until the next timer or deadline. It is zero if operations are queued for submission,
    /// which is the case after most calls that return `Pending` on io_uring, or if work is left from the last turn.
    /// Round it up if the outer loop waits in milliseconds. Makes no system call, except to read the clock
    /// (`clock_gettime(2)`).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventLoop, Events};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// while event_loop.max_wait() == Some(Duration::ZERO) {
    ///     event_loop.turn(&mut events, Some(Duration::ZERO))?;
    /// }
    /// assert_eq!(event_loop.max_wait(), None);
    /// event_loop.add_timer(Duration::from_secs(60), 1);
    /// assert!(event_loop.max_wait() > Some(Duration::from_secs(50)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn max_wait(&self) -> Option<Duration> {
        if self.driver.has_queued_work() || self.waker.is_notified() {
            return Some(Duration::ZERO);
        }
        match self.timers.limit_wait(Wait::Forever, self.driver.now_ns()) {
            Wait::None => Some(Duration::ZERO),
            Wait::For(nanoseconds) => Some(Duration::from_nanos(nanoseconds)),
            Wait::Forever => None,
        }
    }
}
