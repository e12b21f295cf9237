//! The I/O driver without the executor, for programs with their own event loop or runtime.
//!
//! An [`EventLoop`] has the same sockets, buffers and kernel features as a [`Runtime`](crate::Runtime), but no tasks:
//! the application runs the loop and receives events. The methods correspond to poll functions: they either complete
//! immediately or return `Pending`, and then [`turn`](EventLoop::turn) reports an [`Event`] with the token of the
//! object once the call should be repeated. An application that prefers callbacks stores them under their tokens.
//!
//! - **No memory is lent to the kernel.** Bytes are received into buffers of the loop ([`Chunk`]) and sent from buffers
//!   that the loop owns ([`SendBuf`]). Abandoning an operation is therefore always safe.
//! - **Identifiers** contain a generation. A stale one is an error and never denotes another object.
//! - **Cancellation.** [`cancel`](EventLoop::cancel) cancels a call that returned `Pending`: no event follows. Received
//!   bytes stay queued and accepted bytes are still sent. [`close`](EventLoop::close) and [`abort`](EventLoop::abort)
//!   cancel everything that is in flight in the kernel.
//! - **Deadlines** of operations are in the loop's timer wheel ([`set_deadline`](EventLoop::set_deadline)), like
//!   [timers](EventLoop::add_timer). The next one is the timeout of the wait, so they need no system call. A linked
//!   timeout (`IORING_OP_LINK_TIMEOUT`, Linux 5.5) would add a submission, a kernel timer and a completion to each
//!   operation, and cannot be used with multishot receives and accepts, which the loop keeps armed.
//! - **UDP** sockets are non-blocking: a call transfers datagrams between the kernel and the caller's memory, or returns
//!   `Pending`, and an event follows ([`bind_udp`](EventLoop::bind_udp)).
//! - **Other threads** end a wait through a [`LoopWaker`].
//!
//! A thread can have several loops, and a process any number; each loop stays on the thread that created it. The rings of
//! one thread share the kernel's pool of worker threads (Linux 5.12), of which the loops use at most four. On the
//! simulated driver, a program with its own loop can be tested with virtual time and seeded faults.
//!
//! ```
//! use std::task::Poll;
//!
//! use anello::event_loop::{EventKind, EventLoop, Events};
//!
//! let mut event_loop = EventLoop::new()?;
//! let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 0)?;
//! assert!(event_loop.accept(listener, 2)?.is_pending());
//! let client = event_loop.connect(event_loop.local_addr(listener)?, 1)?;
//! let (mut outgoing, mut server) = (Some("ping".into()), None);
//! assert!(event_loop.poll_connect(client).is_pending());
//! let mut events = Events::with_capacity(64);
//! let received = 'turns: loop {
//!     event_loop.turn(&mut events, None)?;
//!     for event in events.iter() {
//!         match (event.token(), event.kind()) {
//!             (0, EventKind::Accept) => {
//!                 if let Poll::Ready(stream) = event_loop.accept(listener, 2)? {
//!                     server = Some(stream);
//!                     if let Poll::Ready(Some(chunk)) = event_loop.recv(stream)? {
//!                         break 'turns chunk;
//!                     }
//!                 }
//!             }
//!             (1, EventKind::Connect) => {
//!                 assert!(event_loop.poll_connect(client)?.is_ready());
//!                 assert!(event_loop.send(client, &mut outgoing)?.is_ready());
//!             }
//!             (2, EventKind::Receive) => {
//!                 if let Some(stream) = server
//!                     && let Poll::Ready(Some(chunk)) = event_loop.recv(stream)?
//!                 {
//!                     break 'turns chunk;
//!                 }
//!             }
//!             _ => {}
//!         }
//!     }
//! };
//! assert_eq!(&received[..], b"ping");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The program `event_loop_echo` in the directory `examples` of the repository is a complete echo server.

mod datagrams;
mod event;
mod streams;
mod timers;
mod udp_sockets;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

pub use event::{
    Event, EventKind, Events, ListenerId, MAX_TOKEN, Operation, SourceId, StreamId, TimerId, UdpId,
};

use self::timers::{Timers, deadline_ns};
use self::udp_sockets::UdpSockets;
use crate::driver::{
    Clear, Driver, DriverInfo, DriverKind, DriverMetrics, DriverOptions, Notifier, Wait, WakeQueue,
    collect_events, event_queue, event_waker,
};
#[doc(no_inline)]
pub use crate::driver::{
    Interest, Ready, SendBuf, buffer::Chunk, datagram::OutgoingDatagram, recv_batch::RecvBatch,
};

/// An I/O driver with timers and tokens, run by the application. See the [module](self) for an example.
///
/// Dropping a loop closes all of its sockets immediately; bytes that the kernel has not taken are lost.
/// [`shut_down`](Self::shut_down) sends them first.
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
    driver: Driver,
    wakes: WakeQueue,
    timers: Timers,
    udp_sockets: UdpSockets,
    remote: Arc<Remote>,
}

/// The part of a loop that other threads use.
#[derive(Debug)]
struct Remote {
    is_notified: AtomicBool,
    notifier: Notifier,
}

/// Ends the wait of an [`EventLoop`] from another thread. Cheap to clone.
///
/// ```
/// use anello::event_loop::{EventKind, EventLoop, Events};
///
/// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
/// let waker = event_loop.waker();
/// let thread = std::thread::spawn(move || waker.wake());
/// while events.is_empty() {
///     event_loop.turn(&mut events, None)?;
/// }
/// assert_eq!(events.iter().next().map(|event| event.kind()), Some(EventKind::Wake));
/// thread.join().expect("the thread does not panic");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoopWaker {
    remote: Arc<Remote>,
}

impl LoopWaker {
    /// Makes the current or next turn of the loop return with an event of the kind [`EventKind::Wake`].
    ///
    /// Several calls before that turn cause one event. The first of them writes to an eventfd (`write(2)`). Has no effect
    /// once the loop has been dropped.
    ///
    /// ```
    /// # use anello::event_loop::{EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let waker = event_loop.waker();
    /// waker.wake();
    /// waker.wake();
    /// event_loop.turn(&mut events, None)?;
    /// assert_eq!(events.len(), 1, "both calls cause one event");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wake(&self) {
        if !self.remote.is_notified.swap(true, Ordering::AcqRel) {
            self.remote.notifier.notify();
        }
    }
}

impl std::task::Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}

impl EventLoop {
    /// Returns a builder with the default options.
    ///
    /// ```
    /// use anello::DriverKind;
    /// use anello::event_loop::EventLoop;
    ///
    /// let event_loop = EventLoop::builder().driver(DriverKind::Epoll).build()?;
    /// assert_eq!(event_loop.driver().name, "epoll");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn builder() -> EventLoopBuilder {
        EventLoopBuilder::default()
    }

    /// Opens a loop with the default options. It uses io_uring if available, otherwise epoll.
    ///
    /// ```
    /// let event_loop = anello::event_loop::EventLoop::new()?;
    /// assert!(["uring", "epoll"].contains(&event_loop.driver().name));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`EventLoopBuilder::build`].
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }

    fn with_driver(driver: Driver) -> io::Result<Self> {
        let remote = Remote { is_notified: AtomicBool::new(false), notifier: driver.notifier()? };
        let timers = Timers::new(driver.now_ns());
        let udp_sockets = UdpSockets::default();
        Ok(Self { driver, wakes: event_queue(), timers, udp_sockets, remote: Arc::new(remote) })
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
        collect_events(&mut events.data, || self.driver.turn(wait, &mut self.wakes))?;
        // All other wakers belong to listeners with an accept sink, which a loop does not have.
        self.wakes.call();
        if !self.timers.is_empty() {
            self.timers.fire(&mut self.driver, events);
        }
        if self.remote.is_notified.load(Ordering::Relaxed) {
            self.remote.is_notified.swap(false, Ordering::AcqRel);
            events.data.push(Event::encode(0, EventKind::Wake));
        }
        Ok(())
    }

    #[inline]
    fn wait_time(&self, timeout: Option<Duration>) -> Wait {
        let wait = match timeout {
            _ if self.remote.is_notified.load(Ordering::Relaxed) => Wait::None,
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
        LoopWaker { remote: Arc::clone(&self.remote) }
    }

    /// Returns the time on the loop's clock, which its timers use. Monotonic; virtual on the simulated driver.
    ///
    /// ```
    /// let event_loop = anello::event_loop::EventLoop::new()?;
    /// let start = event_loop.now();
    /// std::thread::sleep(std::time::Duration::from_millis(1));
    /// assert!(event_loop.now() > start);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn now(&self) -> Duration {
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

    /// Sends accepted bytes for at most `drain`, cancels all operations, and waits until the kernel no longer uses the
    /// loop's memory.
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
    /// event_loop.shut_down(Duration::from_secs(5))?;
    /// let mut received = String::new();
    /// far.read_to_string(&mut received)?;
    /// assert_eq!(received, "ciao");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a wait fails or the kernel does not complete the operations. Their memory is then leaked.
    pub fn shut_down(mut self, drain: Duration) -> io::Result<()> {
        let mut events = Vec::new();
        collect_events(&mut events, || self.driver.shut_down(drain, &mut self.wakes))
    }

    // ---- Timers --------------------------------------------------------------------------------------------------

    /// Adds a timer that reports an event of the kind [`EventKind::Timer`] after `after`.
    ///
    /// Timers never fire early. They fire late by up to one tick of the wheel (about 0.13 ms), and by up to 1 ms more on
    /// epoll before Linux 5.11.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`].
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

    // ---- Readiness of other descriptors ----------------------------------------------------------------------------

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
    /// Panics if `token` is larger than [`MAX_TOKEN`].
    #[track_caller]
    pub fn register(
        &mut self,
        descriptor: impl AsFd,
        interest: Interest,
        token: usize,
    ) -> io::Result<SourceId> {
        check_token(token);
        let duplicate: OwnedFd = descriptor.as_fd().try_clone_to_owned()?;
        Ok(SourceId { key: self.driver.register(Rc::new(duplicate), interest)?, token })
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
            if let Poll::Ready(event) = self.driver.poll_ready(source.key, direction, &waker, None) {
                found |= event?.ready;
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
                self.driver.clear_ready(source.key, direction, Clear::All, event.tick);
            }
        }
    }

    /// Releases a registered descriptor. The next turn closes the duplicate, if it is still polled.
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
        self.driver.deregister(source.key);
    }
}

/// Builds an [`EventLoop`].
///
/// ```
/// use anello::DriverKind;
/// use anello::event_loop::EventLoop;
///
/// let event_loop = EventLoop::builder().driver(DriverKind::Epoll).build()?;
/// assert_eq!(event_loop.driver().name, "epoll");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct EventLoopBuilder {
    kind: DriverKind,
    options: DriverOptions,
}

impl EventLoopBuilder {
    /// Sets the driver. The default is [`DriverKind::Auto`]. The environment variable `ANELLO_DRIVER` has no effect.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventLoop, Events};
    /// use anello::{DriverKind, SimOptions};
    ///
    /// let driver = DriverKind::Sim(SimOptions::new(42));
    /// let (mut event_loop, mut events) = (EventLoop::builder().driver(driver).build()?, Events::new());
    /// // An hour of virtual time passes immediately.
    /// event_loop.add_timer(Duration::from_secs(3600), 1);
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert!(event_loop.now() >= Duration::from_secs(3600));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn driver(mut self, kind: DriverKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the options of the driver.
    ///
    /// ```
    /// use anello::DriverOptions;
    /// use anello::event_loop::EventLoop;
    ///
    /// let options = DriverOptions::default().max_send_queue_bytes(2000);
    /// let mut event_loop = EventLoop::builder().options(options).build()?;
    /// # let address = "127.0.0.1:0".parse().expect("valid address");
    /// # let listener = event_loop.listen(address, 0)?;
    /// # let peer = event_loop.local_addr(listener)?;
    /// let stream = event_loop.connect(peer, 1)?;
    /// // A stream that is not connected yet can only queue bytes.
    /// assert!(event_loop.send(stream, &mut Some(vec![0; 2000].into()))?.is_ready());
    /// assert!(event_loop.send(stream, &mut Some("more".into()))?.is_pending());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn options(mut self, options: DriverOptions) -> Self {
        self.options = options;
        self
    }

    /// Opens the loop on the calling thread.
    ///
    /// ```
    /// use anello::event_loop::EventLoop;
    ///
    /// let builder = EventLoop::builder();
    /// // Each thread builds its own loop.
    /// let threads = [(); 2].map(|()| {
    ///     let builder = builder.clone();
    ///     std::thread::spawn(move || builder.build().map(|event_loop| event_loop.metrics().sockets))
    /// });
    /// for thread in threads {
    ///     assert_eq!(thread.join().expect("the thread does not panic")?, 0);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the requested driver is unavailable (the message contains the cause and a remedy), or if the
    /// open file limit is reached.
    pub fn build(&self) -> io::Result<EventLoop> {
        EventLoop::with_driver(Driver::new(&self.kind, &self.options)?)
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // The driver shuts down when it is dropped. Handles must not keep the descriptors open.
        self.remote.notifier.close();
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EventLoop").field("driver", &self.driver.description).finish_non_exhaustive()
    }
}

#[track_caller]
fn check_token(token: usize) {
    assert!(token <= MAX_TOKEN, "token {token} is too large (the maximum is {MAX_TOKEN})");
}
