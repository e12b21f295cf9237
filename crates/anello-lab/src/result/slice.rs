//! Stored measurements of one slice of load.

use serde::{Deserialize, Serialize};

/// Measurements of one slice of load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Index of the contender.
    pub contender: usize,
    /// Index of the cell in [`Plan::cells`](crate::result::Plan::cells).
    pub cell: usize,
    /// Pass, 0-based.
    pub pass: usize,
    /// Round within the cell and pass, 0-based.
    pub round: usize,
    /// Start of the slice, in nanoseconds since the start of the run.
    pub start_ns: u64,
    /// Number of answered requests.
    pub requests: u64,
    /// Time from the first request to the last response, in nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of the server, in nanoseconds.
    pub cpu_ns: u64,
    /// Number of voluntary context switches of the server; `None` if unknown.
    pub voluntary_switches: Option<u64>,
    /// Number of involuntary context switches of the server; `None` if unknown.
    pub involuntary_switches: Option<u64>,
    /// Resident memory of the server after the slice, in bytes; `None` if unknown.
    pub resident_bytes: Option<u64>,
    /// Resident memory of the server with `connections_before` open connections, in bytes; only for idle connections.
    pub resident_before_bytes: Option<u64>,
    /// Number of open connections when `resident_before_bytes` was read; 0 except for idle connections.
    #[serde(default)]
    pub connections_before: usize,
    /// CPU time of the load generator, in nanoseconds.
    pub load_cpu_ns: u64,
    /// CPU time of the load generator divided by elapsed time: 0 to 1 on one core, more on several cores.
    pub load_busy: f64,
    /// Time that the hypervisor stole from the cores in use, in nanoseconds.
    pub stolen_ns: u64,
    /// Time during which the CPU limit throttled the lab's control group, in nanoseconds.
    pub throttled_ns: u64,
    /// Median latency, in nanoseconds.
    pub p50_ns: u64,
    /// 90th percentile of the latency, in nanoseconds.
    pub p90_ns: u64,
    /// 99th percentile of the latency, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile of the latency, in nanoseconds.
    pub p999_ns: u64,
    /// Maximum latency, in nanoseconds.
    pub max_ns: u64,
    /// 99th percentile of the latency measured from the actual send time, in nanoseconds; open loop only.
    pub uncorrected_p99_ns: Option<u64>,
    /// Number of scheduled requests; open loop only.
    pub offered: Option<u64>,
    /// Number of requests that were sent more than 1 ms late.
    pub late: u64,
    /// Number of scheduled requests that were never sent.
    pub unsent: u64,
    /// Machine phase: 0 fast, 1 slow; `None` if no phases were detected.
    pub phase: Option<u8>,
    /// Quality of the slice. Only clean slices count.
    pub quality: Quality,
}

impl Slice {
    pub(crate) fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    pub(crate) fn cpu_ns_per_request(&self) -> f64 {
        self.cpu_ns as f64 / self.requests.max(1) as f64
    }

    /// Returns the combined CPU time of server and load generator per request, in nanoseconds. The sum includes the
    /// kernel's work for a connection, regardless of the process context in which that work was done.
    pub(crate) fn total_cpu_ns_per_request(&self) -> f64 {
        self.cpu_ns.saturating_add(self.load_cpu_ns) as f64 / self.requests.max(1) as f64
    }

    /// Returns the memory growth per connection, in bytes, from `connections_before` to `connections` open connections.
    /// The growth can be zero or negative if the server released other memory in the meantime.
    pub(crate) fn memory_per_connection(&self, connections: usize) -> Option<f64> {
        let grown = self.resident_bytes? as f64 - self.resident_before_bytes? as f64;
        Some(grown / connections.saturating_sub(self.connections_before).max(1) as f64)
    }
}

/// Quality of a slice. Only clean slices count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Quality {
    /// The slice is used in the analysis.
    Clean,
    /// The hypervisor stole CPU time during the slice.
    Stolen,
    /// A CPU limit throttled the lab or the server during the slice.
    Throttled,
    /// No request was answered, or the server's CPU time (for idle connections: its memory) is unknown.
    Invalid,
}
