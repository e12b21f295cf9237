//! Measures by which contenders are compared, and access to their values in a result.

use crate::plan::cell::{Cell, Workload};
use crate::result::finding::Verdict;
use crate::result::slice::Slice;

/// A measure by which contenders are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Measure {
    /// Requests (disk: operations) per second: more is better.
    Rate,
    /// Server CPU time per request (disk: per operation), in nanoseconds: less is better.
    Cpu,
    /// Median latency in nanoseconds: less is better.
    P50,
    /// 99th percentile of the latency in nanoseconds: less is better.
    P99,
    /// Process memory per idle connection, in bytes: less is better.
    Memory,
    /// Combined CPU time of server and load generator per request, in nanoseconds: less is better. For HTTP only.
    TotalCpu,
}

impl Measure {
    pub(crate) const ALL: [Measure; 6] =
        [Measure::Rate, Measure::Cpu, Measure::P50, Measure::P99, Measure::Memory, Measure::TotalCpu];

    /// Measures used in comparisons with peers and bases, in the column order of the tables.
    pub(crate) const IN_PAIRS: [Measure; 5] =
        [Measure::Cpu, Measure::TotalCpu, Measure::Rate, Measure::P99, Measure::Memory];

    /// Returns the value of this measure in a slice if it can be used in a ratio, that is, if it was measured and is
    /// finite and positive.
    pub(crate) fn of(self, slice: &Slice, cell: &Cell) -> Option<f64> {
        let value = match self {
            Measure::Rate => slice.requests_per_second(),
            Measure::Cpu => slice.cpu_ns_per_request(),
            Measure::P50 => slice.p50_ns as f64,
            Measure::P99 => slice.p99_ns as f64,
            Measure::Memory => slice.memory_per_connection(cell.connections)?,
            Measure::TotalCpu => slice.total_cpu_ns_per_request(),
        };
        Some(value).filter(|value| value.is_finite() && *value > 0.0)
    }

    /// Returns the measures that are compared in `cell`, most significant first. In closed loops with large responses,
    /// they include the p99 latency, which shows how fairly a server divides its time between connections.
    ///
    /// For HTTP, the combined CPU time of server and load generator is also compared: on loopback, the kernel processes
    /// a connection (transmission, acknowledgements) in the context of either process. With large responses, the server
    /// CPU time of two identical servers can differ by more than half, while the sum varies much less.
    pub fn of_cell(cell: &Cell) -> &'static [Measure] {
        use Measure::{Cpu, Memory, P50, P99, Rate, TotalCpu};
        match (cell.workload, cell.offered_per_second) {
            (Workload::Idle, _) => &[Memory],
            (Workload::Http { .. }, Some(_)) => &[Cpu, TotalCpu, P99, P50],
            (_, Some(_)) => &[Cpu, P99, P50],
            (workload, None) if workload.has_large_answers() => &[Cpu, TotalCpu, Rate, P99],
            (Workload::Http { .. }, None) => &[Cpu, TotalCpu, Rate],
            (_, None) => &[Cpu, Rate],
        }
    }

    pub(crate) fn more_is_better(self) -> bool {
        self == Measure::Rate
    }

    /// Returns the name of the measure for use in a sentence. Disk workers perform operations instead of requests.
    pub fn name(self, workload: Workload) -> &'static str {
        match (self, workload.is_disk()) {
            (Measure::Rate, true) => "operations/s",
            (Measure::Rate, false) => "requests/s",
            (Measure::Cpu, true) => "CPU per operation",
            (Measure::Cpu, false) => "server CPU per request",
            (Measure::P50, _) => "median latency",
            (Measure::P99, _) => "p99 latency",
            (Measure::Memory, _) => "memory per connection",
            (Measure::TotalCpu, _) => "CPU of server and load generator per request",
        }
    }

    /// Returns `true` if contenders are compared by this measure in `cell`. The rate is not compared where the plan
    /// fixes it (offered rate), nor the latency where it follows from the rate (closed loop with small responses).
    pub fn applies(self, cell: &Cell) -> bool {
        Self::of_cell(cell).contains(&self)
    }

    /// Returns whether the contender is better according to `verdict`; `None` if the difference is not significant.
    pub fn is_better(self, verdict: Verdict) -> Option<bool> {
        match verdict {
            Verdict::More => Some(self.more_is_better()),
            Verdict::Less => Some(!self.more_is_better()),
            _ => None,
        }
    }
}
