//! Server observability: access log, metrics and health.
//!
//! These modules do not use sockets. Log lines go to a file or to standard output. Metrics and health responses are
//! rendered to bytes, which the server sends. None of these modules blocks a worker.
//!
//! - [`access_log`]: one line per request, written by a dedicated thread.
//! - [`metrics`]: per-worker counters, summed and rendered in the Prometheus text format on each scrape.
//! - [`health`]: reports to load balancers whether the server accepts requests.
//!
//! ```
//! use anello_http::Server;
//! use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogFormat};
//! use anello_http::observe::health::{Health, HealthFormat};
//! use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
//!
//! // Once, at server startup.
//! let mut options = AccessLogOptions::default();
//! options.format = LogFormat::Json;
//! let log = AccessLog::start(options)?;
//! let metrics = ServerMetrics::new(MetricsOptions::default());
//! let health = Health::new();
//!
//! // On each worker.
//! let counts = metrics.worker(0).expect("index in range and not in use");
//! let server = Server::builder().metrics(counts).access_log(log.worker(0)).build();
//! health.set_ready();
//!
//! // On each scrape and health check.
//! let mut text = Vec::new();
//! metrics.render(Some(&log.handle().stats()), &mut text);
//! assert_eq!(health.response(HealthFormat::Text).status, 200);
//!
//! // At shutdown.
//! health.set_draining();
//! drop(server);
//! log.close()?;
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod access_log;
pub mod health;
pub mod metrics;
