//! What was measured of one contender in one cell.

use serde::{Deserialize, Serialize};

use crate::statistics::Estimate;

/// The figures of one contender in one cell, over its clean slices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests answered per second.
    pub requests_per_second: Estimate,
    /// Median time to a reply, in nanoseconds.
    pub p50_ns: Estimate,
    /// 90th percentile of the time to a reply, in nanoseconds.
    pub p90_ns: Estimate,
    /// 99th percentile of the time to a reply, in nanoseconds.
    pub p99_ns: Estimate,
    /// 99.9th percentile of the time to a reply, in nanoseconds.
    pub p999_ns: Estimate,
    /// Longest time to a reply in all clean slices, in nanoseconds.
    pub max_ns: u64,
    /// 99th percentile counted from the sending instead of the scheduled time, in nanoseconds; only where a rate was
    /// offered.
    pub uncorrected_p99_ns: Option<Estimate>,
    /// CPU time of the server per request, in nanoseconds.
    pub cpu_ns: Estimate,
    /// CPU time of server and load together per request, in nanoseconds; only over HTTP.
    #[serde(default)]
    pub cpu_of_both_ns: Option<Estimate>,
    /// A tenth of the slices cost the server less than this, in nanoseconds per request.
    pub cpu_low_decile_ns: f64,
    /// Part of the time that the server was on its core, 0 to 1 (more with several cores).
    pub server_busy: f64,
    /// The server's context switches per request, voluntary and not; none if they could not be told.
    pub switches_per_request: Option<f64>,
    /// Memory of the server at the end of a slice, in bytes; none if it could not be told.
    pub resident_bytes: Option<f64>,
    /// Part of the time that the load was on its core, 0 to 1 (more with several cores).
    pub load_busy: f64,
    /// Whether the load, not the server, set the pace: it was busy and the server was not. Then the rate says little.
    pub load_bottleneck: bool,
    /// Part of the offered requests that were answered; only where a rate was offered.
    pub reached_fraction: Option<f64>,
    /// Whether it kept up with the offered rate; only where one was offered. If not, the latency is that of an overloaded
    /// server.
    pub rate_reached: Option<bool>,
    /// Part of the offered requests that were sent later than 1 ms after their time; only where a rate was offered.
    #[serde(default)]
    pub late_fraction: Option<f64>,
    /// Part of the offered requests that were never sent; only where a rate was offered.
    #[serde(default)]
    pub unsent_fraction: Option<f64>,
}
