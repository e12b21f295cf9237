//! What contenders are compared by, and where a result holds it.

use crate::cell::{Cell, Workload};
use crate::result::{CellResult, PairComparison, Row, Slice, Verdict};
use crate::statistics::Ratio;

/// What contenders are compared by.
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
    /// CPU time of server and load together per request, in nanoseconds: less is better. Over HTTP alone, see
    /// [`of_cell`](Self::of_cell).
    TotalCpu,
}

impl Measure {
    /// All measures.
    pub const ALL: [Measure; 6] =
        [Measure::Rate, Measure::Cpu, Measure::P50, Measure::P99, Measure::Memory, Measure::TotalCpu];

    /// Those of which pairs with peers and bases are made, in the order of tables.
    pub const IN_PAIRS: [Measure; 5] =
        [Measure::Cpu, Measure::TotalCpu, Measure::Rate, Measure::P99, Measure::Memory];

    /// The value of a slice in `cell` of which a ratio can be made: finite and more than nothing.
    #[must_use]
    pub fn of(self, slice: &Slice, cell: &Cell) -> Option<f64> {
        self.value(slice, cell).filter(|value| value.is_finite() && *value > 0.0)
    }

    /// What is worth comparing in a cell, the most telling first. In closed loops of large answers the slowest of them tell
    /// how fairly a server shares its time, which the rate does not.
    ///
    /// Over HTTP what server and load need together is compared, too. The kernel's work for a connection (sending on,
    /// acknowledgements) is done on whichever side of loopback happens to find it, and large answers are made of it: by
    /// the server's part alone equal servers may differ by half and more, and by much less in the sum.
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

    /// Whether more of it is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        self == Measure::Rate
    }

    /// Its name in a sentence about such a workload: disks do operations, and what does them is no server.
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

    /// Whether contenders are compared by it in such a cell. At an offered rate the rate is given, and the latency of a
    /// closed loop of small answers is the rate in another form.
    #[must_use]
    pub fn applies(self, cell: &Cell) -> bool {
        Self::of_cell(cell).contains(&self)
    }

    /// The value of one slice; none if it was not measured.
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

    /// The ratio of a row.
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

    /// The verdict of a row.
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

    /// The resolution of a cell.
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

    /// The ratio of anello to a peer, or of another to its base; none for the median latency, of which pairs are not made.
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

    /// The verdict on anello against a peer, or on another against its base.
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

    /// Whether this verdict is a good one for the contender; none if it is neither good nor bad.
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
    fn better_means_more_requests_and_less_cpu() {
        assert_eq!(Measure::Rate.is_better(Verdict::More), Some(true));
        assert_eq!(Measure::Cpu.is_better(Verdict::More), Some(false));
        assert_eq!(Measure::Cpu.is_better(Verdict::NoDifference), None);
    }
}
