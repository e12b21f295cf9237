//! Summary of an interval, as written to the CSV table and the NDJSON stream.

use serde::{Deserialize, Serialize};

use crate::model::interval::{Counts, Interval};
use crate::model::latency::Latency;
use crate::system::process::ProcessUsage;

/// Summary of an [`Interval`], with quantiles instead of histograms. Times are in nanoseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalRecord {
    /// Start of the interval, relative to the start of the measurement.
    pub start_ns: u64,
    /// Length of the interval.
    pub elapsed_ns: u64,
    /// Requests with a complete reply and, if verification is enabled, the expected bytes.
    pub requests: u64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// Request latency, measured from the scheduled time (open loop) or from sending (closed loop). `None` if no
    /// request was answered.
    pub latency: Option<Latency>,
    /// Open loop only: request latency measured from the actual time of sending.
    pub uncorrected: Option<Latency>,
    /// Counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// Connections open at the end of the interval.
    pub open_connections: usize,
    /// Resources used by the server process, and its memory at the end of the interval. `None` if the process was not
    /// monitored or has exited.
    pub server: Option<ProcessUsage>,
    /// CPU time of the server per request. `None` if the CPU time is unknown or no request was answered.
    pub server_cpu_ns_per_request: Option<f64>,
    /// CPU time of the load generator.
    pub load_cpu_ns: u64,
    /// CPU time of the load generator per request. `None` if no request was answered.
    pub load_cpu_ns_per_request: Option<f64>,
    /// Steal time: time that the hypervisor took from the cores of the load generator and the server. `None` if
    /// unknown.
    pub stolen_ns: Option<u64>,
}

impl From<&Interval> for IntervalRecord {
    fn from(interval: &Interval) -> Self {
        Self {
            start_ns: interval.start_ns,
            elapsed_ns: interval.elapsed_ns,
            requests: interval.requests,
            requests_per_second: interval.requests_per_second(),
            latency: interval.quantiles(),
            uncorrected: interval.uncorrected_quantiles(),
            counts: interval.counts.clone(),
            open_connections: interval.open_connections,
            server: interval.server,
            server_cpu_ns_per_request: interval.server_cpu_ns_per_request(),
            load_cpu_ns: interval.load_cpu_ns,
            load_cpu_ns_per_request: interval.load_cpu_ns_per_request(),
            stolen_ns: interval.stolen_ns,
        }
    }
}
