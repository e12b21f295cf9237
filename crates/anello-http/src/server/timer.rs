//! Deadlines of connections, for next to nothing: a connection notes what it waits for and since when, in ticks of a clock
//! that is read now and then; whoever reads the clock looks at all of them and ends those that are late.
//!
//! So a request costs no timer and no look at the clock. The task of a late connection is woken by what its socket then
//! does: its receiving side ends, and it may still answer; or all of it breaks. One that waits for a handler instead is
//! woken by its [`Cancellation`].

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anello::net::ShutdownHandle;
use anello::time;
use slab::Slab;

use super::cancellation::{CancelReason, Cancellation};
use super::options::ServerOptions;
use crate::h1::HttpDate;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: its handler has the word.
    Handling,
    /// The first byte of its first request.
    FirstHead,
    /// The first byte of another request.
    Idle,
    /// The rest of a head.
    Head,
    /// More of a body.
    Body,
    /// Room to send, which may be waited for beside all others: it has a time of its own.
    Send,
    /// The client's end, after the server's own.
    Linger,
}

/// One connection's deadline.
#[derive(Debug)]
pub(crate) struct ConnectionTimer {
    phase: Cell<Phase>,
    /// When the phase began, in ticks.
    since: Cell<u64>,
    /// When that between requests began, while what may be a head is received.
    idle_since: Cell<u64>,
    /// Of the body that is being received, and for how long it was waited for before this phase, in ticks: while its
    /// handler does something else, the client may have no room to send.
    body_bytes: Cell<u64>,
    body_ticks: Cell<u64>,
    /// When the request began, while there is one and it has a deadline.
    request_since: Cell<Option<u64>>,
    /// Since when room to send is waited for, if it is. A body may be received meanwhile.
    send_since: Cell<Option<u64>>,
    expired_phase: Cell<Option<Phase>>,
    /// Whether a body is under way that an orderly end would make whole.
    body_ends_at_close: Cell<bool>,
    is_evicted: Cell<bool>,
    /// Its place in the order in which the worker's connections were accepted.
    accept_order: u64,
    /// Whether all of it was ended.
    pub cancellation: Cancellation,
    shutdown_handle: ShutdownHandle,
    clock: Rc<Clock>,
}

/// The worker's clock. Its ticks go by the time of the runtime's sleeps, which is simulated with them.
#[derive(Debug)]
pub(crate) struct Clock {
    resolution: Duration,
    ticks: Cell<u64>,
    date: Cell<HttpDate>,
    /// Connections that were watched.
    timers_created: Cell<u64>,
}

impl Clock {
    pub fn new(resolution: Duration) -> Rc<Self> {
        // Shorter ones would be all that a worker does.
        let resolution = resolution.max(Duration::from_millis(1));
        Rc::new(Self {
            resolution,
            ticks: Cell::new(0),
            date: Cell::new(date_now()),
            timers_created: Cell::new(0),
        })
    }

    /// Reads the time. To be called before anything counts from it, and now and then.
    pub fn read(&self) {
        let ticks = time::monotonic_now().as_nanos() / self.resolution.as_nanos();
        self.ticks.set(u64::try_from(ticks).unwrap_or(u64::MAX));
        self.date.set(date_now());
    }

    #[inline]
    pub fn date(&self) -> HttpDate {
        self.date.get()
    }

    /// So long, in ticks that have wholly gone by.
    fn ticks_for(&self, duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos().div_ceil(self.resolution.as_nanos()) + 1).unwrap_or(u64::MAX)
    }
}

fn date_now() -> HttpDate {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    HttpDate::from_unix(since_1970.as_secs())
}

impl ConnectionTimer {
    pub fn new(shutdown_handle: ShutdownHandle, clock: &Rc<Clock>) -> Rc<Self> {
        let (now, accept_order) = (clock.ticks.get(), clock.timers_created.get());
        clock.timers_created.set(accept_order + 1);
        Rc::new(Self {
            phase: Cell::new(Phase::FirstHead),
            since: Cell::new(now),
            idle_since: Cell::new(now),
            body_bytes: Cell::new(0),
            body_ticks: Cell::new(0),
            request_since: Cell::new(None),
            send_since: Cell::new(None),
            expired_phase: Cell::new(None),
            body_ends_at_close: Cell::new(false),
            is_evicted: Cell::new(false),
            accept_order,
            cancellation: Cancellation::default(),
            shutdown_handle,
            clock: Rc::clone(clock),
        })
    }

    /// The address of the client; none on a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.shutdown_handle.peer_addr().ok()
    }

    /// The connection waits for this; for how long counts from when it began to.
    #[inline]
    pub fn enter_phase(&self, phase: Phase) {
        let previous = self.phase.replace(phase);
        if previous != phase {
            let since = self.since.replace(self.clock.ticks.get());
            if previous == Phase::Head || phase == Phase::Head {
                self.restart_head_timer(previous, phase, since);
            }
        }
    }

    /// A head begins, or what has come of one was an empty line, which comes cut in two from whoever wants more time: the
    /// phase around it goes on then, that began so long ago.
    #[cold]
    fn restart_head_timer(&self, previous: Phase, phase: Phase, since: u64) {
        match (previous, phase) {
            // The first head has its time from the beginning of the connection.
            (Phase::FirstHead, Phase::Head) | (Phase::Head, Phase::FirstHead) => self.since.set(since),
            (Phase::Idle, Phase::Head) => self.idle_since.set(since),
            // Its beginning has come together with the end of the request before.
            (_, Phase::Head) => self.idle_since.set(self.since.get()),
            (Phase::Head, Phase::Idle) => self.since.set(self.idle_since.get()),
            _ => {}
        }
    }

    /// Room to send is waited for, from now on if it was not before.
    #[inline]
    pub fn start_send_timer(&self) {
        if self.send_since.get().is_none() {
            self.send_since.set(Some(self.clock.ticks.get()));
        }
    }

    /// There was room: the time for the next counts anew.
    #[inline]
    pub fn note_send_progress(&self) {
        self.send_since.set(None);
    }

    /// What is spoken from now on is not HTTP, and has no deadlines.
    pub fn disable(&self) {
        self.phase.set(Phase::Handling);
    }

    /// A request has come.
    #[inline]
    pub fn begin_request(&self, has_deadline: bool) {
        self.phase.set(Phase::Handling);
        if has_deadline {
            self.request_since.set(Some(self.clock.ticks.get()));
        }
    }

    /// Its answer has gone.
    #[inline]
    pub fn end_request(&self) {
        self.request_since.set(None);
    }

    pub fn begin_body(&self) {
        self.body_bytes.set(0);
        self.body_ticks.set(0);
    }

    pub fn add_body_bytes(&self, bytes: usize) {
        self.body_bytes.set(self.body_bytes.get() + bytes as u64);
    }

    /// Something of the body has come, or nobody waits for it any more.
    pub fn pause_body_timer(&self) {
        if self.phase.get() == Phase::Body {
            self.phase.set(Phase::Handling);
            self.body_ticks.set(self.body_ticks.get() + self.elapsed_ticks());
        }
    }

    /// How long the phase has lasted.
    fn elapsed_ticks(&self) -> u64 {
        self.clock.ticks.get().saturating_sub(self.since.get())
    }

    /// A body begins, or has gone whole, which only the end of the connection delimits: until then, that must not be an
    /// orderly one.
    pub fn set_body_ends_at_close(&self, is_pending: bool) {
        self.body_ends_at_close.set(is_pending);
    }

    /// Resets the connection.
    pub fn reset(&self) {
        self.shutdown_handle.reset();
    }

    /// What the connection was ended for.
    pub fn expired_phase(&self) -> Option<Phase> {
        self.expired_phase.get()
    }

    /// Ends the connection if it is late.
    fn check_deadline(&self, options: &ServerOptions) {
        let clock = &*self.clock;
        if self.expired_phase.get() == Some(Phase::Handling) {
            return;
        }
        if let (Some(since), Some(timeout)) = (self.request_since.get(), options.request_timeout)
            && clock.ticks.get().saturating_sub(since) > clock.ticks_for(timeout)
        {
            return self.expire(Phase::Handling);
        }
        if let Some(since) = self.send_since.get()
            && clock.ticks.get().saturating_sub(since) > clock.ticks_for(options.send_timeout)
        {
            return self.expire(Phase::Send);
        }
        let elapsed = self.elapsed_ticks();
        let (elapsed, timeout) = match self.phase.get() {
            Phase::Handling | Phase::Send => return self.cancel_if_reset(),
            Phase::Idle => (elapsed, options.keep_alive_timeout),
            // The first head has to come as soon as any.
            Phase::FirstHead | Phase::Head => (elapsed, options.header_timeout),
            Phase::Body => {
                let milliseconds =
                    self.body_bytes.get().saturating_mul(1000) / options.min_body_bytes_per_second.max(1);
                let timeout = options.body_timeout.saturating_add(Duration::from_millis(milliseconds));
                (self.body_ticks.get() + elapsed, timeout)
            }
            Phase::Linger => (elapsed, options.linger_timeout),
        };
        if elapsed > clock.ticks_for(timeout) {
            self.expire(self.phase.get());
        }
    }

    fn expire(&self, phase: Phase) {
        if self.expired_phase.replace(Some(phase)) == Some(phase) {
            // It was told before, and has not ended.
            return self.abort(CancelReason::Deadline);
        }
        match phase {
            // It may still answer.
            Phase::FirstHead | Phase::Idle | Phase::Head | Phase::Body => {
                self.since.set(self.clock.ticks.get());
                self.body_ticks.set(0);
                self.shutdown_handle.shutdown_read();
            }
            Phase::Handling | Phase::Send | Phase::Linger => self.abort(CancelReason::Deadline),
        }
    }

    /// Breaks the connection, and has its task give up a handler that it waits for.
    fn abort(&self, reason: CancelReason) {
        // Behind an orderly end, the kernel would keep megabytes for a client that takes nothing, for minutes, and for as
        // many as come again: they count no more. The answer is cut anyway.
        if self.send_since.get().is_some() || self.body_ends_at_close.get() {
            self.shutdown_handle.reset();
        } else {
            self.shutdown_handle.shutdown();
        }
        self.cancellation.set(reason);
    }

    /// Ends the connection if its client has reset it while a handler is waited for: nothing else looks at the socket. One
    /// that has only ended its side still has a peer, and gets its answer.
    fn cancel_if_reset(&self) {
        if self.cancellation.has_pending_handler()
            && self
                .shutdown_handle
                .peer_addr()
                .is_err_and(|error| error.kind() == io::ErrorKind::NotConnected)
        {
            self.abort(CancelReason::ClientReset);
        }
    }

    /// Since when the connection waits for its client, if it may be evicted: while it is idle, or in whatever it waits for.
    fn evictable_since(&self, include_stalled: bool) -> Option<u64> {
        // One that was struck ends by itself, unless what it is told does not fit the connection.
        let is_closing =
            self.expired_phase.get().is_some() && !(include_stalled && self.send_since.get().is_some());
        if self.is_evicted.get() || is_closing {
            return None;
        }
        match (self.send_since.get(), self.phase.get()) {
            (None, Phase::FirstHead | Phase::Idle) => Some(self.since.get()),
            _ if !include_stalled => None,
            (Some(since), _) => Some(since),
            (None, Phase::Handling) => None,
            (None, _) => Some(self.since.get()),
        }
    }

    /// Closes the connection to make room.
    fn evict(&self) {
        self.is_evicted.set(true);
        match (self.send_since.get(), self.phase.get()) {
            // A request that is on its way is still answered, and is the last.
            (None, phase @ (Phase::FirstHead | Phase::Idle)) => self.expire(phase),
            _ => self.abort(CancelReason::ServerShutdown),
        }
    }

    /// Whether it was closed to make room.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted.get()
    }

    /// Ends the connection if it has waited so long for a request.
    fn close_if_idle(&self, idle: Duration) {
        if matches!(self.phase.get(), Phase::FirstHead | Phase::Idle)
            && self.elapsed_ticks() >= self.clock.ticks_for(idle)
        {
            self.shutdown_handle.shutdown_read();
        }
    }
}

/// Resets the connection if this is dropped within a body that an orderly end would make whole: to be dropped before what
/// sends, with the task, or by a program that gives the connection up.
pub(crate) struct ResetOnDrop(pub Rc<ConnectionTimer>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if self.0.body_ends_at_close.get() {
            self.0.reset();
        }
    }
}

/// The connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct TimerRegistry {
    slab: RefCell<Slab<Rc<ConnectionTimer>>>,
}

/// A place among them, given back when dropped.
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

    /// Ends those that are late.
    pub fn check_deadlines(&self, options: &ServerOptions) {
        self.for_each(|timer| timer.check_deadline(options));
    }

    /// Ends those that have waited so long for a request.
    pub fn close_idle(&self, idle: Duration) {
        self.for_each(|timer| timer.close_if_idle(idle));
    }

    /// Closes those that have waited longest for their clients, at most so many; how many those are. Of those that began to
    /// wait in the same tick, idle ones go first, and then those that were accepted first.
    #[cold]
    pub fn evict(&self, count: usize, include_stalled: bool) -> usize {
        let candidate = |timer: &Rc<ConnectionTimer>| {
            let since = timer.evictable_since(include_stalled)?;
            Some(((since, timer.phase.get() != Phase::Idle, timer.accept_order), Rc::clone(timer)))
        };
        let mut candidates: Vec<_> =
            self.slab.borrow().iter().filter_map(|(_, timer)| candidate(timer)).collect();
        if candidates.len() > count && count > 0 {
            candidates.select_nth_unstable_by_key(count - 1, |(order, _)| *order);
            candidates.truncate(count);
        }
        // Not borrowed meanwhile: a waker may do anything, such as dropping a connection.
        candidates.iter().for_each(|(_, timer)| timer.evict());
        candidates.len()
    }

    /// Breaks all.
    pub fn abort_all(&self) {
        self.for_each(|timer| timer.abort(CancelReason::ServerShutdown));
    }

    fn for_each(&self, action: impl Fn(&ConnectionTimer)) {
        let capacity = self.slab.borrow().capacity();
        for key in 0..capacity {
            let timer = self.slab.borrow().get(key).map(Rc::clone);
            // Not borrowed meanwhile: a waker may do anything, such as dropping a connection.
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
