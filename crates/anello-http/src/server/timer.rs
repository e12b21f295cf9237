//! A worker's clock and timers: the link between the clock, the [`Deadlines`] of connections, and their sockets.
//!
//! Deadlines count the ticks of a clock that is updated periodically, so a request needs no timer of its own and no
//! clock access. At each tick, a task of the worker checks all connections and expires those whose deadline has passed.
//!
//! The task of an expired connection is woken by its socket: either the read half is shut down and the connection can
//! still respond, or the whole connection is closed. A task that is waiting for a handler is woken by its
//! [`Cancellation`].

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anello::net::ShutdownHandle;
use anello::time;
use slab::Slab;

use super::cancellation::{CancelReason, Cancellation};
use super::deadline::{Action, Deadlines, Phase, TickLength};
use super::options::ServerOptions;
use crate::h1::HttpDate;

/// The clock of a worker. It follows the runtime's timers, and is simulated together with them.
#[derive(Debug)]
pub(crate) struct Clock {
    tick: TickLength,
    now: Cell<u64>,
    date: Cell<HttpDate>,
    /// Number of timers created so far.
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

    #[inline]
    pub fn date(&self) -> HttpDate {
        self.date.get()
    }
}

fn date_now() -> HttpDate {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    HttpDate::from_unix(since_1970.as_secs())
}

#[derive(Debug)]
pub(crate) struct ConnectionTimer {
    pub deadlines: Deadlines,
    /// Cancels the connection as a whole.
    pub cancellation: Cancellation,
    pub shutdown_handle: ShutdownHandle,
    clock: Rc<Clock>,
    /// Number of connections that the worker accepted before this one.
    accept_order: u64,
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
        })
    }

    #[inline]
    pub fn date(&self) -> HttpDate {
        self.clock.date()
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now.get()
    }

    /// Returns the address of the client, or `None` for a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.shutdown_handle.peer_addr().ok()
    }

    /// Expires the connection if a deadline has passed.
    fn check_deadlines(&self, options: &ServerOptions) {
        match self.deadlines.check(self.now(), options, self.clock.tick) {
            Some(action) => self.perform(action, CancelReason::Deadline),
            None if self.deadlines.phase() == Phase::Handling => self.cancel_if_reset(),
            None => {}
        }
    }

    fn perform(&self, action: Action, reason: CancelReason) {
        match action {
            Action::ShutdownRead => return self.shutdown_handle.shutdown_read(),
            Action::Shutdown => self.shutdown_handle.shutdown(),
            Action::Reset => self.shutdown_handle.reset(),
        }
        self.cancellation.set(reason);
    }

    /// Closes the connection and cancels a pending handler.
    fn abort(&self, reason: CancelReason) {
        self.perform(self.deadlines.abort(), reason);
    }

    /// Cancels the connection if the client has reset it while a handler is pending, because no task polls the socket
    /// then. A client that has only shut down its write half is still connected and gets its response.
    fn cancel_if_reset(&self) {
        let is_reset = || {
            let address = self.shutdown_handle.peer_addr();
            address.is_err_and(|error| error.kind() == io::ErrorKind::NotConnected)
        };
        if self.cancellation.has_pending_handler() && is_reset() {
            self.abort(CancelReason::ClientReset);
        }
    }

    /// Closes the connection to make room for another one.
    fn evict(&self) {
        self.perform(self.deadlines.evict(self.now()), CancelReason::ServerShutdown);
    }

    /// Closes the connection if it has been idle for at least `idle`.
    fn close_if_idle(&self, idle: Duration) {
        if self.deadlines.is_idle_for(idle, self.now(), self.clock.tick) {
            self.shutdown_handle.shutdown_read();
        }
    }
}

/// Resets the connection on drop if it is sending a body that an orderly close would mark as complete. It must be
/// dropped before the sender, including when the task or the connection's future is dropped.
pub(crate) struct ResetOnDrop(pub Rc<ConnectionTimer>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if self.0.deadlines.body_ends_at_close() {
            self.0.shutdown_handle.reset();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct TimerRegistry {
    slab: RefCell<Slab<Rc<ConnectionTimer>>>,
}

/// The registration of a timer, removed on drop.
#[derive(Debug)]
pub(crate) struct TimerEntry {
    registry: Rc<TimerRegistry>,
    key: usize,
}

impl TimerRegistry {
    pub fn add(self: &Rc<Self>, timer: Rc<ConnectionTimer>) -> TimerEntry {
        TimerEntry { registry: Rc::clone(self), key: self.slab.borrow_mut().insert(timer) }
    }

    pub fn count(&self) -> usize {
        self.slab.borrow().len()
    }

    pub fn check_deadlines(&self, options: &ServerOptions) {
        self.for_each(|timer| timer.check_deadlines(options));
    }

    pub fn close_idle(&self, idle: Duration) {
        self.for_each(|timer| timer.close_if_idle(idle));
    }

    /// Evicts up to `count` connections, longest waiting time first, and returns their number. For equal waiting times,
    /// idle connections come first, followed by connections accepted earlier.
    #[cold]
    pub fn evict(&self, count: usize, include_stalled: bool) -> usize {
        let candidate = |timer: &Rc<ConnectionTimer>| {
            let since = timer.deadlines.evictable_since(include_stalled)?;
            Some(((since, timer.deadlines.phase() != Phase::Idle, timer.accept_order), Rc::clone(timer)))
        };
        let mut candidates: Vec<_> =
            self.slab.borrow().iter().filter_map(|(_, timer)| candidate(timer)).collect();
        if candidates.len() > count && count > 0 {
            candidates.select_nth_unstable_by_key(count - 1, |(order, _)| *order);
            candidates.truncate(count);
        }
        // Not borrowed during the wake-ups: a waker can run arbitrary code, such as dropping a connection.
        candidates.iter().for_each(|(_, timer)| timer.evict());
        candidates.len()
    }

    pub fn abort_all(&self) {
        self.for_each(|timer| timer.abort(CancelReason::ServerShutdown));
    }

    fn for_each(&self, action: impl Fn(&ConnectionTimer)) {
        let capacity = self.slab.borrow().capacity();
        for key in 0..capacity {
            let timer = self.slab.borrow().get(key).map(Rc::clone);
            // Not borrowed during the call: a waker can run arbitrary code, such as dropping a connection.
            if let Some(timer) = timer {
                action(&timer);
            }
        }
    }
}

impl Drop for TimerEntry {
    fn drop(&mut self) {
        self.registry.slab.borrow_mut().try_remove(self.key);
    }
}
