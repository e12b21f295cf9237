//! A worker's clock and timers: the link between the clock, the [`Deadlines`] of connections, and their sockets.
//!
//! Deadlines count the ticks of a clock that is updated periodically, so a request needs neither its own timer nor access
//! to a clock. At each tick, a task of the worker checks all connections and expires those whose deadline has passed.
//!
//! The task of an expired connection is woken by its socket: either the read half is shut down and the connection can
//! still respond, or the whole connection is closed. A task that is waiting for a handler is woken by its
//! [`Cancellation`].

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use anello::PagedSlab;
use anello::net::ShutdownHandle;
use anello::time;

use super::deadline::{Action, Deadlines, Phase, TickLength};
use super::options::ServerOptions;
use crate::h1::HttpDate;

/// The clock of a worker. It follows the runtime's timers, and is simulated together with them.
#[derive(Debug)]
pub(crate) struct Clock {
    tick: TickLength,
    now: Cell<u64>,
    pub date: Cell<HttpDate>,
    timers_created: Cell<u64>,
}

impl Clock {
    pub fn new(resolution: Duration) -> Rc<Self> {
        Rc::new(Self {
            tick: TickLength::new(resolution),
            now: Cell::new(0),
            date: Cell::new(date_now()),
            timers_created: Cell::new(0),
        })
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
    accept_order: u64,
    /// The streams of a connection that serves several requests at the same time.
    streams: OnceCell<Rc<dyn MultiplexedStreams>>,
}

/// The deadlines of the streams of one connection.
pub(crate) trait MultiplexedStreams: fmt::Debug {
    /// Wakes the tasks of streams of which a deadline has expired.
    fn check_deadlines(&self, now: u64, options: &ServerOptions, tick: TickLength);
}

impl ConnectionTimer {
    pub fn new(shutdown_handle: ShutdownHandle, clock: &Rc<Clock>) -> Rc<Self> {
        let accept_order = clock.timers_created.get();
        clock.timers_created.set(accept_order + 1);
        Rc::new(Self {
            deadlines: Deadlines::new(clock.now.get()),
            cancellation: Cancellation::default(),
            shutdown_handle,
            clock: Rc::clone(clock),
            accept_order,
            streams: OnceCell::new(),
        })
    }

    #[inline]
    pub fn date(&self) -> HttpDate {
        self.clock.date.get()
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now.get()
    }

    pub fn check_deadlines(&self, options: &ServerOptions) {
        match self.deadlines.check(self.now(), options, self.clock.tick) {
            Some(action) => self.perform(action, CancelReason::Deadline),
            None if self.deadlines.phase.get() == Phase::Handling => self.cancel_if_reset(),
            None => {}
        }
        if let Some(streams) = self.streams.get() {
            streams.check_deadlines(self.now(), options, self.clock.tick);
        }
    }

    /// Registers the streams of a connection whose requests are independent of each other. Has an effect only once.
    #[cfg_attr(not(feature = "http2"), expect(dead_code, reason = "only HTTP/2 connections have streams"))]
    pub fn set_streams(&self, streams: Rc<dyn MultiplexedStreams>) {
        self.streams.get_or_init(|| streams);
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

    /// Cancels the connection if the client has reset it while a handler is pending. In this state, no task is polling
    /// the socket. A client that has only shut down its write half is still connected and gets its response.
    fn cancel_if_reset(&self) {
        let is_handler_pending =
            self.cancellation.waker.borrow().is_some() && !self.cancellation.is_upgraded.get();
        if is_handler_pending
            && let Err(error) = self.shutdown_handle.peer_addr()
            && error.kind() == io::ErrorKind::NotConnected
        {
            self.abort(CancelReason::ClientReset);
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

#[derive(Debug, Default)]
pub(crate) struct TimerRegistry {
    slab: RefCell<PagedSlab<Rc<ConnectionTimer>>>,
}

/// The registration of a timer, removed on drop.
pub(crate) struct TimerEntry {
    registry: Rc<TimerRegistry>,
    key: usize,
}

impl TimerRegistry {
    pub fn add(self: &Rc<Self>, timer: Rc<ConnectionTimer>) -> TimerEntry {
        let key = self.slab.borrow_mut().insert(timer);
        TimerEntry { registry: Rc::clone(self), key }
    }

    pub fn count(&self) -> usize {
        self.slab.borrow().len()
    }

    /// Evicts up to `count` connections, longest waiting time first, and returns their number. Ties are resolved in
    /// favor of idle connections, then of connections accepted earlier.
    #[cold]
    pub fn evict(&self, count: usize, include_stalled: bool) -> usize {
        let candidate = |timer: &Rc<ConnectionTimer>| {
            let since = timer.deadlines.evictable_since(include_stalled)?;
            Some(((since, timer.deadlines.phase.get() != Phase::Idle, timer.accept_order), Rc::clone(timer)))
        };
        let mut candidates: Vec<_> =
            self.slab.borrow().iter().filter_map(|(_, timer)| candidate(timer)).collect();
        if candidates.len() > count && count > 0 {
            candidates.select_nth_unstable_by_key(count - 1, |(order, _)| *order);
            candidates.truncate(count);
        }
        // The slab is not borrowed here: a waker can run arbitrary code, such as dropping a connection.
        for (_, timer) in &candidates {
            timer.perform(timer.deadlines.evict(timer.now()), CancelReason::ServerShutdown);
        }
        candidates.len()
    }

    pub fn for_each(&self, action: impl Fn(&ConnectionTimer)) {
        let key_bound = self.slab.borrow().key_bound();
        for key in 0..key_bound {
            let timer = self.slab.borrow().get(key).map(Rc::clone);
            // The slab is not borrowed here: a waker can run arbitrary code, such as dropping a connection.
            if let Some(timer) = timer {
                action(&timer);
            }
        }
    }
}

impl Drop for TimerEntry {
    fn drop(&mut self) {
        // Dropped after the borrow, because the drop of a timer can run arbitrary code.
        let removed = self.registry.slab.borrow_mut().remove(self.key);
        drop(removed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CancelReason {
    #[error("handler or response body cancelled: request_timeout exceeded")]
    Deadline,
    #[error("handler or response body cancelled: server shutting down")]
    ServerShutdown,
    #[error("handler or response body cancelled: connection reset by client")]
    ClientReset,
}

/// Cancels a connection whose task is not waiting for its socket, but for a handler, the next chunk of a streamed
/// response, or the handler of an upgraded connection. In these states, closing the socket wakes no task.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    pub reason: Cell<Option<CancelReason>>,
    /// Set while the task is waiting for a handler or a response body. Most requests complete without waiting.
    waker: RefCell<Option<Waker>>,
    /// The handler of an upgraded connection detects a client reset itself.
    pub is_upgraded: Cell<bool>,
}

impl Cancellation {
    /// Cancels the connection. If it is already cancelled, keeps the first reason.
    pub fn set(&self, reason: CancelReason) {
        if self.reason.get().is_none() {
            self.reason.set(Some(reason));
        }
        // `self.waker` is not borrowed during the wake-up, because a waker can run arbitrary code.
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Wakes the waiting task so that it checks for other work.
    pub fn wake(&self) {
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Awaits a handler or a response body until the connection is cancelled. The future is not polled again after
    /// that.
    pub async fn run_until_cancelled<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        let mut future = pin!(future);
        let _clear_waker = ClearWakerOnDrop(self);
        let result = poll_fn(|context| {
            if let Some(reason) = self.reason.get() {
                return Poll::Ready(Err(cancelled_error(reason)));
            }
            // Registered before the poll, because the handler itself can shut down the server.
            let waker = context.waker();
            if !self.waker.borrow().as_ref().is_some_and(|registered| registered.will_wake(waker)) {
                drop(self.waker.replace(Some(waker.clone())));
            }
            future.as_mut().poll(context).map(Ok)
        });
        result.await
    }
}

struct ClearWakerOnDrop<'a>(&'a Cancellation);

impl Drop for ClearWakerOnDrop<'_> {
    fn drop(&mut self) {
        drop(self.0.waker.take());
    }
}

#[cold]
fn cancelled_error(reason: CancelReason) -> io::Error {
    match reason {
        // Logged as a warning, because the handler takes too long or waits for an event that does not occur.
        CancelReason::Deadline => tracing::warn!("{reason}"),
        CancelReason::ServerShutdown | CancelReason::ClientReset => tracing::debug!("{reason}"),
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, reason)
}
