//! What a load found, in the form in which programs read it.
//!
//! The JSON of `anello load --json` is a [`Report`] as it stands here. Times are in nanoseconds (`_ns`), sizes in bytes
//! (`_bytes`). [`SCHEMA_VERSION`] goes up with every change that an old reader would misunderstand; fields that are
//! only added do not count. `docs/load-report.md` lists them.

use std::net::IpAddr;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::errors::Errors;

/// Name of the format.
pub const SCHEMA: &str = "anello-load";

/// Version of the format.
pub const SCHEMA_VERSION: u32 = 1;

/// What a load found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The [`SCHEMA_VERSION`] it was written by.
    pub schema_version: u32,
    /// The server's address.
    pub target: String,
    /// The driver that the load ran on, `uring` or `epoll`.
    pub driver: String,
    /// The kernel features that the driver used, with commas.
    pub driver_features: String,
    /// Connections asked for.
    pub connections: usize,
    /// Connections that could be opened.
    pub connections_opened: usize,
    /// Connections that were in order at the end.
    pub connections_left: usize,
    /// The addresses that the connections came from; none where the kernel chose.
    #[serde(default)]
    pub sources: Vec<IpAddr>,
    /// Bytes of a request, and of its reply.
    pub message_bytes: usize,
    /// Whether every byte was checked.
    pub verified: bool,
    /// How long the measurement was to take.
    pub duration_ns: u64,
    /// How long the warm-up was to take.
    pub warm_up_ns: u64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// Requests answered: whole and, if verified, with the right bytes; without the warm-up.
    pub requests: u64,
    /// From the first request to the last reply, or to the last trouble; without the warm-up.
    pub elapsed_ns: u64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// Time from request to whole reply; none if nothing was answered.
    pub latency: Option<Latency>,
    /// How evenly the requests were spread; none if no connection was left.
    pub requests_per_connection: Option<Spread>,
    /// Everything that went wrong while connecting, warming up and measuring, by kind.
    pub errors: Errors,
    /// What the server spent; none if it was not asked for, or if the server is gone.
    pub server_cpu: Option<ServerCpu>,
    /// CPU time of this process while measuring.
    pub load_cpu_ns: u64,
    /// The same per request; none if nothing was answered.
    pub load_cpu_ns_per_request: Option<f64>,
}

impl Report {
    /// Whether the server did all that was asked of it: something was answered, and nothing went wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.requests > 0 && self.errors.is_empty()
    }
}

/// Time from request to whole reply, in nanoseconds at three significant digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The shortest.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// Half of the requests took no longer.
    pub p50_ns: u64,
    /// 90 % took no longer.
    pub p90_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    /// The figures of a histogram of nanoseconds; none if it is empty.
    #[must_use]
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

/// Requests answered on the connections that were in order at the end. A server that treats all alike has a least that
/// is not far from the median.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// On the connection with the fewest.
    pub min: u64,
    /// On the one in the middle.
    pub median: u64,
    /// On the one with the most.
    pub max: u64,
}

impl Spread {
    /// Of these counts; none if there are none.
    #[must_use]
    pub fn of(counts: &[u64]) -> Option<Self> {
        let mut sorted = counts.to_vec();
        sorted.sort_unstable();
        Some(Self { min: *sorted.first()?, median: sorted[sorted.len() / 2], max: *sorted.last()? })
    }
}

/// CPU time of the server while measuring, in user space and kernel, over all threads that lived to the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerCpu {
    /// The process.
    pub pid: u32,
    /// Its CPU time.
    pub cpu_ns: u64,
    /// The same per request; none if nothing was answered.
    pub cpu_ns_per_request: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::latency_histogram;

    #[test]
    fn percentiles_are_those_of_the_requests() {
        let mut histogram = latency_histogram();
        assert_eq!(Latency::of(&histogram), None);
        (1..=1000).for_each(|microseconds| histogram.saturating_record(microseconds * 1000));
        let latency = Latency::of(&histogram).unwrap();
        let near = |value_ns: u64, expected_ns: u64| value_ns.abs_diff(expected_ns) <= expected_ns / 500;
        assert!(near(latency.p50_ns, 500_000) && near(latency.p90_ns, 900_000), "{latency:?}");
        assert!(near(latency.p99_ns, 990_000) && near(latency.p999_ns, 999_000), "{latency:?}");
        assert!(near(latency.min_ns, 1_000) && near(latency.max_ns, 1_000_000), "{latency:?}");
    }

    #[test]
    fn the_spread_has_least_middle_and_most() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[7]), Some(Spread { min: 7, median: 7, max: 7 }));
        assert_eq!(Spread::of(&[9, 1, 5, 3, 7]), Some(Spread { min: 1, median: 5, max: 9 }));
    }
}
