//! The event loop: its turns and its timers.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::entered::EnterableDriver;
use super::event::{Event, EventKind, Events, TimerId, check_token};
use super::file_table::FileTable;
use super::timers::{Timers, deadline_ns};
use super::udp_sockets::UdpSockets;
use super::waker::{self, LoopWaker};
use crate::driver::{Driver, DriverInfo, DriverMetrics, Key, Wait, WakeQueue, collect_events, event_queue};

/// An I/O driver with timers and tokens, run by the application. See the [module](super) for an example.
///
/// Dropping a loop closes all of its sockets immediately. Bytes that the kernel has not taken are lost, and their
/// connections are reset. [`shutdown`](Self::shutdown) sends them first.
///
/// ```
/// use anello::event_loop::{EventKind, EventLoop, Events};
///
/// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
/// event_loop.add_timer(std::time::Duration::from_millis(1), 7);
/// while events.is_empty() {
///     event_loop.turn(&mut events, None)?;
/// }
/// let event = events.iter().next().expect("there is an event");
/// assert_eq!((event.token(), event.kind()), (7, EventKind::Timer));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct EventLoop {
    pub(super) driver: EnterableDriver,
    wakes: WakeQueue,
    pub(super) timers: Timers,
    pub(super) udp_sockets: UdpSockets,
    pub(super) files: FileTable,
    pub(super) waker: LoopWaker,
    /// Peers of streams whose connection attempt has not been reported, for errors.
    pub(super) connecting: HashMap<Key, SocketAddr>,
}

impl EventLoop {
    pub(super) fn with_driver(driver: Driver) -> io::Result<Self> {
        let waker = LoopWaker::new(driver.notifier()?);
        let timers = Timers::new(&driver);
        let udp_sockets = UdpSockets::default();
        let connecting = HashMap::new();
        let files = FileTable::new();
        let driver = EnterableDriver::new(driver);
        Ok(Self { driver, wakes: event_queue(), timers, udp_sockets, files, waker, connecting })
    }

    /// Submits queued operations, waits for events and reports them in `events`, whose previous contents are removed.
    ///
    /// Waits for at most `timeout`, or without limit if it is `None`, and until the next timer at most. Takes one
    /// system call: `io_uring_enter(2)`, or `epoll_pwait2(2)` (Linux 5.11; `epoll_wait(2)` before). A turn without a wait
    /// on io_uring makes no system call if there is nothing to submit. A turn can return without events.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventLoop, Events};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// event_loop.add_timer(Duration::from_millis(1), 7);
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [7]);
    /// // Does not wait, and removes the event.
    /// event_loop.turn(&mut events, Some(Duration::ZERO))?;
    /// assert!(events.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call; the events reported until then are in `events`. On the simulated driver,
    /// returns `Deadlock` if no event can end the wait.
    #[inline]
    pub fn turn(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        events.data.clear();
        let wait = self.wait_time(timeout);
        collect_events(&mut events.data, || self.driver.enter().turn(wait, &mut self.wakes))?;
        // All other wakers belong to listeners with an accept sink, which a loop does not have.
        self.wakes.call();
        if !self.timers.is_empty() {
            self.timers.fire(&mut self.driver.enter(), events);
        }
        match self.waker.take_notifications() {
            0 => {}
            notifications => self.add_notifications(notifications, events),
        }
        Ok(())
    }

    #[cold]
    fn add_notifications(&mut self, notifications: u8, events: &mut Events) {
        if notifications & waker::WAKE != 0 {
            events.data.push(Event::encode(0, EventKind::Wake));
        }
        if notifications & waker::FILES != 0 {
            self.files.report(&self.waker.take_finished_files(), events);
        }
    }

    #[inline]
    fn wait_time(&self, timeout: Option<Duration>) -> Wait {
        let wait = match timeout {
            _ if self.waker.is_notified() => Wait::None,
            Some(Duration::ZERO) => Wait::None,
            Some(timeout) => Wait::For(deadline_ns(0, timeout)),
            None => Wait::Forever,
        };
        if self.timers.is_empty() { wait } else { self.timers.limit_wait(wait, self.driver.now_ns()) }
    }

    /// Returns a handle with which other threads end the wait of a turn.
    ///
    /// ```
    /// # use anello::event_loop::{EventKind, EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let waker = event_loop.waker();
    /// std::thread::spawn(move || waker.wake());
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert_eq!(events.iter().next().map(|event| event.kind()), Some(EventKind::Wake));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn waker(&self) -> LoopWaker {
        self.waker.clone()
    }

    /// Returns the time on the loop's clock, which its timers use. Monotonic; virtual on the simulated driver.
    ///
    /// ```
    /// let event_loop = anello::event_loop::EventLoop::new()?;
    /// let start = event_loop.monotonic_now();
    /// std::thread::sleep(std::time::Duration::from_millis(1));
    /// assert!(event_loop.monotonic_now() > start);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn monotonic_now(&self) -> Duration {
        Duration::from_nanos(self.driver.now_ns())
    }

    /// Returns the name of the driver, the kernel features that it uses and, after a fallback to epoll, the reason.
    ///
    /// ```
    /// let event_loop = anello::event_loop::EventLoop::new()?;
    /// let driver = event_loop.driver();
    /// // The reason is present if io_uring is unavailable.
    /// assert_eq!(driver.name == "epoll", driver.fallback_reason.is_some());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn driver(&self) -> DriverInfo {
        self.driver.description.clone()
    }

    /// Returns the current values of the driver's counters.
    ///
    /// ```
    /// # use anello::event_loop::{EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// event_loop.import_stream(near, 5)?;
    /// assert_eq!(event_loop.metrics().sockets, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn metrics(&self) -> DriverMetrics {
        self.driver.metrics()
    }

    /// Sends accepted bytes, cancels all operations, and waits until the kernel no longer uses the loop's memory. After
    /// `drain` without progress, the remaining bytes are dropped, and their connections are reset.
    ///
    /// ```
    /// use std::io::Read;
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::EventLoop;
    ///
    /// let mut event_loop = EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.send(stream, &mut Some("ciao".into()))?.is_ready());
    /// event_loop.shutdown(Duration::from_secs(5))?;
    /// let mut received = String::new();
    /// far.read_to_string(&mut received)?;
    /// assert_eq!(received, "ciao");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a wait fails or the kernel does not complete the operations. Their memory is then leaked.
    pub fn shutdown(mut self, drain: Duration) -> io::Result<()> {
        let mut events = Vec::new();
        collect_events(&mut events, || self.driver.enter().shut_down(drain, &mut self.wakes))
    }

    // ---- Timers --------------------------------------------------------------------------------------------------

    /// Adds a timer that reports an event of the kind [`EventKind::Timer`] after `after`.
    ///
    /// Timers never fire early. They fire late by up to one tick of the wheel (about 0.13 ms), and by up to 1 ms more on
    /// epoll before Linux 5.11.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventKind, EventLoop, Events};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let unused = event_loop.add_timer(Duration::from_secs(3600), 1);
    /// event_loop.add_timer(Duration::from_millis(1), 2);
    /// assert!(event_loop.cancel_timer(unused));
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// let event = events.iter().next().expect("there is an event");
    /// assert_eq!((event.token(), event.kind()), (2, EventKind::Timer));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn add_timer(&mut self, after: Duration, token: usize) -> TimerId {
        check_token(token);
        let deadline_ns = deadline_ns(self.driver.now_ns(), after);
        TimerId(self.timers.add(deadline_ns, Event::encode(token, EventKind::Timer)))
    }

    /// Removes a timer. Returns `false` if it has fired or been cancelled; its event may be in the current list.
    ///
    /// ```
    /// # use anello::event_loop::EventLoop;
    /// # let mut event_loop = EventLoop::new()?;
    /// let timer = event_loop.add_timer(std::time::Duration::from_secs(60), 1);
    /// assert!(event_loop.cancel_timer(timer));
    /// assert!(!event_loop.cancel_timer(timer), "the timer has been cancelled");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cancel_timer(&mut self, timer: TimerId) -> bool {
        self.timers.cancel(timer.0)
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // The driver shuts down when it is dropped. Handles must not keep the descriptors open.
        self.waker.close();
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EventLoop").field("driver", &self.driver.description).finish_non_exhaustive()
    }
}

/// Returns an IP address, or an error for the address of a Unix socket.
pub(super) fn ip_address(address: &socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "not an IP socket"))
}
