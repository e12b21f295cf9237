//! State shared by all connections of a session: protocol, deadlines and counters.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use anello::time::{self, timeout};
use hdrhistogram::Histogram;

use crate::model::config::{LoadConfig, Mode};
use crate::model::errors::{ConnectionError, ErrorKind};
use crate::model::histogram::latency_histogram;
use crate::model::interval::{Counts, Interval};
use crate::model::tls::HandshakeSummary;
use crate::wire::connect;
use crate::wire::exchange::Exchange;
use crate::wire::stream::Stream;
use crate::wire::tls_stream::TlsConnector;

/// Delay after which an open-loop request counts as late, in nanoseconds.
const LATE_THRESHOLD_NS: u64 = 1_000_000;

/// Start of the time of a session.
enum Origin {
    /// The same for all threads.
    Real(Instant),
    /// On a simulated host.
    Virtual(time::Instant),
}

impl Origin {
    fn new(origin: Instant) -> Self {
        match anello::current_driver() {
            Some(driver) if driver.is_simulated() => Self::Virtual(time::Instant::now()),
            _ => Self::Real(origin),
        }
    }
}

pub(crate) struct Shared {
    pub load: LoadConfig,
    origin: Origin,
    pub exchange: Exchange,
    tls: Option<Rc<TlsConnector>>,
    /// Result of [`LoadConfig::effective_source_addresses`].
    source_addresses: Vec<IpAddr>,
    pub open_loop: bool,
    /// Zero in an open loop.
    pub think_time: Duration,
    pub max_in_flight: usize,
    pub keep_alive: bool,
    /// Set if the server may close a connection between requests. The connection is then opened again.
    pub server_may_close: bool,
    /// Set if connections are opened again after an error.
    pub reconnect: bool,
    /// End of the warm-up. Requests that were due earlier do not count.
    pub count_from_ns: Cell<u64>,
    /// Requests that count and that this thread may still start in this measurement; `u64::MAX` without a limit.
    pub remaining_requests: Cell<u64>,
    /// No request is started after this time.
    pub deadline_ns: Cell<u64>,
    /// Set when the load is stopped. From then on, a connection can finish without having sent a request.
    pub stopping: Cell<bool>,
    /// Open loop: number of connections that wait until a request is due, and could send it immediately.
    pub ready: Cell<usize>,
    /// Wakes the runner of the measurement.
    pub runner: RefCell<Option<Waker>>,
    /// Open loop: set when the schedule dispatches no more requests.
    pub schedule_finished: Cell<bool>,
    /// Open loop: set when the drain time is over. Requests that are still queued count as unsent.
    pub queues_closed: Cell<bool>,
    pub counters: Counters,
    /// Number of times that connections were polled. The pacer uses it to detect that no connection had work.
    pub polls: Cell<u64>,
    pub reopened: Cell<u64>,
    pub handshakes: RefCell<Vec<HandshakeSummary>>,
}

impl Shared {
    pub fn new(load: LoadConfig, exchange: Exchange, origin: Instant) -> Self {
        let open_loop = load.mode.open_loop().is_some();
        let think_time = match load.mode {
            Mode::Closed { think_time } => think_time,
            Mode::Open { .. } | Mode::Sweep(_) => Duration::ZERO,
        };
        let http = load.http_load();
        Self {
            origin: Origin::new(origin),
            exchange,
            tls: http.and_then(|http| http.tls.as_ref()).map(|tls| Rc::new(TlsConnector::new(tls))),
            source_addresses: load.effective_source_addresses(),
            open_loop,
            think_time,
            max_in_flight: http.map_or(1, |http| if http.keep_alive { http.pipeline_depth } else { 1 }),
            keep_alive: http.is_none_or(|http| http.keep_alive),
            server_may_close: http.is_some(),
            reconnect: load.reconnect || http.is_some_and(|http| !http.keep_alive),
            count_from_ns: Cell::new(0),
            remaining_requests: Cell::new(u64::MAX),
            deadline_ns: Cell::new(0),
            stopping: Cell::new(false),
            ready: Cell::new(0),
            runner: RefCell::default(),
            schedule_finished: Cell::new(true),
            queues_closed: Cell::new(false),
            counters: Counters::new(open_loop),
            polls: Cell::new(0),
            reopened: Cell::new(0),
            handshakes: RefCell::default(),
            load,
        }
    }

    /// Returns the time since the origin of the session.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        let elapsed = match &self.origin {
            Origin::Real(origin) => origin.elapsed(),
            Origin::Virtual(origin) => origin.elapsed(),
        };
        elapsed.as_nanos() as u64
    }

    /// Returns `true` if a request due at this time counts, that is, if the warm-up is over by then.
    #[inline]
    pub fn counts(&self, due_ns: u64) -> bool {
        due_ns >= self.count_from_ns.get()
    }

    /// Open loop: changes the flag of a connection that says whether it is ready. Returns whether this is a change.
    /// Wakes the runner for the first ready connection, because it dispatches nothing while there is none.
    #[inline]
    pub fn set_ready(&self, flag: &Cell<bool>, is_ready: bool) -> bool {
        if flag.replace(is_ready) == is_ready {
            return false;
        }
        match (self.ready.get(), is_ready) {
            (0, true) => {
                self.ready.set(1);
                self.wake_runner();
            }
            (count, true) => self.ready.set(count + 1),
            (count, false) => self.ready.set(count.saturating_sub(1)),
        }
        true
    }

    pub fn wake_runner(&self) {
        if let Some(runner) = &*self.runner.borrow() {
            runner.wake_by_ref();
        }
    }

    /// Takes a request that starts at this time off the number of requests that may still be started.
    #[inline]
    pub fn take_request(&self, start_ns: u64) {
        let taken = u64::from(self.counts(start_ns));
        self.remaining_requests.set(self.remaining_requests.get().saturating_sub(taken));
    }

    /// Returns the number of due times for which [`counts`](Self::counts) returns `true`.
    pub fn counted(&self, due_ns: impl IntoIterator<Item = u64>) -> u64 {
        due_ns.into_iter().filter(|&due_ns| self.counts(due_ns)).count() as u64
    }

    /// Opens connection `index` within `limit`, which is at most the connect timeout.
    pub fn connect(
        &self,
        index: u64,
        limit: Duration,
    ) -> impl Future<Output = Result<Stream, ConnectionError>> + use<> {
        let count = self.source_addresses.len().max(1) as u64;
        // Numbered within the shard, so that every shard uses all addresses.
        let local_index = index / self.load.shard.as_ref().map_or(1, |shard| shard.count as u64);
        let source = self.source_addresses.get((local_index % count) as usize).copied();
        let (target, connect_timeout) = (self.load.target.clone(), self.load.connect_timeout);
        let tls = self.tls.clone();
        async move {
            if !limit.is_zero()
                && let Ok(connected) = timeout(limit, connect::connect(&target, source, tls.as_ref())).await
            {
                return connected.map_err(|error| ConnectionError::from_connect_error(&error));
            }
            let text = format!("cannot connect to {target}: timed out after {connect_timeout:?}");
            Err(ConnectionError::new(ErrorKind::ConnectTimeout, text))
        }
    }
}

/// A request that has been sent or is about to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightRequest {
    /// Time from which latency is measured: the scheduled time (open loop), or the time of the first send (closed
    /// loop).
    pub due_ns: u64,
    pub sent_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Counters {
    /// Results since the last interval, except the times and the number of open connections.
    interval: RefCell<Interval>,
    /// Open loop: delay of requests whose connection was free when they were due. Not reset at the end of an interval.
    pub schedule_error: RefCell<Histogram<u64>>,
    /// Time of the last reply or error.
    pub last_ns: Cell<u64>,
    pub open: Cell<usize>,
}

impl Counters {
    fn new(open_loop: bool) -> Self {
        Self {
            interval: RefCell::new(Interval::empty(0, open_loop)),
            schedule_error: RefCell::new(latency_histogram()),
            last_ns: Cell::new(0),
            open: Cell::new(0),
        }
    }

    #[inline]
    pub fn record_reply(&self, request: InFlightRequest, replied_ns: u64) {
        let interval = &mut *self.interval.borrow_mut();
        interval.requests += 1;
        interval.latency.saturating_record(replied_ns.saturating_sub(request.due_ns));
        if let Some(uncorrected) = &mut interval.uncorrected {
            uncorrected.saturating_record(replied_ns.saturating_sub(request.sent_ns));
        }
    }

    /// Open loop: records the delay of a request. If `could_send` is set, the load generator itself caused the delay.
    #[inline]
    pub fn record_schedule_error(&self, request: InFlightRequest, could_send: bool) {
        let error_ns = request.sent_ns.saturating_sub(request.due_ns);
        if could_send {
            self.schedule_error.borrow_mut().saturating_record(error_ns);
        }
        if error_ns > LATE_THRESHOLD_NS {
            self.update(|counts| counts.late += 1);
        }
    }

    #[inline]
    pub fn update(&self, update: impl FnOnce(&mut Counts)) {
        update(&mut self.interval.borrow_mut().counts);
    }

    #[inline]
    pub fn add_received_bytes(&self, bytes: usize, now_ns: u64) {
        self.update(|counts| counts.received_bytes += bytes as u64);
        self.last_ns.set(now_ns);
    }

    #[inline]
    pub fn add_offered(&self, count: u64) {
        if let Some(offered) = &mut self.interval.borrow_mut().counts.offered {
            *offered = offered.saturating_add(count);
        }
    }

    /// Open loop: counts scheduled requests that will never be sent.
    pub fn add_unsent(&self, count: u64) {
        self.update(|counts| counts.unsent = counts.unsent.saturating_add(count));
    }

    #[cold]
    pub fn record_error(&self, count: u64, error: ConnectionError) {
        self.update(|counts| counts.errors.add(count, error));
    }

    /// Returns the counts since the last interval.
    pub fn snapshot(&self) -> ProgressSnapshot {
        let interval = self.interval.borrow();
        ProgressSnapshot {
            open: self.open.get(),
            requests: interval.requests,
            errors: interval.counts.errors.total(),
        }
    }

    /// Returns all results since the last interval and resets them.
    pub fn take_interval(&self, start_ns: u64, elapsed_ns: u64) -> Interval {
        let mut current = self.interval.borrow_mut();
        let empty = Interval::empty(0, current.counts.offered.is_some());
        let interval = std::mem::replace(&mut *current, empty);
        Interval { start_ns, elapsed_ns, open_connections: self.open.get(), ..interval }
    }
}

/// Counts for progress reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgressSnapshot {
    pub open: usize,
    pub requests: u64,
    pub errors: u64,
}
