//! Timeouts of connections at minimal cost.
//!
//! A connection records its phase and the tick at which the phase started. The ticks come from a clock that is updated
//! periodically, so a request needs no timer and no clock access. At each tick, a task of the worker checks all
//! connections and expires the late ones.
//!
//! The task of an expired connection is woken by its socket: either the read half is shut down and the connection can
//! still respond, or the whole connection is closed. A task that waits for a handler is woken by its [`Cancellation`].

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

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// None: the handler is running.
    Handling,
    /// The first byte of the first request.
    FirstHead,
    /// The first byte of another request.
    Idle,
    /// The rest of a head.
    Head,
    /// More data of a body.
    Body,
    /// Space in the send buffer. It has a timer of its own, because the connection can wait for it during any other
    /// phase.
    Send,
    /// EOF from the client, after the server has shut down the connection.
    Linger,
}

/// The timeouts of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionTimer {
    phase: Cell<Phase>,
    /// Tick at which the phase started.
    since: Cell<u64>,
    /// Tick at which the idle phase started, kept while a possible head is received.
    idle_since: Cell<u64>,
    /// Number of bytes received of the current body, and the ticks spent waiting for it before the current phase. The
    /// time in which the handler does not read does not count, because the client may be unable to send.
    body_bytes: Cell<u64>,
    body_ticks: Cell<u64>,
    /// Tick at which the request started, if there is a current request and it has a timeout.
    request_since: Cell<Option<u64>>,
    /// Tick since which the connection waits for space in the send buffer. A body may be received at the same time.
    send_since: Cell<Option<u64>>,
    expired_phase: Cell<Option<Phase>>,
    /// `true` if a body is being sent that an orderly close would mark as complete.
    body_ends_at_close: Cell<bool>,
    is_evicted: Cell<bool>,
    /// Number of connections that the worker accepted before this one.
    accept_order: u64,
    /// Cancels the connection as a whole.
    pub cancellation: Cancellation,
    pub shutdown_handle: ShutdownHandle,
    clock: Rc<Clock>,
}

/// The clock of a worker. Its ticks follow the runtime's timers, and are simulated with them.
#[derive(Debug)]
pub(crate) struct Clock {
    resolution: Duration,
    ticks: Cell<u64>,
    date: Cell<HttpDate>,
    /// Number of timers created so far.
    timers_created: Cell<u64>,
}

impl Clock {
    pub fn new(resolution: Duration) -> Rc<Self> {
        // With a shorter resolution, checking timeouts would dominate the work of the thread.
        let resolution = resolution.max(Duration::from_millis(1));
        Rc::new(Self {
            resolution,
            ticks: Cell::new(0),
            date: Cell::new(date_now()),
            timers_created: Cell::new(0),
        })
    }

    /// Reads the current time. Must be called periodically, and before any timeout starts.
    pub fn read(&self) {
        let ticks = time::monotonic_now().as_nanos() / self.resolution.as_nanos();
        self.ticks.set(u64::try_from(ticks).unwrap_or(u64::MAX));
        self.date.set(date_now());
    }

    #[inline]
    pub fn date(&self) -> HttpDate {
        self.date.get()
    }

    /// Returns a number of ticks in which at least `duration` has elapsed.
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

    /// Returns the address of the client, or `None` for a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.shutdown_handle.peer_addr().ok()
    }

    /// Enters a phase. The time in the phase starts when it differs from the previous one.
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

    /// Handles the start of a head, or input that turned out to be an empty line. In the second case the surrounding
    /// phase continues with its original start, so that a client cannot extend its timeout with split empty lines.
    #[cold]
    fn restart_head_timer(&self, previous: Phase, phase: Phase, since: u64) {
        match (previous, phase) {
            // The timeout of the first head starts with the connection.
            (Phase::FirstHead, Phase::Head) | (Phase::Head, Phase::FirstHead) => self.since.set(since),
            (Phase::Idle, Phase::Head) => self.idle_since.set(since),
            // The start of the head was received together with the end of the previous request.
            (_, Phase::Head) => self.idle_since.set(self.since.get()),
            (Phase::Head, Phase::Idle) => self.since.set(self.idle_since.get()),
            _ => {}
        }
    }

    /// Starts the send timer, unless it is running.
    #[inline]
    pub fn start_send_timer(&self) {
        if self.send_since.get().is_none() {
            self.send_since.set(Some(self.clock.ticks.get()));
        }
    }

    /// Stops the send timer after progress. The next wait starts it again.
    #[inline]
    pub fn note_send_progress(&self) {
        self.send_since.set(None);
    }

    /// Disables the timeouts for an upgraded connection.
    pub fn disable(&self) {
        self.phase.set(Phase::Handling);
    }

    /// Starts the timer of a request.
    #[inline]
    pub fn begin_request(&self, has_deadline: bool) {
        self.phase.set(Phase::Handling);
        if has_deadline {
            self.request_since.set(Some(self.clock.ticks.get()));
        }
    }

    /// Stops the timer of a request after its response.
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

    /// Pauses the body timer, because data has arrived or no task waits for it.
    pub fn pause_body_timer(&self) {
        if self.phase.get() == Phase::Body {
            self.phase.set(Phase::Handling);
            self.body_ticks.set(self.body_ticks.get() + self.elapsed_ticks());
        }
    }

    /// Returns the number of ticks since the phase started.
    fn elapsed_ticks(&self) -> u64 {
        self.clock.ticks.get().saturating_sub(self.since.get())
    }

    /// Sets whether a body is being sent that is delimited only by closing the connection. Until it is complete, the
    /// connection must not be closed in an orderly way.
    pub fn set_body_ends_at_close(&self, is_pending: bool) {
        self.body_ends_at_close.set(is_pending);
    }

    /// Resets the connection.
    pub fn reset(&self) {
        self.shutdown_handle.reset();
    }

    /// Returns the phase whose timeout has expired.
    pub fn expired_phase(&self) -> Option<Phase> {
        self.expired_phase.get()
    }

    /// Expires the connection if it is late.
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
            // The first head has the same timeout as the others.
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
            // The connection was expired before and has not been closed since.
            return self.abort(CancelReason::Deadline);
        }
        match phase {
            // The connection can still respond.
            Phase::FirstHead | Phase::Idle | Phase::Head | Phase::Body => {
                self.since.set(self.clock.ticks.get());
                self.body_ticks.set(0);
                self.shutdown_handle.shutdown_read();
            }
            Phase::Handling | Phase::Send | Phase::Linger => self.abort(CancelReason::Deadline),
        }
    }

    /// Closes the connection and cancels a pending handler.
    fn abort(&self, reason: CancelReason) {
        // After an orderly close, the kernel would retain megabytes for a client that does not read, for minutes, and
        // these connections no longer count towards the limit. The response is truncated in any case.
        if self.send_since.get().is_some() || self.body_ends_at_close.get() {
            self.shutdown_handle.reset();
        } else {
            self.shutdown_handle.shutdown();
        }
        self.cancellation.set(reason);
    }

    /// Cancels the connection if the client has reset it while a handler is pending, because no task polls the socket
    /// then. A client that has only shut down its write half is still connected and gets its response.
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

    /// Returns the tick since which the connection waits for its client, if it can be evicted: while it is idle or,
    /// with `include_stalled`, in any waiting phase.
    fn evictable_since(&self, include_stalled: bool) -> Option<u64> {
        // An expired connection closes by itself, unless its response does not fit into the send buffer.
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

    /// Closes the connection to make room for another.
    fn evict(&self) {
        self.is_evicted.set(true);
        match (self.send_since.get(), self.phase.get()) {
            // A request that is being received is still answered, as the last one.
            (None, phase @ (Phase::FirstHead | Phase::Idle)) => self.expire(phase),
            _ => self.abort(CancelReason::ServerShutdown),
        }
    }

    /// Returns `true` if the connection was evicted.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted.get()
    }

    /// Closes the connection if it has been idle for at least `idle`.
    fn close_if_idle(&self, idle: Duration) {
        if matches!(self.phase.get(), Phase::FirstHead | Phase::Idle)
            && self.elapsed_ticks() >= self.clock.ticks_for(idle)
        {
            self.shutdown_handle.shutdown_read();
        }
    }
}

/// Resets the connection on drop if a body is being sent that an orderly close would mark as complete. It must be
/// dropped before the sender, including when the task or the connection's future is dropped.
pub(crate) struct ResetOnDrop(pub Rc<ConnectionTimer>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if self.0.body_ends_at_close.get() {
            self.0.reset();
        }
    }
}

/// The timers of all connections of a worker.
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

    /// Expires the late connections.
    pub fn check_deadlines(&self, options: &ServerOptions) {
        self.for_each(|timer| timer.check_deadline(options));
    }

    /// Closes the connections that have been idle for at least `idle`.
    pub fn close_idle(&self, idle: Duration) {
        self.for_each(|timer| timer.close_if_idle(idle));
    }

    /// Evicts up to `count` connections and returns their number, longest waiting time first. For equal waiting times,
    /// idle connections come first, then those accepted earlier.
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
        // Not borrowed during the wake-ups: a waker can run arbitrary code, such as dropping a connection.
        candidates.iter().for_each(|(_, timer)| timer.evict());
        candidates.len()
    }

    /// Aborts all connections.
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
