//! Measurements of one time interval of a run. All output is derived from these records.
//!
//! ```text
//!  time       0 s            1 s            2 s
//!  thread 0   ├──────────────┼──────────────┼─        add      same interval, other connections
//!  thread 1   ├──────────────┼──────────────┼─          ↓
//!  run        ├──────────────┼──────────────┼─        append → next interval
//! ```

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::model::errors::Errors;
use crate::model::histogram::{add_histogram, latency_histogram};
use crate::system::process::ProcessUsage;

/// Measurements of one time interval of a run, summed over all threads, or of a single thread before summation.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Start of the interval, in nanoseconds since the start of the measurement. The warm-up is not recorded.
    pub start_ns: u64,
    /// Length of the interval, in nanoseconds.
    pub elapsed_ns: u64,
    /// Requests with a complete reply and, if verification is enabled, the expected bytes.
    pub requests: u64,
    /// Request latency in nanoseconds, measured from the scheduled time (open loop) or the send time (closed loop).
    pub latency: Histogram<u64>,
    /// Open loop only: request latency in nanoseconds, measured from the actual send time.
    pub uncorrected: Option<Histogram<u64>>,
    /// Counters.
    pub counts: Counts,
    /// Connections open at the end of the interval.
    pub open_connections: usize,
    /// Resources used by the server process. `None` if the process was not monitored or has exited.
    pub server: Option<ProcessUsage>,
    /// CPU time of the load generator, in nanoseconds.
    pub load_cpu_ns: u64,
    /// Steal time in nanoseconds: time that the hypervisor took from the cores of the load generator and, if the server
    /// process is known, from the cores that the server may use. `None` if unknown.
    pub stolen_ns: Option<u64>,
}

impl Interval {
    /// Creates an empty interval. If `open_loop` is `true`, the open-loop fields are present.
    pub fn empty(start_ns: u64, open_loop: bool) -> Self {
        Self {
            start_ns,
            elapsed_ns: 0,
            requests: 0,
            latency: latency_histogram(),
            uncorrected: open_loop.then(latency_histogram),
            counts: Counts { offered: open_loop.then_some(0), ..Counts::default() },
            open_connections: 0,
            server: None,
            load_cpu_ns: 0,
            stolen_ns: None,
        }
    }

    /// Returns the end of the interval, in nanoseconds since the start of the measurement.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.elapsed_ns)
    }

    /// Adds measurements of the same interval on other connections, such as those of another thread. Values that
    /// describe a process or the machine (`server`, `load_cpu_ns`, `stolen_ns`) must be present in only one of the
    /// intervals, or be set afterwards.
    pub fn add(&mut self, other: &Self) {
        self.sum(other);
        self.open_connections += other.open_connections;
    }

    /// Appends the next interval. The number of open connections and the memory usage are taken from `next`.
    pub fn append(&mut self, next: &Self) {
        self.sum(next);
        self.open_connections = next.open_connections;
        if let (Some(server), Some(next)) = (&mut self.server, &next.server) {
            server.resident_bytes = next.resident_bytes;
        }
    }

    /// Adds all fields except the number of open connections.
    fn sum(&mut self, other: &Self) {
        let end_ns = self.end_ns().max(other.end_ns());
        self.start_ns = self.start_ns.min(other.start_ns);
        self.elapsed_ns = end_ns - self.start_ns;
        self.requests += other.requests;
        add_histogram(&mut self.latency, &other.latency);
        match (&mut self.uncorrected, &other.uncorrected) {
            (Some(sum), Some(others)) => add_histogram(sum, others),
            (sum, others) => *sum = sum.take().or_else(|| others.clone()),
        }
        self.counts.add(&other.counts);
        self.server = sum_of_known(self.server, other.server, ProcessUsage::plus);
        self.load_cpu_ns += other.load_cpu_ns;
        self.stolen_ns = sum_of_known(self.stolen_ns, other.stolen_ns, u64::saturating_add);
    }

    /// Returns the number of requests answered per second, or 0 if the length of the interval is 0.
    pub fn requests_per_second(&self) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { self.requests as f64 * 1e9 / self.elapsed_ns as f64 }
    }

    /// Returns the quantiles of the latency, or `None` if no request was answered.
    pub fn quantiles(&self) -> Option<Latency> {
        Latency::of(&self.latency)
    }

    /// Returns the quantiles of the uncorrected latency, or `None` in a closed loop or if no request was answered.
    pub fn uncorrected_quantiles(&self) -> Option<Latency> {
        self.uncorrected.as_ref().and_then(Latency::of)
    }

    /// Returns the CPU time of the server per request, in nanoseconds, or `None` if it is unknown or no request was
    /// answered.
    pub fn server_cpu_ns_per_request(&self) -> Option<f64> {
        (self.requests > 0).then_some(self.server?.cpu_ns as f64 / self.requests as f64)
    }

    /// Returns the CPU time of the load generator per request, in nanoseconds, or `None` if no request was answered.
    pub fn load_cpu_ns_per_request(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.load_cpu_ns as f64 / self.requests as f64)
    }
}

/// Counters for a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Open loop only: requests scheduled during the period.
    pub offered: Option<u64>,
    /// Open loop only: requests sent more than 1 ms after their scheduled time, usually because the connection was
    /// still busy.
    pub late: u64,
    /// Open loop only: scheduled requests that were never sent.
    pub unsent: u64,
    /// Requests in flight that were cancelled because the load was stopped early.
    #[serde(default)]
    pub abandoned: u64,
    /// Bytes sent. With TLS, counts only the plaintext of requests.
    pub sent_bytes: u64,
    /// Bytes received. With TLS, counts only the plaintext of replies.
    pub received_bytes: u64,
    /// Errors by kind.
    pub errors: Errors,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.offered = sum_of_known(self.offered, other.offered, u64::saturating_add);
        self.late += other.late;
        self.unsent += other.unsent;
        self.abandoned += other.abandoned;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.errors.merge(other.errors.clone());
    }
}

/// Adds the known values. Returns `None` if both are unknown.
fn sum_of_known<T: Copy>(one: Option<T>, other: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    one.zip(other).map(|(one, other)| add(one, other)).or(one).or(other)
}

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
    /// Request latency, measured from the scheduled time (open loop) or the send time (closed loop). `None` if no
    /// request was answered.
    pub latency: Option<Latency>,
    /// Open loop only: request latency measured from the actual send time.
    pub uncorrected: Option<Latency>,
    /// Counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// Connections open at the end of the interval.
    pub open_connections: usize,
    /// Resources used by the server process. `None` if the process was not monitored or has exited.
    pub server: Option<ProcessUsage>,
    /// CPU time of the server per request. `None` if the CPU time is unknown or no request was answered.
    pub server_cpu_ns_per_request: Option<f64>,
    /// CPU time of the load generator.
    pub load_cpu_ns: u64,
    /// CPU time of the load generator per request. `None` if no request was answered.
    pub load_cpu_ns_per_request: Option<f64>,
    /// Time that the hypervisor took from the cores of the load generator and the server. `None` if unknown.
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

/// Quantiles of a latency distribution, in nanoseconds with three significant digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Minimum.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

impl Latency {
    /// Computes the quantiles of a histogram of values in nanoseconds. Returns `None` if the histogram is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        (!histogram.is_empty()).then(|| Self {
            min_ns: histogram.min(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        })
    }
}
