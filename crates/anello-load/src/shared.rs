//! What all connections of a session share: what to ask, until when, and what was counted.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::config::{LoadConfig, Mode};
use crate::errors::{ErrorKind, Errors};
use crate::exchange::Exchange;
use crate::interval::Interval;
use crate::latency_histogram;
use crate::stream::Address;
use crate::tls::{self, Tls, TlsConnector};

/// A request of an open loop that is sent so much after its time is counted as late.
const LATE_THRESHOLD_NS: u64 = 1_000_000;

/// What all connections of a session share.
#[derive(Debug)]
pub(crate) struct Shared {
    origin: Instant,
    pub exchange: Exchange,
    pub target: Address,
    /// There if connections are to be under TLS.
    pub tls: Option<Rc<TlsConnector>>,
    pub connect_timeout: Duration,
    /// Where connections come from, in turn; the kernel chooses if there are none.
    source_addresses: Vec<IpAddr>,
    pub open_loop: bool,
    /// Closed loop: how long to wait between a reply and the next request.
    pub think_time: Duration,
    /// Requests in flight on a connection, at most.
    pub max_in_flight: usize,
    /// Whether a connection takes more than one request.
    pub keep_alive: bool,
    /// Whether the server may close a connection between requests, which is then opened again.
    pub server_may_close: bool,
    /// Whether connections that broke are opened again.
    pub reconnect: bool,
    /// Requests from before are not counted: the warm-up.
    pub count_from_ns: Cell<u64>,
    /// No request begins after this moment.
    pub deadline_ns: Cell<u64>,
    /// The user wants to stop: nobody needs to make a first request.
    pub stopping: Cell<bool>,
    /// Open loop: the schedule hands nothing more out.
    pub schedule_finished: Cell<bool>,
    /// Open loop: it is too late to wait for being sent; whatever still would is unsent.
    pub queues_closed: Cell<bool>,
    pub counters: Counters,
    /// How often connections had something to do; by this the pacer sees whether it waits alone.
    pub polls: Cell<u64>,
    /// Connections that were opened again.
    pub reopened: Cell<u64>,
    /// Those of TLS that were made, all connections included.
    pub handshakes: RefCell<tls::HandshakeCounts>,
}

impl Shared {
    pub fn new(load: &LoadConfig, exchange: Exchange, origin: Instant) -> Self {
        let (open_loop, think_time) = match &load.mode {
            Mode::Closed { think_time } => (false, *think_time),
            Mode::Open { .. } | Mode::Sweep(_) => (true, Duration::ZERO),
        };
        let http = load.http_load();
        Self {
            origin,
            exchange,
            target: load.target.clone(),
            tls: http.and_then(|http| http.tls.as_ref()).map(Tls::connector),
            connect_timeout: load.connect_timeout,
            source_addresses: load.effective_source_addresses(),
            open_loop,
            think_time,
            max_in_flight: http.map_or(1, |http| if http.keep_alive { http.pipeline_depth } else { 1 }),
            keep_alive: http.is_none_or(|http| http.keep_alive),
            server_may_close: http.is_some(),
            reconnect: load.reconnect || http.is_some_and(|http| !http.keep_alive),
            count_from_ns: Cell::new(0),
            deadline_ns: Cell::new(0),
            stopping: Cell::new(false),
            schedule_finished: Cell::new(true),
            queues_closed: Cell::new(false),
            counters: Counters::new(open_loop),
            polls: Cell::new(0),
            reopened: Cell::new(0),
            handshakes: RefCell::default(),
        }
    }

    /// Nanoseconds since the load began.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Where connection `index` comes from.
    pub fn source_address(&self, index: u64) -> Option<IpAddr> {
        let count = self.source_addresses.len().max(1) as u64;
        self.source_addresses.get((index % count) as usize).copied()
    }
}

/// A request that was sent, or is about to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightRequest {
    /// When it was to be sent; in a closed loop, when it was, and of one that was sent in vain when it was first.
    pub due_ns: u64,
    pub sent_ns: u64,
}

/// What the connections have counted since the last cut.
#[derive(Debug)]
pub(crate) struct Counters {
    requests: Cell<u64>,
    latency: RefCell<Histogram<u64>>,
    /// Open loop only.
    uncorrected: RefCell<Option<Histogram<u64>>>,
    pub errors: RefCell<Errors>,
    pub offered: Cell<u64>,
    late: Cell<u64>,
    pub unsent: Cell<u64>,
    abandoned: Cell<u64>,
    sent_bytes: Cell<u64>,
    received_bytes: Cell<u64>,
    /// Open loop: how long after its time a request was sent for which the connection was free. Since the beginning.
    pub schedule_error: RefCell<Histogram<u64>>,
    /// The last reply or trouble.
    pub last_ns: Cell<u64>,
    /// Connections that are open.
    pub open: Cell<usize>,
}

impl Counters {
    fn new(open_loop: bool) -> Self {
        Self {
            requests: Cell::new(0),
            latency: RefCell::new(latency_histogram()),
            uncorrected: RefCell::new(open_loop.then(latency_histogram)),
            errors: RefCell::default(),
            offered: Cell::new(0),
            late: Cell::new(0),
            unsent: Cell::new(0),
            abandoned: Cell::new(0),
            sent_bytes: Cell::new(0),
            received_bytes: Cell::new(0),
            schedule_error: RefCell::new(latency_histogram()),
            last_ns: Cell::new(0),
            open: Cell::new(0),
        }
    }

    /// A right reply.
    #[inline]
    pub fn record_reply(&self, request: InFlightRequest, replied_ns: u64) {
        self.requests.set(self.requests.get() + 1);
        self.latency.borrow_mut().saturating_record(replied_ns.saturating_sub(request.due_ns));
        if let Some(uncorrected) = &mut *self.uncorrected.borrow_mut() {
            uncorrected.saturating_record(replied_ns.saturating_sub(request.sent_ns));
        }
    }

    /// Open loop: a request was sent; `could_send` says that nothing but the load itself can have delayed it.
    #[inline]
    pub fn record_schedule_error(&self, request: InFlightRequest, could_send: bool) {
        let error_ns = request.sent_ns.saturating_sub(request.due_ns);
        if could_send {
            self.schedule_error.borrow_mut().saturating_record(error_ns);
        }
        if error_ns > LATE_THRESHOLD_NS {
            self.late.set(self.late.get() + 1);
        }
    }

    #[inline]
    pub fn add_sent_bytes(&self, bytes: usize) {
        self.sent_bytes.set(self.sent_bytes.get() + bytes as u64);
    }

    #[inline]
    pub fn add_received_bytes(&self, bytes: usize, now_ns: u64) {
        self.received_bytes.set(self.received_bytes.get() + bytes as u64);
        self.last_ns.set(now_ns);
    }

    /// Open loop: so many requests of the schedule will never be sent.
    pub fn add_unsent(&self, count: u64) {
        self.unsent.set(self.unsent.get().saturating_add(count));
    }

    /// So many requests in flight were given up because the user wants to stop.
    pub fn add_abandoned(&self, count: u64) {
        self.abandoned.set(self.abandoned.get() + count);
    }

    #[cold]
    pub fn record_error(&self, kind: ErrorKind, count: u64, text: impl FnOnce() -> String) {
        self.errors.borrow_mut().add_many(kind, count, text);
    }

    /// What has been counted since the last cut.
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            open: self.open.get(),
            requests: self.requests.get(),
            errors: self.errors.borrow().total(),
        }
    }

    /// All that was counted since the last cut; counting begins anew.
    pub fn take_interval(&self, start_ns: u64, elapsed_ns: u64) -> Interval {
        let uncorrected = self
            .uncorrected
            .borrow_mut()
            .as_mut()
            .map(|uncorrected| std::mem::replace(uncorrected, latency_histogram()));
        Interval {
            elapsed_ns,
            requests: self.requests.take(),
            latency: self.latency.replace(latency_histogram()),
            offered: uncorrected.as_ref().map(|_| self.offered.take()),
            uncorrected,
            late: self.late.take(),
            unsent: self.unsent.take(),
            abandoned: self.abandoned.take(),
            sent_bytes: self.sent_bytes.take(),
            received_bytes: self.received_bytes.take(),
            errors: self.errors.take(),
            open_connections: self.open.get(),
            ..Interval::empty(start_ns, false)
        }
    }
}

/// How things stand, for whoever watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressSnapshot {
    pub open: usize,
    pub requests: u64,
    pub errors: u64,
}
