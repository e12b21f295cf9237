//! What a server tells about itself: access log, metrics, health.
//!
//! Nothing here knows sockets: lines go to a file or standard output, metrics and health are rendered to bytes, which the
//! server sends. Workers never wait for any of it.
//!
//! - [`access_log`]: one line a request, written by a thread of its own.
//! - [`metrics`]: counters of each worker, summed and rendered for Prometheus when somebody asks.
//! - [`health`]: whether the server should be given requests.
//!
//! ```
//! use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogEntry, LogFormat, FormattedPeer, RequestLine};
//! use anello_http::observe::health::{Health, HealthFormat};
//! use anello_http::observe::metrics::{CloseReason, MethodClass, MetricsOptions, ServerMetrics};
//!
//! # fn main() -> std::io::Result<()> {
//! // Once, when the server starts.
//! let mut options = AccessLogOptions::default();
//! options.format = LogFormat::Json;
//! let log = AccessLog::start(options)?;
//! let metrics = ServerMetrics::new(MetricsOptions::default());
//! let health = Health::new();
//!
//! // On each worker.
//! let mut lines = log.worker(0);
//! let counts = metrics.worker(0).expect("no other worker has this number");
//! health.set_ready();
//!
//! // On each connection, and on each request.
//! let peer = FormattedPeer::new("203.0.113.9:4711".parse().expect("an address"));
//! counts.connection_accepted();
//! counts.record_request(MethodClass::Get, 200, 87_000);
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
//! // When somebody asks.
//! let mut text = Vec::new();
//! metrics.render(Some(&log.handle().stats()), &mut text);
//! assert_eq!(health.response(HealthFormat::Text).status, 200);
//!
//! // At the end.
//! health.set_draining();
//! drop(lines);
//! log.close()
//! # }
//! ```

pub mod access_log;
pub mod health;
pub mod metrics;
