//! A worker's clock and timers: the link between the clock, the [`Deadlines`] of connections, and their sockets.
//!
//! Deadlines count the ticks of a clock that is updated periodically, so a request needs neither its own timer nor access
//! to a clock. At each tick, a task of the worker checks the active connections and expires those whose deadline has
//! passed; `registry.rs` does this for suspended ones.
//!
//! The task of an expired connection is woken by its socket: either the read half is shut down and the connection can
//! still respond, or the whole connection is closed. A task that is waiting for a handler is woken by its
//! [`Cancellation`].

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use anello::net::ShutdownHandle;
use anello::{log_event, time, wake_all};

use super::deadline::{Action, Deadlines, Phase, TickLength, Timeout};
use super::options::ServerOptions;
use crate::h1::HttpDate;

/// The clock of a worker. It follows the runtime's timers, and is simulated together with them.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(super) tick: TickLength,
    now: Cell<u64>,
    pub date: Cell<HttpDate>,
    accepted_connections: Cell<u64>,
}

impl Clock {
    pub fn new(resolution: Duration) -> Rc<Self> {
        Rc::new(Self {
            tick: TickLength::new(resolution),
            now: Cell::new(0),
            date: Cell::new(date_now()),
            accepted_connections: Cell::new(0),
        })
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Returns the number of connections that the worker accepted before the current one.
    pub fn next_accept_order(&self) -> u64 {
        self.accepted_connections.replace(self.accepted_connections.get() + 1)
    }

    /// Reads the current time. Must be called periodically, and before any timeout starts.
    pub fn read(&self) {
        self.now.set(self.tick.ticks_in(time::monotonic_now()));
        self.date.set(date_now());
    }
}

fn date_now() -> HttpDate {
    let since_1970 = time::system_now().duration_since(UNIX_EPOCH).unwrap_or_default();
    HttpDate::from_unix(since_1970.as_secs())
}

#[derive(Debug)]
pub(crate) struct ConnectionTimer {
    pub deadlines: Deadlines,
    pub cancellation: Cancellation,
    pub shutdown_handle: ShutdownHandle,
    clock: Rc<Clock>,
    /// Number of connections that the worker accepted before this one.
    pub accept_order: u64,
    pub suspension: Cell<Suspension>,
    /// The streams of a connection that serves several requests at the same time.
    streams: OnceCell<Rc<dyn MultiplexedStreams>>,
    /// The session that encrypts the connection. Weak, so that the timer does not keep the socket open.
    session: OnceCell<Weak<dyn PeerSession>>,
}

/// The condition in which a connection frees its buffers until the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspension {
    Never,
    /// Like `WhenIdle`, but the waker of the connection's task has not been registered yet.
    Unregistered,
    WhenIdle,
    /// The connection has been idle for [`ServerOptions::suspend_after`]. Its task has been woken to suspend it.
    Requested {
        /// Start of the idle phase. The request is out of date if another request has been served since.
        idle_since: u64,
    },
}

/// The deadlines of the streams of one connection.
pub(crate) trait MultiplexedStreams: fmt::Debug {
    /// Wakes the tasks of streams of which a deadline has expired.
    fn check_deadlines(&self, now: u64, options: &ServerOptions, tick: TickLength);
}

/// A session that the client can close without closing the socket.
pub(crate) trait PeerSession {
    /// Receives ahead, within a limit, what the client has sent. Returns a reason to cancel the request if the client has
    /// closed the session, or if receiving fails. Wakes a task that is waiting to receive, so that it polls again.
    fn receive_ahead(&self) -> Option<CancelReason>;
}

impl ConnectionTimer {
    pub fn new(
        shutdown_handle: ShutdownHandle,
        clock: &Rc<Clock>,
        accept_order: u64,
        deadlines: Deadlines,
    ) -> Rc<Self> {
        Rc::new(Self {
            deadlines,
            cancellation: Cancellation::default(),
            shutdown_handle,
            clock: Rc::clone(clock),
            accept_order,
            suspension: Cell::new(Suspension::Never),
            streams: OnceCell::new(),
            session: OnceCell::new(),
        })
    }

    #[inline]
    pub fn date(&self) -> HttpDate {
        self.clock.date.get()
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Stops the send timer, because the client has accepted this number of bytes.
    #[inline]
    pub fn note_send_progress(&self, bytes: u64) {
        self.deadlines.note_send_progress(bytes, self.now());
    }

    /// Expires the connection if a deadline has passed, and requests its suspension if it is idle.
    pub fn check_deadlines(&self, options: &ServerOptions) {
        match self.deadlines.check(self.now(), options, self.clock.tick) {
            Some((timeout, action)) => self.perform(action, CancelReason::Deadline(timeout)),
            None => {
                self.cancel_if_gone(options);
                self.suspend_if_idle(options.suspend_after);
            }
        }
        if let Some(streams) = self.streams.get() {
            streams.check_deadlines(self.now(), options, self.clock.tick);
        }
    }

    fn suspend_if_idle(&self, min_idle: Duration) {
        if self.suspension.get() == Suspension::WhenIdle
            && self.deadlines.can_be_suspended()
            && self.deadlines.is_idle_for(min_idle, self.now(), self.clock.tick)
        {
            self.suspension.set(Suspension::Requested { idle_since: self.deadlines.since() });
            self.cancellation.wake();
        }
    }

    /// Returns whether the connection should be suspended now. Otherwise, the task is woken when it should be. Each
    /// request for a suspension is returned once.
    #[inline]
    pub fn poll_suspension(&self, waker: &Waker) -> bool {
        match self.suspension.get() {
            Suspension::Never | Suspension::WhenIdle => false,
            Suspension::Unregistered | Suspension::Requested { .. } => self.take_suspension(waker),
        }
    }

    /// Not inlined, because most requests of a connection do not need it.
    #[cold]
    fn take_suspension(&self, waker: &Waker) -> bool {
        let requested = self.suspension.replace(Suspension::WhenIdle);
        let is_due = requested == Suspension::Requested { idle_since: self.deadlines.since() }
            && self.deadlines.can_be_suspended()
            && self.cancellation.reason.get().is_none();
        if !is_due {
            self.cancellation.register(waker);
        }
        is_due
    }

    /// Registers the streams of a connection whose requests are independent of each other. Has an effect only once.
    #[cfg_attr(not(feature = "http2"), expect(dead_code, reason = "only HTTP/2 connections have streams"))]
    pub fn set_streams(&self, streams: Rc<dyn MultiplexedStreams>) {
        self.streams.get_or_init(|| streams);
    }

    /// Sets the session that encrypts the connection. Has an effect only once.
    pub fn set_session(&self, session: Weak<dyn PeerSession>) {
        self.session.get_or_init(|| session);
    }

    /// Returns the number that identifies the connection to the rebalancer.
    #[inline]
    pub fn rebalancer_key(&self) -> usize {
        self.accept_order as usize
    }

    pub fn evict(&self) {
        self.perform(self.deadlines.evict(self.now()), CancelReason::ServerShutdown);
    }

    fn perform(&self, action: Action, reason: CancelReason) {
        match action {
            Action::ShutdownRead => return self.shutdown_handle.shutdown_read(),
            Action::Shutdown => self.shutdown_handle.shutdown(),
            Action::Reset => self.shutdown_handle.reset(),
        }
        self.cancellation.set(reason);
    }

    /// Also cancels a pending handler.
    pub fn abort(&self, reason: CancelReason) {
        self.perform(self.deadlines.abort(), reason);
    }

    /// Cancels the connection if the client has closed or reset it while a handler or a response body is pending. With
    /// [`ServerOptions::half_close`], a client that has only shut down its write direction gets its response.
    pub fn cancel_if_gone(&self, options: &ServerOptions) {
        let wait = self.cancellation.wait.get();
        // In other phases, a task is waiting for the client. It receives the EOF after the bytes before it.
        if !matches!(wait, Wait::Response | Wait::Streams) || self.deadlines.phase.get() != Phase::Handling {
            return;
        }
        let handle = &self.shutdown_handle;
        let reason = match options.half_close || wait == Wait::Streams {
            true => handle.is_broken().then_some(CancelReason::ClientGone),
            false if handle.is_peer_closed() => Some(CancelReason::ClientGone),
            false => self.session.get().and_then(Weak::upgrade).and_then(|session| session.receive_ahead()),
        };
        if let Some(reason) = reason {
            self.abort(reason);
        }
    }

    pub fn close_if_idle(&self, idle: Duration) {
        if self.deadlines.is_idle_for(idle, self.now(), self.clock.tick) {
            self.shutdown_handle.shutdown_read();
        } else if self.streams.get().is_some() {
            // The connection announces the shutdown to its client.
            self.cancellation.wake();
        }
    }
}

/// Resets the connection on drop if it is sending a body that an orderly close would mark as complete. This guard must
/// be dropped before the sender, even when the task or the connection's future is dropped.
pub(crate) struct ResetOnDrop(pub Rc<ConnectionTimer>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if self.0.deadlines.body_ends_at_close.get() {
            self.0.shutdown_handle.reset();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CancelReason {
    #[error("handler or response body cancelled: {0} exceeded")]
    Deadline(Timeout),
    #[error("handler or response body cancelled: server shutting down")]
    ServerShutdown,
    #[error("handler or response body cancelled: connection closed by client")]
    ClientGone,
    #[error("handler or response body cancelled: cannot receive from client")]
    ReceiveFailed,
}

impl CancelReason {
    #[cold]
    pub fn log(self) {
        match self {
            // Logged as a warning, because the handler takes too long or waits for an event that does not occur. The
            // other deadlines are those of the client.
            Self::Deadline(Timeout::Request) => log_event!(WARN, "{self}"),
            Self::Deadline(_) | Self::ServerShutdown | Self::ClientGone | Self::ReceiveFailed => {
                log_event!(DEBUG, "{self}");
            }
        }
    }
}

/// Cancels a connection whose task is not waiting for its socket, but for a handler, the next chunk of a streamed
/// response, or the handler of an upgraded connection. In these states, closing the socket wakes no task. Also wakes a
/// task that is waiting for its socket, so that it suspends the connection.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    pub reason: Cell<Option<CancelReason>>,
    waker: RefCell<Option<Waker>>,
    wait: Cell<Wait>,
}

/// The event that the task of a connection is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wait {
    /// An event of the socket. Most requests complete without any other wait.
    #[default]
    Socket,
    /// The handler, or the next part of a response body.
    Response,
    /// The streams of an HTTP/2 connection, which reads from the client in the meantime.
    Streams,
    /// The handler of an upgraded connection, which detects a client reset itself.
    UpgradeHandler,
}

impl Cancellation {
    /// Cancels the connection. If it is already cancelled, keeps the first reason.
    pub fn set(&self, reason: CancelReason) {
        if self.reason.get().is_none() {
            self.reason.set(Some(reason));
        }
        // `self.waker` is not borrowed during the wake-up, because a waker can run arbitrary code.
        wake_all(self.waker.take());
    }

    /// Registers the waker of the connection's task.
    #[inline]
    pub fn register(&self, waker: &Waker) {
        if !self.waker.borrow().as_ref().is_some_and(|registered| registered.will_wake(waker)) {
            drop(self.waker.replace(Some(waker.clone())));
        }
    }

    /// Wakes the task so that it checks for other work.
    pub fn wake(&self) {
        let waker = self.waker.borrow().clone();
        wake_all(waker);
    }

    /// Awaits a handler or a response body until the connection is cancelled. The future is not polled again after
    /// that.
    pub async fn run_until_cancelled<T>(&self, wait: Wait, future: impl Future<Output = T>) -> io::Result<T> {
        let mut future = pin!(future);
        let _end_wait = EndWaitOnDrop(self);
        let result = poll_fn(|context| {
            if let Some(reason) = self.reason.get() {
                reason.log();
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason)));
            }
            // Registered before the poll, because the handler itself can shut down the server.
            self.register(context.waker());
            self.wait.set(wait);
            future.as_mut().poll(context).map(Ok)
        });
        result.await
    }
}

struct EndWaitOnDrop<'a>(&'a Cancellation);

impl Drop for EndWaitOnDrop<'_> {
    fn drop(&mut self) {
        self.0.wait.set(Wait::Socket);
    }
}
