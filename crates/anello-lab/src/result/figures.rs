//! Measured figures of one contender in one cell.

use serde::{Deserialize, Serialize};

use crate::result::estimate::Estimate;

/// The figures of one contender in one cell, over its clean slices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests answered per second.
    pub requests_per_second: Estimate,
    /// Median latency, in nanoseconds.
    pub p50_ns: Estimate,
    /// 90th percentile of the latency, in nanoseconds.
    pub p90_ns: Estimate,
    /// 99th percentile of the latency, in nanoseconds.
    pub p99_ns: Estimate,
    /// 99.9th percentile of the latency, in nanoseconds.
    pub p999_ns: Estimate,
    /// Maximum latency in all clean slices, in nanoseconds.
    pub max_ns: u64,
    /// 99th percentile of the latency measured from the actual rather than the scheduled send time, in nanoseconds;
    /// only at an offered rate.
    pub uncorrected_p99_ns: Option<Estimate>,
    /// CPU time of the server per request, in nanoseconds.
    pub cpu_ns: Estimate,
    /// Combined CPU time of server and load generator per request, in nanoseconds; only for HTTP.
    #[serde(default)]
    pub total_cpu_ns: Option<Estimate>,
    /// First decile of the slices' server CPU time per request, in nanoseconds.
    pub cpu_low_decile_ns: f64,
    /// CPU time of the server divided by elapsed time: 0 to 1 on one core, more on several cores.
    pub server_busy: f64,
    /// Voluntary and involuntary context switches of the server per request; `None` if unknown.
    pub switches_per_request: Option<f64>,
    /// Resident memory of the server at the end of a slice, in bytes; `None` if unknown.
    pub resident_bytes: Option<f64>,
    /// CPU time of the load generator divided by elapsed time: 0 to 1 on one core, more on several cores.
    pub load_busy: f64,
    /// `true` if the load generator was the bottleneck: it was saturated and the server was not. In that case, the rate
    /// does not show the capacity of the server.
    pub load_bottleneck: bool,
    /// Fraction of the offered requests that were answered; only at an offered rate.
    pub reached_fraction: Option<f64>,
    /// `true` if the offered rate was reached; only at an offered rate. Otherwise, the latency is that of an overloaded
    /// server.
    pub rate_reached: Option<bool>,
    /// Fraction of the offered requests that were sent more than 1 ms late; only at an offered rate.
    #[serde(default)]
    pub late_fraction: Option<f64>,
    /// Fraction of the offered requests that were never sent; only at an offered rate.
    #[serde(default)]
    pub unsent_fraction: Option<f64>,
}
