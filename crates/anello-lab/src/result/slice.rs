//! One slice of load as it is kept, and whether it counts.

use serde::{Deserialize, Serialize};

/// One slice of load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Index of the contender.
    pub contender: usize,
    /// Index of the cell in [`Plan::cells`](crate::result::Plan::cells).
    pub cell: usize,
    /// Pass, from 0.
    pub pass: usize,
    /// Round within cell and pass, from 0.
    pub round: usize,
    /// When it began, since the run did.
    pub start_ns: u64,
    /// Requests answered.
    pub requests: u64,
    /// From the first request to the last reply.
    pub elapsed_ns: u64,
    /// CPU time of the server.
    pub cpu_ns: u64,
    /// Context switches of the server that it asked for by waiting; none if they could not be told.
    pub voluntary_switches: Option<u64>,
    /// Context switches of the server that others forced on it.
    pub involuntary_switches: Option<u64>,
    /// Memory of the server afterwards, in bytes.
    pub resident_bytes: Option<u64>,
    /// Memory of the server when the first [`connections_before`](Self::connections_before) connections were there; only
    /// for idle connections.
    pub resident_before_bytes: Option<u64>,
    /// Connections that were there when [`resident_before_bytes`](Self::resident_before_bytes) was looked at; 0 but for
    /// idle connections.
    #[serde(default)]
    pub connections_before: usize,
    /// CPU time of the load.
    pub load_cpu_ns: u64,
    /// Part of the time that the load was on its core, 0 to 1 (more with several cores).
    pub load_busy: f64,
    /// Time stolen from the cores used.
    pub stolen_ns: u64,
    /// Time that the lab's group of processes was held back by its CPU limit.
    pub throttled_ns: u64,
    /// Median time to a reply.
    pub p50_ns: u64,
    /// 90th percentile of the time to a reply.
    pub p90_ns: u64,
    /// 99th percentile of the time to a reply.
    pub p99_ns: u64,
    /// 99.9th percentile of the time to a reply.
    pub p999_ns: u64,
    /// Longest time to a reply.
    pub max_ns: u64,
    /// 99th percentile counted from the sending; only where a rate was offered.
    pub uncorrected_p99_ns: Option<u64>,
    /// Requests that the schedule held; only where a rate was offered.
    pub offered: Option<u64>,
    /// Requests sent later than 1 ms after their time.
    pub late: u64,
    /// Requests of the schedule never sent.
    pub unsent: u64,
    /// Phase of the machine: 0 fast, 1 slow; none where no two phases can be told apart.
    pub phase: Option<u8>,
    /// Whether it counts.
    pub quality: Quality,
}

impl Slice {
    /// Requests answered per second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// CPU time of the server per request, in nanoseconds.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> f64 {
        self.cpu_ns as f64 / self.requests.max(1) as f64
    }

    /// CPU time of server and load together per request, in nanoseconds: whichever side of loopback did the kernel's work
    /// for a connection, it is in it.
    #[must_use]
    pub fn cpu_of_both_ns_per_request(&self) -> f64 {
        self.cpu_ns.saturating_add(self.load_cpu_ns) as f64 / self.requests.max(1) as f64
    }

    /// Memory for each connection of those that came after the first, `connections` in all, in bytes; none if it was not
    /// measured. It may be 0 or less where connections take so little that the server gave back more meanwhile.
    #[must_use]
    pub fn memory_per_connection(&self, connections: usize) -> Option<f64> {
        let grown = self.resident_bytes? as f64 - self.resident_before_bytes? as f64;
        Some(grown / connections.saturating_sub(self.connections_before).max(1) as f64)
    }
}

/// Whether a slice counts, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// It counts.
    Clean,
    /// The hypervisor took part of it.
    Stolen,
    /// A CPU limit held the lab or the server back during it.
    Throttled,
    /// There were no requests, or the server's CPU time (of idle connections its memory) could not be told.
    #[serde(rename = "spoilt")]
    Invalid,
}
