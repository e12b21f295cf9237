//! What a server tells about itself: access log, metrics, health.
//!
//! Nothing here knows sockets: lines go to a file or standard output, metrics and health are rendered to bytes, which the
//! server sends. Workers never wait for any of it.
//!
//! - [`access_log`]: one line a request, written by a thread of its own.
//! - [`metrics`]: counters of each worker, summed and rendered for Prometheus when somebody asks.

pub mod access_log;
pub mod metrics;
