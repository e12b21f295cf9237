//! Server observability: access log, metrics and health.
//!
//! These modules do not use sockets. Log lines go to a file or to standard output. Metrics and health responses are
//! rendered to bytes, which the server sends. None of them blocks a worker.
//!
//! - [`access_log`]: one line per request, written by a dedicated thread.
//! - [`metrics`]: per-worker counters, summed and rendered in the Prometheus text format on each scrape.
//! - [`health`]: tells load balancers whether to send requests to the server.
//!
//! ```
//! use anello_http::h1::Method;
//! use anello_http::observe::access_log::{
//!     AccessLog, AccessLogOptions, FormattedPeer, LogEntry, LogFormat, RequestLine,
//! };
//! use anello_http::observe::health::{Health, HealthFormat};
//! use anello_http::observe::metrics::{CloseReason, MetricsOptions, ServerMetrics};
//!
//! # fn main() -> std::io::Result<()> {
//! // Once, at server startup.
//! let mut options = AccessLogOptions::default();
//! options.format = LogFormat::Json;
//! let log = AccessLog::start(options)?;
//! let metrics = ServerMetrics::new(MetricsOptions::default());
//! let health = Health::new();
//!
//! // On each worker.
//! let mut lines = log.worker(0);
//! let counts = metrics.worker(0).expect("index in range and not in use");
//! health.set_ready();
//!
//! // On each connection, and on each request.
//! let peer = FormattedPeer::new("203.0.113.9:4711".parse().expect("valid socket address"));
//! counts.connection_accepted();
//! counts.record_request(Method::Get, 200, 87_000);
//! lines.record(&LogEntry {
//!     unix_time_ns: 1_795_364_855_042_000_000,
//!     duration_us: 87,
//!     peer: &peer,
//!     request: Some(RequestLine { method: "GET", target: b"/", version: "HTTP/1.1" }),
//!     status: 200,
//!     body_bytes: 13,
//!     referer: None,
//!     user_agent: Some(b"curl/8"),
//! });
//! counts.connection_closed(CloseReason::Peer);
//!
//! // On each scrape and health check.
//! let mut text = Vec::new();
//! metrics.render(Some(&log.handle().stats()), &mut text);
//! assert_eq!(health.response(HealthFormat::Text).status, 200);
//!
//! // At shutdown.
//! health.set_draining();
//! drop(lines);
//! log.close()
//! # }
//! ```

pub mod access_log;
mod counter;
pub mod health;
pub mod metrics;
