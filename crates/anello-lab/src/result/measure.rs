//! Measures by which contenders are compared, and access to their values in a result.

use crate::plan::cell::{Cell, Workload};
use crate::result::Ratio;
use crate::result::{CellResult, PairComparison, Row, Slice, Verdict};

/// A measure by which contenders are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Requests (disk: operations) per second: more is better.
    Rate,
    /// Server CPU time per request (disk: per operation), in nanoseconds: less is better.
    Cpu,
    /// Median latency in nanoseconds: less is better.
    P50,
    /// 99th percentile of the latency in nanoseconds: less is better.
    P99,
    /// Memory of the process for each idle connection, in bytes: less is better.
    Memory,
    /// Combined CPU time of server and load per request, in nanoseconds: less is better. Used for HTTP only, see
    /// [`of_cell`](Self::of_cell).
    #[serde(rename = "cpu_of_both")]
    TotalCpu,
}

impl Measure {
    /// All measures.
    pub const ALL: [Measure; 6] =
        [Measure::Rate, Measure::Cpu, Measure::P50, Measure::P99, Measure::Memory, Measure::TotalCpu];

    /// Measures used in comparisons with peers and bases, in the column order of the tables.
    pub const IN_PAIRS: [Measure; 5] =
        [Measure::Cpu, Measure::TotalCpu, Measure::Rate, Measure::P99, Measure::Memory];

    /// Returns the value of a slice if it can be part of a ratio, that is, if it is finite and positive.
    #[must_use]
    pub fn of(self, slice: &Slice, cell: &Cell) -> Option<f64> {
        self.value(slice, cell).filter(|value| value.is_finite() && *value > 0.0)
    }

    /// Returns the measures that are compared in `cell`, the most significant first. In closed loops with large
    /// responses, the p99 latency shows how fairly a server divides its time between connections, which the rate does
    /// not show.
    ///
    /// For HTTP, the combined CPU time of server and load is also compared. On loopback, the kernel processes a
    /// connection (transmission, acknowledgements) in the context of either process. This work dominates large
    /// responses: the server CPU time of two identical servers can differ by more than half, while the sum varies much
    /// less.
    #[must_use]
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

    /// Returns `true` if a higher value is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        self == Measure::Rate
    }

    /// Returns the name of the measure for use in a sentence. For disk workloads, it refers to operations instead of
    /// requests and does not mention a server.
    #[must_use]
    pub fn name(self, workload: Workload) -> &'static str {
        match (self, workload.is_disk()) {
            (Measure::Rate, true) => "operations/s",
            (Measure::Rate, false) => "requests/s",
            (Measure::Cpu, true) => "CPU per operation",
            (Measure::Cpu, false) => "server CPU per request",
            (Measure::P50, _) => "median latency",
            (Measure::P99, _) => "p99 latency",
            (Measure::Memory, _) => "memory per connection",
            (Measure::TotalCpu, _) => "CPU of server and load per request",
        }
    }

    /// Returns `true` if contenders are compared by this measure in `cell`. At an offered rate, the request rate is
    /// fixed by the plan. In a closed loop with small responses, the latency follows from the rate.
    #[must_use]
    pub fn applies(self, cell: &Cell) -> bool {
        Self::of_cell(cell).contains(&self)
    }

    /// Returns the value of one slice, or `None` if it was not measured.
    #[must_use]
    pub fn value(self, slice: &Slice, cell: &Cell) -> Option<f64> {
        match self {
            Measure::Rate => Some(slice.requests_per_second()),
            Measure::Cpu => Some(slice.cpu_ns_per_request()),
            Measure::P50 => Some(slice.p50_ns as f64),
            Measure::P99 => Some(slice.p99_ns as f64),
            Measure::Memory => slice.memory_per_connection(cell.connections),
            Measure::TotalCpu => Some(slice.cpu_of_both_ns_per_request()),
        }
    }

    /// Returns the ratio of `row` for this measure.
    #[must_use]
    pub fn ratio(self, row: &Row) -> Option<Ratio> {
        match self {
            Measure::Rate => row.rate_ratio,
            Measure::Cpu => row.cpu_ratio,
            Measure::P50 => row.p50_ratio,
            Measure::P99 => row.p99_ratio,
            Measure::Memory => row.memory_ratio,
            Measure::TotalCpu => row.cpu_of_both_ratio,
        }
    }

    /// Returns the verdict of `row` for this measure.
    #[must_use]
    pub fn verdict(self, row: &Row) -> Verdict {
        match self {
            Measure::Rate => row.rate_verdict,
            Measure::Cpu => row.cpu_verdict,
            Measure::P50 => row.p50_verdict,
            Measure::P99 => row.p99_verdict,
            Measure::Memory => row.memory_verdict,
            Measure::TotalCpu => row.cpu_of_both_verdict,
        }
    }

    /// Returns the resolution of `cell` for this measure.
    #[must_use]
    pub fn resolution(self, cell: &CellResult) -> Option<f64> {
        match self {
            Measure::Rate => cell.rate_resolution,
            Measure::Cpu => cell.cpu_resolution,
            Measure::P50 => cell.p50_resolution,
            Measure::P99 => cell.p99_resolution,
            Measure::Memory => cell.memory_resolution,
            Measure::TotalCpu => cell.cpu_of_both_resolution,
        }
    }

    /// Returns the ratio of a pair comparison. Returns `None` for the median latency, which is not compared in pairs.
    #[must_use]
    pub fn pair_ratio(self, versus: &PairComparison) -> Option<Ratio> {
        match self {
            Measure::Rate => versus.rate_ratio,
            Measure::Cpu => versus.cpu_ratio,
            Measure::P50 => None,
            Measure::P99 => versus.p99_ratio,
            Measure::Memory => versus.memory_ratio,
            Measure::TotalCpu => versus.cpu_of_both_ratio,
        }
    }

    /// Returns the verdict of a pair comparison.
    #[must_use]
    pub fn pair_verdict(self, versus: &PairComparison) -> Verdict {
        match self {
            Measure::Rate => versus.rate_verdict,
            Measure::Cpu => versus.cpu_verdict,
            Measure::P50 => Verdict::NotComparable,
            Measure::P99 => versus.p99_verdict,
            Measure::Memory => versus.memory_verdict,
            Measure::TotalCpu => versus.cpu_of_both_verdict,
        }
    }

    /// Returns `Some(true)` if the contender is better by this verdict, `Some(false)` if it is worse, and `None` if
    /// there is no significant difference.
    #[must_use]
    pub fn is_better(self, verdict: Verdict) -> Option<bool> {
        match verdict {
            Verdict::More => Some(self.more_is_better()),
            Verdict::Less => Some(!self.more_is_better()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_better_for_higher_rate_and_lower_cpu() {
        assert_eq!(Measure::Rate.is_better(Verdict::More), Some(true));
        assert_eq!(Measure::Cpu.is_better(Verdict::More), Some(false));
        assert_eq!(Measure::Cpu.is_better(Verdict::NoDifference), None);
    }
}
