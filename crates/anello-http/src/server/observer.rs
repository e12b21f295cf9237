//! Reports connections and requests to the metrics and the access log.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use anello::log_event;
use anello::time::{monotonic_now, system_now};

use super::deadline::{Phase, Timeout};
use super::options::ServerOptions;
use super::output::is_handler_error;
use super::proxies;
use super::timer::{CancelReason, ConnectionTimer};
use crate::h1::{Head, Method, Version};
use crate::message::Peer;
use crate::observe::access_log::{FormattedPeer, LogEntry, RequestLine, WorkerLog};
use crate::observe::metrics::{CloseReason, WorkerMetrics};

/// Maximum memory for log data that a connection retains between requests.
const MAX_RETAINED_BYTES: usize = 4 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Observer {
    pub metrics: Option<Rc<WorkerMetrics>>,
    pub log: RefCell<Option<WorkerLog>>,
}

/// Counts a connection as closed when dropped.
pub(crate) struct ConnectionGuard<'a> {
    observer: &'a Observer,
    reason: CloseReason,
}

/// The record of a request in progress. Reused for the next request on the connection.
pub(crate) struct RequestRecord {
    /// Time on the runtime's clock.
    started_at: Duration,
    method: Method,
    /// Method, target, referer and user agent, concatenated. Empty if the access log is disabled.
    text: Vec<u8>,
    /// Range of each part in `text`; `None` for a missing field.
    parts: [Option<(usize, usize)>; 4],
    version: Version,
    peer: Option<FormattedPeer>,
    /// The client that a trusted proxy has reported.
    client: Option<FormattedPeer>,
    is_from_proxy: bool,
}

impl Observer {
    pub fn count(&self, update: impl FnOnce(&WorkerMetrics)) {
        if let Some(metrics) = &self.metrics {
            update(metrics);
        }
    }

    pub fn has_log(&self) -> bool {
        self.log.borrow().is_some()
    }

    /// Returns the guard of a connection that has been counted as accepted.
    pub fn guard_connection(&self) -> ConnectionGuard<'_> {
        ConnectionGuard { observer: self, reason: CloseReason::Aborted }
    }

    /// Called when the worker becomes idle.
    pub fn flush(&self) {
        self.tick();
        // Lines that cannot be flushed now are flushed with the next line.
        let is_flushed = self.log.borrow_mut().as_mut().is_none_or(|log| log.flush());
        if !is_flushed {
            log_event!(DEBUG, "access log not flushed: waiting for the disk");
        }
    }

    /// Publishes the driver metrics and flushes old log lines. Called on every tick of the worker.
    pub fn tick(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.publish_driver();
        }
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.flush_old(unix_time_ns());
        }
    }
}

impl ConnectionGuard<'_> {
    /// Leaves the connection open.
    pub fn keep_open(self) {
        std::mem::forget(self);
    }

    pub fn set_reason(&mut self, timer: &ConnectionTimer, drains: bool, result: &io::Result<CloseReason>) {
        self.reason = match (timer.deadlines.expired.get(), result) {
            _ if timer.deadlines.is_evicted.get() => CloseReason::Evicted,
            (Some(Timeout::Phase(Phase::FirstHead | Phase::Head)), _) => CloseReason::HeaderTimeout,
            (Some(Timeout::Phase(Phase::Idle)), _) => CloseReason::Idle,
            (Some(Timeout::Phase(Phase::Body)), _) => CloseReason::BodyTimeout,
            (Some(Timeout::Send | Timeout::Phase(Phase::Linger)), _) => CloseReason::SendTimeout,
            (Some(Timeout::Request | Timeout::Phase(Phase::Handling)), _) => CloseReason::RequestTimeout,
            (None, Ok(CloseReason::Peer | CloseReason::Complete)) if drains => CloseReason::Drain,
            (None, Ok(reason)) => *reason,
            (None, Err(_)) if timer.cancellation.reason.get() == Some(CancelReason::ServerShutdown) => {
                CloseReason::Drain
            }
            (None, Err(error)) if is_handler_error(error) => CloseReason::HandlerError,
            (None, Err(_)) => CloseReason::Aborted,
        };
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        // Only the handler of an upgraded connection can cause a panic here.
        let reason = if thread::panicking() { CloseReason::HandlerError } else { self.reason };
        self.observer.count(|metrics| metrics.connection_closed(reason));
    }
}

impl RequestRecord {
    pub fn new(observer: &Observer, options: &ServerOptions, peer: &Peer) -> Option<Box<Self>> {
        let has_log = observer.has_log();
        let is_from_proxy = || proxies::is_trusted(peer.address(), &options.trusted_proxies);
        let is_from_proxy = has_log && !options.trusted_proxies.is_empty() && is_from_proxy();
        let peer = || peer.address().map_or_else(FormattedPeer::unix, FormattedPeer::new);
        (observer.metrics.is_some() || has_log).then(|| {
            Box::new(Self {
                started_at: monotonic_now(),
                method: Method::Other,
                text: Vec::new(),
                parts: [None; 4],
                version: Version::Http11,
                peer: has_log.then(peer),
                client: None,
                is_from_proxy,
            })
        })
    }

    /// Starts the record of a request whose head has been read. Measuring the duration from the first byte would
    /// require reading the clock for every received chunk.
    pub fn begin(&mut self, head: &Head, options: &ServerOptions) {
        self.started_at = monotonic_now();
        self.method = head.method();
        if self.peer.is_none() {
            return;
        }
        if self.is_from_proxy {
            self.client =
                proxies::client(head, &options.trusted_proxies, options.proxy_header).map(FormattedPeer::new);
        }
        self.version = head.version();
        let (method, target) = (head.method_text().as_bytes(), head.target().as_bytes());
        self.text.clear();
        let parts = [Some(method), Some(target), head.field("referer"), head.field("user-agent")];
        self.parts = parts.map(|part| {
            let start = self.text.len();
            self.text.extend_from_slice(part?);
            Some((start, self.text.len()))
        });
    }

    /// Records the end of a response, complete or not. A small response is passed to the kernel later, together with the
    /// responses to other pipelined requests.
    pub fn finish(&mut self, observer: &Observer, status: u16, body_bytes: u64) {
        self.report(observer, status, body_bytes);
        if self.text.capacity() > MAX_RETAINED_BYTES {
            self.text = Vec::new();
        }
    }

    /// `first_line` is `None` if the line was not received completely.
    pub fn reject(&self, observer: &Observer, first_line: Option<&[u8]>, status: u16, body_bytes: u64) {
        let request = first_line.and_then(RequestLine::read);
        observer.count(|metrics| {
            let method = request.map_or(Method::Other, |request| Method::of(request.method.as_bytes()));
            // The start time is unknown.
            metrics.record_untimed_request(method, status);
            metrics.add_sent_bytes(body_bytes);
        });
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
        let duration = monotonic_now().saturating_sub(self.started_at);
        observer.count(|metrics| {
            let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            metrics.record_request(self.method, status, duration_ns);
            metrics.add_sent_bytes(body_bytes);
        });
        let mut log = observer.log.borrow_mut();
        let (Some(peer), Some(log)) = (self.client.as_ref().or(self.peer.as_ref()), log.as_mut()) else {
            return;
        };
        let [method, target, referer, user_agent] =
            self.parts.map(|part| part.map(|(start, end)| &self.text[start..end]));
        log.record(&LogEntry {
            unix_time_ns: unix_time_ns(),
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            peer,
            request: Some(RequestLine {
                // The method is ASCII.
                method: str::from_utf8(method.unwrap_or_default()).unwrap_or_default(),
                target: target.unwrap_or_default(),
                version: match self.version {
                    Version::Http10 => "HTTP/1.0",
                    Version::Http11 => "HTTP/1.1",
                    Version::Http2 => "HTTP/2.0",
                },
            }),
            status,
            body_bytes,
            referer,
            user_agent,
        });
    }
}

fn unix_time_ns() -> u64 {
    let since_epoch = system_now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
