//! Results of a load run in the format printed by `anello load --json`. `docs/reference/load-report.md` documents
//! all fields.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::config::{Knee, LoadConfig, Mode, Protocol};
use crate::model::errors::Errors;
use crate::model::interval::{Interval, IntervalRecord, Latency};
use crate::model::shard::RunIdentity;
use crate::model::tls::{HandshakeSummary, Trust};
use crate::system::process::ProcessUsage;

/// Name of the report format.
pub const SCHEMA: &str = "anello-load";

/// Version of the report format. Incremented for incompatible changes; adding a field is a compatible change.
pub const SCHEMA_VERSION: u32 = 3;

/// Results of a load run. Times (`_ns`) are in nanoseconds, and sizes (`_bytes`) are in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Value of [`SCHEMA_VERSION`] in the program that wrote the report.
    pub schema_version: u32,
    /// Identity of the run, with its shard.
    #[serde(default)]
    pub run: RunIdentity,
    /// Clock that the start of the load was taken from. `None` if the load was stopped before it started.
    #[serde(default)]
    pub clock: Option<ClockReport>,
    /// Start of the measurement, in nanoseconds since the Unix epoch.
    #[serde(alias = "began_unix_ns")]
    pub started_unix_ns: u64,
    /// Address of the server.
    pub target: String,
    /// Protocol and requests.
    pub protocol: ProtocolReport,
    /// Schedule of the requests, over all shards.
    pub mode: Mode,
    /// I/O driver of the load generator: `uring` or `epoll`.
    pub driver: String,
    /// Comma-separated list of the kernel features that the driver used.
    pub driver_features: String,
    /// Number of load generator threads.
    pub threads: usize,
    /// Cores to which the threads were pinned. Empty if they were not pinned.
    pub cores: Vec<usize>,
    /// Number of connections requested.
    pub connections: usize,
    /// Number of connections requested over all shards; 0 in reports of earlier versions.
    #[serde(default)]
    pub all_connections: usize,
    /// Number of connections opened successfully.
    pub connections_opened: usize,
    /// Number of connections still usable at the end of the load. Without keep-alive, this includes connections that
    /// could have been reopened.
    #[serde(alias = "connections_left")]
    pub connections_open_at_end: usize,
    /// Number of times a connection was reopened.
    pub connections_reopened: u64,
    /// Source addresses of the connections. Empty if the kernel selected them.
    #[serde(alias = "sources")]
    pub source_addresses: Vec<IpAddr>,
    /// TLS results. `None` if TLS was not used.
    #[serde(default)]
    pub tls: Option<TlsReport>,
    /// Whether every byte of the replies was verified.
    pub verified: bool,
    /// Configured duration of the measurement, or of each step of a sweep.
    pub duration_ns: u64,
    /// Configured duration of the warm-up.
    pub warm_up_ns: u64,
    /// Time over which the opening of connections was spread.
    pub ramp_ns: u64,
    /// Whether the load was stopped early.
    pub interrupted: bool,
    /// Open loop only: periods in which the load was paused. Requests due in a pause were skipped, so they are not part
    /// of `offered`.
    #[serde(default)]
    pub pauses: Vec<Pause>,
    /// Requests whose reply was complete and, if verification is enabled, had the expected bytes. Excludes the warm-up.
    pub requests: u64,
    /// Time from the start of the measurement to the last reply or error. Excludes the warm-up.
    pub elapsed_ns: u64,
    /// Requests answered before the planned end of the measurement, or of each step of a sweep.
    #[serde(default)]
    pub answered_in_time: u64,
    /// Time covered by `answered_in_time`. Excludes the wait for replies still pending at the planned end.
    #[serde(default)]
    pub in_time_ns: u64,
    /// Requests answered per second until the planned end, or until the last reply if no request was answered by then.
    /// Pauses do not count.
    pub requests_per_second: f64,
    /// Request latency, as in [`IntervalRecord::latency`].
    pub latency: Option<Latency>,
    /// Open loop only: latency measured from the actual send time, which is what a load generator without correction
    /// for coordinated omission reports.
    pub uncorrected_latency: Option<Latency>,
    /// Open loop only: number of scheduled requests.
    pub offered: Option<u64>,
    /// Open loop only: requests sent more than 1 ms after their scheduled time.
    pub late: u64,
    /// Open loop only: scheduled requests that were never sent.
    pub unsent: u64,
    /// Requests in flight that were cancelled because the load was stopped early.
    #[serde(default)]
    pub abandoned: u64,
    /// Open loop only: delay between the scheduled time and the send time, for requests whose connection was idle. This
    /// is the part of the latency that the load generator itself causes.
    pub schedule_error: Option<Latency>,
    /// Bytes sent. With TLS, counts only the plaintext of requests.
    pub sent_bytes: u64,
    /// Bytes received. With TLS, counts only the plaintext of replies.
    pub received_bytes: u64,
    /// Distribution of the requests over the connections. `None` if no connection was usable at the end.
    pub requests_per_connection: Option<Spread>,
    /// Errors by kind. Includes errors while connecting and during the warm-up.
    pub errors: Errors,
    /// Resources used by the server process. `None` if the process was not monitored or has exited.
    pub server: Option<ServerCost>,
    /// CPU time of the load generator's threads during the measurement.
    pub load_cpu_ns: u64,
    /// CPU time of the load generator per request. `None` if no request was answered.
    pub load_cpu_ns_per_request: Option<f64>,
    /// Open loop only: time that the load generator's threads spent polling the clock while they had no other work.
    /// Their CPU time includes this time, except for periods in which other threads were running on the core.
    pub load_pacing_ns: u64,
    /// Percentage of time that the busiest thread was working or waiting for a core.
    pub load_busy_percent: f64,
    /// Whether `load_busy_percent` exceeded 95 %, either overall or in any step of a sweep. If so, a closed loop
    /// measures the load generator rather than the server.
    pub load_was_bottleneck: bool,
    /// Steal time, as in [`IntervalRecord::stolen_ns`].
    pub stolen_ns: Option<u64>,
    /// Histograms of the whole run, which [`merge`](crate::merge) adds. `None` in reports of earlier versions.
    #[serde(default)]
    pub histograms: Option<Histograms>,
    /// Measurements for each interval.
    pub intervals: Vec<IntervalRecord>,
    /// Steps of a sweep. Empty in other modes.
    pub steps: Vec<Step>,
    /// First step of a sweep at which the server did not keep up with the offered rate, if any.
    pub knee: Option<KneeReport>,
}

/// Clock that the start of a load was taken from, and its readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// Name of the clock: `CLOCK_REALTIME`. Durations and latencies are measured with `CLOCK_MONOTONIC`.
    pub name: String,
    /// Hardware clock that the kernel reads, such as `tsc`. `None` if unknown.
    pub source: Option<String>,
    /// Change of the clock relative to `CLOCK_MONOTONIC` during the run: the sum of its corrections.
    pub step_ns: i64,
    /// Configured start of the load, in nanoseconds since the Unix epoch. `None` if none was configured.
    pub start_at_unix_ns: Option<u64>,
    /// Time from the configured start to the actual start of the load. 0 if no start was configured.
    pub start_delay_ns: u64,
}

/// Histograms of a run in nanoseconds, in the V2 compressed encoding of HdrHistogram, as base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histograms {
    /// Values of [`Report::latency`].
    pub latency: String,
    /// Values of [`Report::uncorrected_latency`].
    pub uncorrected: Option<String>,
    /// Values of [`Report::schedule_error`].
    pub schedule_error: Option<String>,
}

/// Protocol and requests of a load run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProtocolReport {
    /// Requests and replies of fixed sizes.
    Messages {
        /// Size of a request.
        request_bytes: usize,
        /// Size of a reply.
        response_bytes: usize,
    },
    /// Requests over HTTP/1.1.
    Http {
        /// Method.
        #[serde(default = "default_method")]
        method: String,
        /// Length of the body of a request.
        #[serde(default)]
        body_bytes: usize,
        /// Requested paths, in order. Only the first 100 are listed.
        paths: Vec<String>,
        /// Number of paths.
        path_count: usize,
        /// Whether connections were reused for several requests.
        keep_alive: bool,
        /// Maximum number of requests in flight on a connection.
        pipeline: usize,
    },
}

/// TLS results of a load run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsReport {
    /// Server name used for SNI and certificate verification.
    pub server_name: String,
    /// Whether certificates were verified.
    pub certificates_verified: bool,
    /// Handshakes by outcome, including those before the measurement.
    pub handshakes: Vec<HandshakeSummary>,
}

/// A period of the measurement in which the load was paused.
///
/// ```
/// let pause = anello_load::Pause { start_ns: 1_000_000_000, elapsed_ns: 500_000_000 };
/// assert_eq!(serde_json::to_string(&pause)?, r#"{"start_ns":1000000000,"elapsed_ns":500000000}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Start, in nanoseconds since the start of the measurement.
    pub start_ns: u64,
    /// Length in nanoseconds.
    pub elapsed_ns: u64,
}

/// Step of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Scheduled requests per second.
    pub per_second: u64,
    /// Requests per second answered before the end of the step. Pauses do not count.
    pub answered_per_second: f64,
    /// Requests answered before the end of the step.
    #[serde(default)]
    pub answered_in_time: u64,
    /// Measurements of the step. Includes replies received after its end.
    pub total: IntervalRecord,
    /// Delay between the scheduled time and the send time, for requests whose connection was idle.
    pub schedule_error: Option<Latency>,
    /// Whether a load generator thread was busy for more than 95 % of the time.
    pub load_was_bottleneck: bool,
}

/// Step of a sweep at which the server stopped keeping up with the offered rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KneeReport {
    /// 0-based index of the step.
    pub step: usize,
    /// Rate of the step, in requests per second.
    pub per_second: u64,
    /// Human-readable explanation.
    pub why: String,
}

impl Knee {
    /// Returns the reason why the server did not keep up with the last of `steps`, or `None` if it did.
    pub fn saturation_reason(&self, steps: &[Step]) -> Option<String> {
        let (first, last) = (steps.first()?, steps.last()?);
        // Relative to the offered requests, whose number is not the nominal one during a ramp or with Poisson arrivals.
        let offered = last.total.counts.offered.filter(|&offered| offered > 0);
        let percent = offered.map(|offered| last.answered_in_time as f64 * 100.0 / offered as f64);
        let min_percent = self.min_answered_percent;
        if let Some(percent) = percent.filter(|&percent| percent < f64::from(min_percent)) {
            return Some(format!(
                "only {percent:.1} % of the offered requests were answered in time (minimum {min_percent} %)"
            ));
        }
        let p99_ns = |step: &Step| step.total.latency.map(|latency| latency.p99_ns);
        let (last_ns, first_ns) = (p99_ns(last)?, p99_ns(first)?);
        let (max_factor, factor) = (self.max_latency_factor, last_ns as f64 / first_ns.max(1) as f64);
        (steps.len() > 1 && last_ns > first_ns.saturating_mul(max_factor.into())).then(|| {
            format!("p99 latency is {factor:.1} times that of the first step (maximum {max_factor})")
        })
    }
}

impl Report {
    /// Returns the 99th percentile of [`schedule_error`](Self::schedule_error) if the load generator sent requests late
    /// enough to affect the latency: if it exceeds 0.1 ms and a tenth of the 99th percentile of the latency.
    pub fn late_sends_p99_ns(&self) -> Option<u64> {
        let (error, latency) = self.schedule_error.zip(self.latency)?;
        let is_late = error.p99_ns > 100_000 && error.p99_ns.saturating_mul(10) > latency.p99_ns;
        is_late.then_some(error.p99_ns)
    }

    /// Returns `true` if the measurement ended before its planned end because no connection was left. Returns `false`
    /// for a sweep.
    pub fn ended_early(&self) -> bool {
        let has_no_connection = self.connections_open_at_end == 0 && self.steps.is_empty();
        has_no_connection && !self.interrupted && self.elapsed_ns < self.duration_ns
    }

    /// Returns `true` if at least one request was answered and no errors occurred.
    pub fn is_success(&self) -> bool {
        self.requests > 0 && self.errors.is_empty()
    }
}

/// Method in reports that do not name it.
fn default_method() -> String {
    "GET".to_owned()
}

impl ProtocolReport {
    pub(crate) fn of(protocol: &Protocol) -> Self {
        match protocol {
            &Protocol::Messages { request_bytes, response_bytes } => {
                Self::Messages { request_bytes, response_bytes }
            }
            Protocol::Http(http) => Self::Http {
                method: http.method.clone(),
                body_bytes: http.body.len(),
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

/// Distribution of answered requests over the connections that were usable at the end of the load. If the server treats
/// all connections equally, the minimum is close to the median.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Minimum.
    pub min: u64,
    /// Median.
    pub median: u64,
    /// Maximum.
    pub max: u64,
}

impl Spread {
    /// Computes the spread of `counts`. Returns `None` if there are no counts.
    pub fn of(counts: &[u64]) -> Option<Self> {
        let mut sorted = counts.to_vec();
        sorted.sort_unstable();
        Some(Self { min: *sorted.first()?, median: sorted[sorted.len() / 2], max: *sorted.last()? })
    }
}

/// Resources that the server process used during the measurement, over all its threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerCost {
    /// Process ID of the server.
    pub pid: u32,
    /// Resources used by all threads during the measurement, and the memory usage at its end.
    #[serde(flatten)]
    pub usage: ProcessUsage,
    /// CPU time per request. `None` if no request was answered.
    pub cpu_ns_per_request: Option<f64>,
    /// Voluntary and involuntary context switches per request. `None` if no request was answered.
    #[serde(default)]
    pub switches_per_request: Option<f64>,
}

impl ServerCost {
    /// Returns the resources used by the server process `pid`, or `None` if `total` has no measurements of the server.
    pub fn of(pid: u32, total: &Interval) -> Option<Self> {
        let usage = total.server?;
        let switches = usage.voluntary_switches.saturating_add(usage.involuntary_switches);
        Some(Self {
            pid,
            usage,
            cpu_ns_per_request: total.server_cpu_ns_per_request(),
            switches_per_request: (total.requests > 0).then(|| switches as f64 / total.requests as f64),
        })
    }
}
