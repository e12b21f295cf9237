//! Reports connections and requests to the metrics and the access log.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anello::current_metrics;

use super::cancellation::CancelReason;
use super::deadline::{Phase, Timeout};
use super::output::is_handler_error;
use super::timer::ConnectionTimer;
use crate::h1::{Head, Method, Version};
use crate::observe::access_log::{FormattedPeer, LogEntry, RequestLine, WorkerLog};
use crate::observe::metrics::{CloseReason, ParseErrorKind, RejectReason, WorkerMetrics, driver_samples};

/// Maximum memory for log data that a connection retains between requests.
const MAX_RETAINED_BYTES: usize = 4 * 1024;

/// The metrics and the access log of a worker, if enabled.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    pub metrics: Option<Rc<WorkerMetrics>>,
    pub log: RefCell<Option<WorkerLog>>,
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard<'a> {
    observer: &'a Observer,
    reason: CloseReason,
}

/// The record of a request in progress. Reused for the next request on the connection.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    started_at: Instant,
    method: Method,
    /// Method, target, referer and user agent, concatenated, if the access log is enabled.
    text: Vec<u8>,
    ends: [usize; 4],
    is_present: [bool; 2],
    version: Version,
    peer: Option<FormattedPeer>,
}

impl Observer {
    pub fn is_enabled(&self) -> bool {
        self.metrics.is_some() || self.has_log()
    }

    fn has_log(&self) -> bool {
        self.log.borrow().is_some()
    }

    pub fn connection_accepted(&self) -> ConnectionGuard<'_> {
        if let Some(metrics) = &self.metrics {
            metrics.connection_accepted();
        }
        ConnectionGuard { observer: self, reason: CloseReason::Aborted }
    }

    pub fn connection_rejected(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.connection_rejected(RejectReason::MaxConnections);
        }
    }

    pub fn parse_error(&self, status: u16) {
        if let Some(metrics) = &self.metrics {
            metrics.parse_error(ParseErrorKind::of(status));
        }
    }

    /// Publishes and flushes everything. Called when the worker becomes idle.
    pub fn flush(&self) {
        self.tick();
        // Lines that cannot be flushed now are flushed with the next line.
        if let Some(log) = self.log.borrow_mut().as_mut()
            && !log.flush()
        {
            tracing::debug!("access log not flushed: waiting for the disk");
        }
    }

    /// Publishes the driver metrics and flushes old log lines. Called on every tick of the worker.
    pub fn tick(&self) {
        if let Some(metrics) = &self.metrics
            && let Some(driver) = current_metrics()
            && !metrics.publish(&driver_samples(&driver))
        {
            tracing::debug!("driver metrics not published: a scrape is reading them");
        }
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.flush_old(unix_time_ns());
        }
    }
}

impl ConnectionGuard<'_> {
    /// Sets the close reason: an expired timeout, an error, or a normal close.
    pub fn set_close_reason(
        &mut self,
        timer: &ConnectionTimer,
        is_draining: bool,
        result: &io::Result<CloseReason>,
    ) {
        self.reason = match (timer.deadlines.expired(), result) {
            _ if timer.deadlines.is_evicted() => CloseReason::Evicted,
            (Some(Timeout::Phase(Phase::FirstHead | Phase::Head)), _) => CloseReason::HeaderTimeout,
            (Some(Timeout::Phase(Phase::Idle)), _) => CloseReason::Idle,
            (Some(Timeout::Phase(Phase::Body)), _) => CloseReason::BodyTimeout,
            (Some(Timeout::Send | Timeout::Phase(Phase::Linger)), _) => CloseReason::SendTimeout,
            (Some(Timeout::Request | Timeout::Phase(Phase::Handling)), _) => CloseReason::RequestTimeout,
            (None, Ok(CloseReason::Peer | CloseReason::Complete)) if is_draining => CloseReason::Drain,
            (None, Ok(reason)) => *reason,
            (None, Err(_)) if timer.cancellation.get() == Some(CancelReason::ServerShutdown) => {
                CloseReason::Drain
            }
            (None, Err(error)) if is_handler_error(error) => CloseReason::HandlerError,
            (None, Err(_)) => CloseReason::Aborted,
        };
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = &self.observer.metrics {
            // Only the handler of an upgraded connection can cause a panic here.
            let reason = if thread::panicking() { CloseReason::HandlerError } else { self.reason };
            metrics.connection_closed(reason);
        }
    }
}

impl RequestRecord {
    pub fn new(observer: &Observer, timer: &ConnectionTimer) -> Option<Box<Self>> {
        observer.is_enabled().then(|| {
            Box::new(Self {
                started_at: Instant::now(),
                method: Method::Other,
                text: Vec::new(),
                ends: [0; 4],
                is_present: [false; 2],
                version: Version::Http11,
                peer: observer
                    .has_log()
                    .then(|| timer.peer().map_or_else(FormattedPeer::unix, FormattedPeer::new)),
            })
        })
    }

    /// Starts the record when the head has been read. Measuring from the first byte would require reading the clock for
    /// every received chunk.
    pub fn begin(&mut self, head: &Head) {
        self.started_at = Instant::now();
        self.method = head.method();
        if self.peer.is_none() {
            return;
        }
        self.version = head.version();
        let (referer, user_agent) = (head.field("referer"), head.field("user-agent"));
        self.is_present = [referer.is_some(), user_agent.is_some()];
        let parts = [
            head.method_text().as_bytes(),
            head.target().as_bytes(),
            referer.unwrap_or_default(),
            user_agent.unwrap_or_default(),
        ];
        self.text.clear();
        for (part, end) in parts.iter().zip(&mut self.ends) {
            self.text.extend_from_slice(part);
            *end = self.text.len();
        }
    }

    /// Records the end of a response, complete or not, with the number of body bytes sent. A small response is passed
    /// to the kernel later, together with the responses to other pipelined requests.
    pub fn finish(&mut self, observer: &Observer, status: u16, body_bytes: u64) {
        self.report(observer, status, body_bytes);
        if self.text.capacity() > MAX_RETAINED_BYTES {
            self.text = Vec::new();
        }
    }

    /// Records a rejected request, with its first line if that was received.
    pub fn record_rejection(
        &self,
        observer: &Observer,
        first_line: Option<&[u8]>,
        status: u16,
        body_bytes: u64,
    ) {
        let request = first_line.and_then(RequestLine::read);
        if let Some(metrics) = &observer.metrics {
            let method = request.map_or(Method::Other, |request| Method::of(request.method.as_bytes()));
            // The start time is unknown.
            metrics.record_untimed_request(method, status);
            metrics.add_sent_bytes(body_bytes);
        }
        let mut log = observer.log.borrow_mut();
        let (Some(peer), Some(log)) = (&self.peer, log.as_mut()) else { return };
        log.record(&LogEntry {
            unix_time_ns: unix_time_ns(),
            duration_us: 0,
            peer,
            request,
            status,
            body_bytes,
            referer: None,
            user_agent: None,
        });
    }

    fn report(&self, observer: &Observer, status: u16, body_bytes: u64) {
        let duration = self.started_at.elapsed();
        if let Some(metrics) = &observer.metrics {
            metrics.record_request(
                self.method,
                status,
                u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            );
            metrics.add_sent_bytes(body_bytes);
        }
        let mut log = observer.log.borrow_mut();
        let (Some(peer), Some(log)) = (&self.peer, log.as_mut()) else { return };
        let part = |index: usize| {
            let start = if index == 0 { 0 } else { self.ends[index - 1] };
            &self.text[start..self.ends[index]]
        };
        log.record(&LogEntry {
            unix_time_ns: unix_time_ns(),
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            peer,
            request: Some(RequestLine {
                // The method is ASCII.
                method: str::from_utf8(part(0)).unwrap_or_default(),
                target: part(1),
                version: match self.version {
                    Version::Http10 => "HTTP/1.0",
                    Version::Http11 => "HTTP/1.1",
                },
            }),
            status,
            body_bytes,
            referer: self.is_present[0].then(|| part(2)),
            user_agent: self.is_present[1].then(|| part(3)),
        });
    }
}

fn unix_time_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
