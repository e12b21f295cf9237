//! What a load found, in the form in which programs read it.
//!
//! The JSON of `anello load --json` is a [`Report`] as it stands here. Times are in nanoseconds (`_ns`), sizes in bytes
//! (`_bytes`). [`SCHEMA_VERSION`] goes up with every change that an old reader would misunderstand; fields that are
//! only added do not count. `docs/reference/load-report.md` lists them.

use std::net::IpAddr;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::config::{Arrivals, LoadConfig, Mode, Protocol};
use crate::errors::Errors;
use crate::formats::IntervalRecord;
use crate::interval::Interval;
use crate::session::nanoseconds;
use crate::tls::{HandshakeSummary, Trust};

/// Name of the format.
pub const SCHEMA: &str = "anello-load";

/// Version of the format.
pub const SCHEMA_VERSION: u32 = 2;

/// What a load found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The [`SCHEMA_VERSION`] it was written by.
    pub schema_version: u32,
    /// When the measurement began, in nanoseconds since 1970.
    pub began_unix_ns: u64,
    /// The server's address.
    pub target: String,
    /// What was asked of it.
    pub protocol: ProtocolReport,
    /// When it was asked.
    pub mode: ModeReport,
    /// The driver that the load ran on, `uring` or `epoll`.
    pub driver: String,
    /// The kernel features that the driver used, with commas.
    pub driver_features: String,
    /// Threads of the load.
    pub threads: usize,
    /// The cores that they were pinned to; none if they were not.
    pub cores: Vec<usize>,
    /// Connections asked for.
    pub connections: usize,
    /// Connections that could be opened.
    pub connections_opened: usize,
    /// Connections that were in order at the end, or, where each request has its own, could have been opened again.
    pub connections_left: usize,
    /// How often a connection was opened again.
    pub connections_reopened: u64,
    /// The addresses that the connections came from; none where the kernel chose.
    pub sources: Vec<IpAddr>,
    /// How it went under TLS; none without.
    #[serde(default)]
    pub tls: Option<TlsReport>,
    /// Whether every byte was checked.
    pub verified: bool,
    /// How long the measurement, or each step of a sweep, was to take.
    pub duration_ns: u64,
    /// How long the warm-up was to take.
    pub warm_up_ns: u64,
    /// Over how long the connections were opened.
    pub ramp_ns: u64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// Requests answered: whole and, if verified, with the right bytes; without the warm-up.
    pub requests: u64,
    /// From the beginning to the last reply, or to the last trouble; without the warm-up.
    pub elapsed_ns: u64,
    /// Requests answered until the planned end of the measurement, or of each step of a sweep.
    #[serde(default)]
    pub answered_in_time: u64,
    /// How long that took: without the wait for what was owed then.
    #[serde(default)]
    pub in_time_ns: u64,
    /// Requests answered per second, until the planned end; where nothing was answered by then, until the last reply.
    pub requests_per_second: f64,
    /// Time to the whole reply, in a closed loop from sending the request, in an open loop from the moment it was due;
    /// none if nothing was answered.
    pub latency: Option<Latency>,
    /// Open loop only: time from the actual sending. What a load would report that does not count its own waiting.
    pub uncorrected_latency: Option<Latency>,
    /// Open loop only: requests that the schedule held.
    pub offered: Option<u64>,
    /// Open loop only: requests that were sent more than 1 ms after they were due.
    pub late: u64,
    /// Open loop only: requests of the schedule that were never sent.
    pub unsent: u64,
    /// Requests in flight that were given up, because the load was stopped before its end.
    #[serde(default)]
    pub abandoned: u64,
    /// Open loop only: how long after it was due a request was sent whose connection was free: the load's own part in
    /// the latency.
    pub schedule_error: Option<Latency>,
    /// Bytes sent; those of requests alone where there is TLS.
    pub sent_bytes: u64,
    /// Bytes received; those of replies alone where there is TLS.
    pub received_bytes: u64,
    /// How evenly the requests were spread; none if no connection was left.
    pub requests_per_connection: Option<Spread>,
    /// Everything that went wrong while connecting, warming up and measuring, by kind.
    pub errors: Errors,
    /// What the server spent; none if it was not asked for, or if the server is gone.
    pub server: Option<ServerCost>,
    /// CPU time of the load's threads while measuring.
    pub load_cpu_ns: u64,
    /// The same per request; none if nothing was answered.
    pub load_cpu_ns_per_request: Option<f64>,
    /// Open loop: for how long the load's threads were awake only to watch the clock, while nothing was to do. Their CPU
    /// time has this in it, but for the time when others had the core.
    pub load_pacing_ns: u64,
    /// How much of its time the busiest thread worked, or waited for a core, in percent.
    pub load_busy_percent: f64,
    /// Whether that was more than 95 %, in a sweep at any step. In a closed loop the figures then are the load's more than
    /// the server's.
    pub load_was_bottleneck: bool,
    /// Time that the hypervisor took from the cores of the load and the server; none if it cannot be told.
    pub stolen_ns: Option<u64>,
    /// What happened when.
    pub intervals: Vec<IntervalRecord>,
    /// The steps of a sweep.
    pub steps: Vec<Step>,
    /// The step of a sweep at which the server did not follow; none if it always did.
    pub knee: Option<KneeReport>,
}

/// What was asked of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProtocolReport {
    /// Messages and replies of fixed sizes.
    Messages {
        /// Bytes of a request.
        request_bytes: usize,
        /// Bytes of a reply.
        response_bytes: usize,
    },
    /// GET over HTTP/1.1.
    Http {
        /// What was asked for, in turn; at most the first 100.
        paths: Vec<String>,
        /// How many paths there were.
        path_count: usize,
        /// Whether a connection took more than one request.
        keep_alive: bool,
        /// Most requests in flight on a connection.
        pipeline: usize,
    },
}

/// How a load went under TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsReport {
    /// The name that the server was asked by, and its certificate verified for.
    pub server_name: String,
    /// Whether certificates were verified.
    pub certificates_verified: bool,
    /// What the handshakes came to, while connecting, warming up and measuring.
    pub handshakes: Vec<HandshakeSummary>,
}

/// When a server was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModeReport {
    /// As soon as it had answered.
    Closed {
        /// How long after.
        think_ns: u64,
    },
    /// At fixed moments.
    Open {
        /// Requests per second.
        per_second: u64,
        /// How they were spread: `constant` or `poisson`.
        arrivals: String,
        /// What Poisson arrivals followed from.
        seed: u64,
    },
    /// At fixed moments, at rising rates.
    Sweep {
        /// The first rate, in requests per second.
        first: u64,
        /// The last.
        last: u64,
        /// From one to the next.
        step: u64,
        /// How they were spread: `constant` or `poisson`.
        arrivals: String,
        /// What Poisson arrivals followed from.
        seed: u64,
    },
}

/// One step of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Requests per second that the schedule held.
    pub per_second: u64,
    /// Requests answered within the step, per second.
    pub answered_per_second: f64,
    /// Requests answered within the step.
    #[serde(default)]
    pub answered_in_time: u64,
    /// What happened, replies after its end included.
    pub total: IntervalRecord,
    /// How well requests kept to their time.
    pub schedule_error: Option<Latency>,
    /// Whether a thread of the load was busy for more than 95 % of its time.
    pub load_was_bottleneck: bool,
}

/// Where a server stopped following the offered rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KneeReport {
    /// The number of the step, from 0.
    pub step: usize,
    /// Its rate, in requests per second.
    pub per_second: u64,
    /// How it shows, in words.
    pub why: String,
}

impl Report {
    /// Whether the server did all that was asked of it: something was answered, and nothing went wrong.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.requests > 0 && self.errors.is_empty()
    }
}

impl ProtocolReport {
    pub(crate) fn of(protocol: &Protocol) -> Self {
        match protocol {
            Protocol::Messages { request_bytes, response_bytes } => {
                Self::Messages { request_bytes: *request_bytes, response_bytes: *response_bytes }
            }
            Protocol::Http(http) => Self::Http {
                paths: http.paths.iter().take(100).cloned().collect(),
                path_count: http.paths.len(),
                keep_alive: http.keep_alive,
                pipeline: http.pipeline_depth,
            },
        }
    }
}

impl TlsReport {
    pub(crate) fn of(load: &LoadConfig, handshakes: Vec<HandshakeSummary>) -> Option<Self> {
        let tls = load.http_load()?.tls.as_ref()?;
        Some(Self {
            server_name: tls.server_name(),
            certificates_verified: tls.options().trust != Trust::AcceptAny,
            handshakes,
        })
    }
}

impl ModeReport {
    pub(crate) fn of(mode: &Mode) -> Self {
        let name = |arrivals: Arrivals| match arrivals {
            Arrivals::Constant => "constant".to_owned(),
            Arrivals::Poisson => "poisson".to_owned(),
        };
        match mode {
            Mode::Closed { think_time: think } => Self::Closed { think_ns: nanoseconds(*think) },
            Mode::Open { per_second, arrivals, seed } => {
                Self::Open { per_second: *per_second, arrivals: name(*arrivals), seed: *seed }
            }
            Mode::Sweep(sweep) => Self::Sweep {
                first: sweep.first,
                last: sweep.last,
                step: sweep.step,
                arrivals: name(sweep.arrivals),
                seed: sweep.seed,
            },
        }
    }
}

/// Quantiles of times, in nanoseconds at three significant digits.
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

/// What the server's process spent while measuring, over all its threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerCost {
    /// The process.
    pub pid: u32,
    /// CPU time in user space and kernel.
    pub cpu_ns: u64,
    /// The same per request; none if nothing was answered.
    pub cpu_ns_per_request: Option<f64>,
    /// How often its threads went to sleep.
    pub voluntary_switches: u64,
    /// How often its threads were made to let others run.
    pub involuntary_switches: u64,
    /// Both kinds of context switches per request; none if nothing was answered.
    #[serde(default)]
    pub switches_per_request: Option<f64>,
    /// Its memory (RSS) at the end, in bytes.
    pub resident_bytes: u64,
}

impl ServerCost {
    /// Of the process with this id; none if the interval does not tell.
    pub(crate) fn of(pid: u32, total: &Interval) -> Option<Self> {
        let usage = total.server?;
        let switches = usage.voluntary_switches.saturating_add(usage.involuntary_switches);
        Some(Self {
            pid,
            cpu_ns: usage.cpu_ns,
            cpu_ns_per_request: total.server_cpu_ns_per_request(),
            voluntary_switches: usage.voluntary_switches,
            involuntary_switches: usage.involuntary_switches,
            switches_per_request: (total.requests > 0).then(|| switches as f64 / total.requests as f64),
            resident_bytes: usage.resident_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessUsage;
    use crate::session::latency_histogram;

    #[test]
    fn the_cost_of_a_server_is_shared_by_its_requests() {
        let mut total = Interval::empty(0, false);
        assert_eq!(ServerCost::of(7, &total), None);
        let usage = ProcessUsage {
            cpu_ns: 1000,
            voluntary_switches: 5,
            involuntary_switches: 2,
            resident_bytes: 4096,
        };
        total.server = Some(usage);
        let cost = ServerCost::of(7, &total).unwrap();
        assert_eq!((cost.cpu_ns_per_request, cost.switches_per_request), (None, None));
        total.requests = 4;
        let cost = ServerCost::of(7, &total).unwrap();
        assert_eq!((cost.pid, cost.voluntary_switches, cost.involuntary_switches), (7, 5, 2));
        assert_eq!((cost.cpu_ns_per_request, cost.switches_per_request), (Some(250.0), Some(1.75)));
        // Reports of before have no such figure.
        let mut json = serde_json::to_value(cost).unwrap();
        json.as_object_mut().unwrap().remove("switches_per_request").unwrap();
        let old: ServerCost = serde_json::from_value(json).unwrap();
        assert_eq!(old, ServerCost { switches_per_request: None, ..cost });
    }

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
