//! An interval in figures: what the table and the stream show of it.

use serde::{Deserialize, Serialize};

use crate::errors::Errors;
use crate::interval::Interval;
use crate::process::ProcessUsage;
use crate::report::Latency;

/// The figures of an [`Interval`], with quantiles in the place of histograms. Times are in nanoseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalRecord {
    /// When it began, since the measurement began.
    pub start_ns: u64,
    /// How long it took.
    pub elapsed_ns: u64,
    /// Requests answered: whole and, if verified, right.
    pub requests: u64,
    /// The same per second.
    pub requests_per_second: f64,
    /// How long each took; open loop: from the scheduled time, closed loop: from sending. None if nothing was answered.
    pub latency: Option<Latency>,
    /// Open loop only: how long each took from the actual sending.
    pub uncorrected: Option<Latency>,
    /// Open loop only: requests that the schedule held.
    pub offered: Option<u64>,
    /// Open loop only: requests that were sent more than 1 ms after their time.
    pub late: u64,
    /// Open loop only: requests of the schedule that were never sent.
    pub unsent: u64,
    /// Requests in flight that were given up, because the load was stopped before its end.
    #[serde(default)]
    pub abandoned: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// What went wrong, by kind.
    pub errors: Errors,
    /// Connections that were open at the end.
    pub open_connections: usize,
    /// What the server used; its memory at the end. None if it was not asked for, or is gone.
    pub server: Option<ProcessUsage>,
    /// CPU time of the server per request.
    pub server_cpu_ns_per_request: Option<f64>,
    /// CPU time of the load.
    pub load_cpu_ns: u64,
    /// The same per request.
    pub load_cpu_ns_per_request: Option<f64>,
    /// Time that the hypervisor took from the cores of the load and the server; none if it cannot be told.
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
            offered: interval.offered,
            late: interval.late,
            unsent: interval.unsent,
            abandoned: interval.abandoned,
            sent_bytes: interval.sent_bytes,
            received_bytes: interval.received_bytes,
            errors: interval.errors.clone(),
            open_connections: interval.open_connections,
            server: interval.server,
            server_cpu_ns_per_request: interval.server_cpu_ns_per_request(),
            load_cpu_ns: interval.load_cpu_ns,
            load_cpu_ns_per_request: interval.load_cpu_ns_per_request(),
            stolen_ns: interval.stolen_ns,
        }
    }
}
