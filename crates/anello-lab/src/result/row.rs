//! Cell results: figures, ratios and verdicts.

use serde::{Deserialize, Serialize};

use crate::plan::cell::Cell;
use crate::result::estimate::{Estimate, Ratio};
use crate::result::figures::Figures;
use crate::result::finding::Verdict;
use crate::result::measure::Measure;

/// Result of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The measured cell.
    pub cell: Cell,
    /// Resolution of each measure.
    #[serde(flatten)]
    pub resolution: Resolution,
    /// Slow and fast phases of the machine, if they were detected in this cell.
    pub phases: Option<PhaseSummary>,
    /// Rows, in the order of the contenders.
    pub rows: Vec<Row>,
}

/// Resolution of each measure in a cell: the difference between two identical servers, as a fraction. `None` if the
/// resolution is unknown or the measure does not apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Resolution {
    #[serde(rename = "rate_resolution")]
    rate: Option<f64>,
    #[serde(rename = "cpu_resolution")]
    cpu: Option<f64>,
    #[serde(rename = "p50_resolution")]
    p50: Option<f64>,
    #[serde(rename = "p99_resolution")]
    p99: Option<f64>,
    #[serde(rename = "memory_resolution")]
    memory: Option<f64>,
    #[serde(rename = "total_cpu_resolution", default)]
    total_cpu: Option<f64>,
}

impl Resolution {
    pub(crate) fn get_mut(&mut self, measure: Measure) -> &mut Option<f64> {
        match measure {
            Measure::Rate => &mut self.rate,
            Measure::Cpu => &mut self.cpu,
            Measure::P50 => &mut self.p50,
            Measure::P99 => &mut self.p99,
            Measure::Memory => &mut self.memory,
            Measure::TotalCpu => &mut self.total_cpu,
        }
    }
}

/// Slow and fast phases of the machine while a cell was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PhaseSummary {
    /// CPU cost per request in a slow phase, as a multiple of the cost in a fast phase.
    pub slow_factor: f64,
    /// Fraction of the slices that ran in a slow phase.
    pub slow_fraction: f64,
    /// Number of phase changes between consecutive slices.
    pub changes: usize,
}

/// Result of one contender in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the contender.
    pub contender: String,
    /// Outcome in this cell: measured, or the reason why not.
    pub outcome: Outcome,
    /// Number of clean slices. Only these count.
    pub clean_slices: usize,
    /// Number of slices excluded because of stolen CPU time.
    pub stolen_slices: usize,
    /// Number of slices excluded because the control group of the contender or the lab was throttled.
    pub throttled_slices: usize,
    /// Number of slices excluded for other reasons.
    pub invalid_slices: usize,
    /// Number of rounds without a ratio because the contender and the reference ran in different machine phases.
    pub mixed_phase_rounds: usize,
    /// Number of restarts of the contender in this cell.
    pub restarts: usize,
    /// Figures of the contender; `None` if it was not measured or if its responses were wrong.
    pub figures: Option<Figures>,
    /// Ratios to the reference, with verdicts.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// Low decile of the server CPU time per request, as a multiple of the reference's: the difference when the machine
    /// is at its fastest.
    pub cpu_low_ratio: Option<Ratio>,
    /// Memory of the server process per idle connection, in bytes, excluding kernel memory; only for idle connections.
    pub memory_per_connection_bytes: Option<Estimate>,
    /// Server instructions per request in kernel and user mode, from [`LabResult`](crate::LabResult::instructions);
    /// `None` if they were not counted.
    #[serde(default)]
    pub instructions_per_request: Option<f64>,
    /// Points of the latency distribution over all clean slices: quantile and latency in nanoseconds. Empty if the
    /// contender was not measured.
    pub latency_curve: Vec<(f64, u64)>,
}

impl Row {
    /// Returns the figure for a measure.
    pub fn figure(&self, measure: Measure) -> Option<Estimate> {
        let figures = self.figures.as_ref();
        match measure {
            Measure::Rate => figures.map(|figures| figures.requests_per_second),
            Measure::Cpu => figures.map(|figures| figures.cpu_ns),
            Measure::P50 => figures.map(|figures| figures.p50_ns),
            Measure::P99 => figures.map(|figures| figures.p99_ns),
            Measure::Memory => self.memory_per_connection_bytes,
            Measure::TotalCpu => figures.and_then(|figures| figures.total_cpu_ns),
        }
    }
}

/// Comparison of two contenders in one cell: an anello contender with a peer, or a contender with its base. The fields
/// call the first one the contender and the second one the peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairComparison {
    /// Name of the anello contender, or of the contender that names a base.
    pub contender: String,
    /// Name of the peer or base.
    pub peer: String,
    /// Cell in which the contender and the peer are compared.
    pub cell: Cell,
    /// Number of rounds without a ratio because the contender and the peer ran in different machine phases.
    pub mixed_phase_rounds: usize,
    /// Ratios of the contender to the peer, with verdicts.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// Comparison of one contender with another by each measure: its values as multiples of the other contender's
/// values, and the verdicts. Ratios are `None` for measures that do not apply to the cell ([`Measure::of_cell`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Requests/s. [`Verdict::More`]: the contender is faster.
    pub rate_ratio: Option<Ratio>,
    /// Server CPU time per request. [`Verdict::Less`]: the contender uses less.
    pub cpu_ratio: Option<Ratio>,
    /// Median latency. Not computed for pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ratio: Option<Ratio>,
    /// p99 latency.
    pub p99_ratio: Option<Ratio>,
    /// Memory per idle connection.
    pub memory_ratio: Option<Ratio>,
    /// Combined CPU time of server and load generator per request.
    #[serde(default)]
    pub total_cpu_ratio: Option<Ratio>,
    /// Verdict on the rate.
    pub rate_verdict: Verdict,
    /// Verdict on the server CPU time per request.
    pub cpu_verdict: Verdict,
    /// Verdict on the median latency.
    #[serde(default)]
    pub p50_verdict: Verdict,
    /// Verdict on the p99 latency.
    pub p99_verdict: Verdict,
    /// Verdict on the memory per connection.
    pub memory_verdict: Verdict,
    /// Verdict on the combined CPU time of server and load generator per request.
    #[serde(default)]
    pub total_cpu_verdict: Verdict,
}

impl Comparison {
    fn get(mut self, measure: Measure) -> (Option<Ratio>, Verdict) {
        let (ratio, verdict) = self.get_mut(measure);
        (*ratio, *verdict)
    }

    pub(crate) fn get_mut(&mut self, measure: Measure) -> (&mut Option<Ratio>, &mut Verdict) {
        match measure {
            Measure::Rate => (&mut self.rate_ratio, &mut self.rate_verdict),
            Measure::Cpu => (&mut self.cpu_ratio, &mut self.cpu_verdict),
            Measure::P50 => (&mut self.p50_ratio, &mut self.p50_verdict),
            Measure::P99 => (&mut self.p99_ratio, &mut self.p99_verdict),
            Measure::Memory => (&mut self.memory_ratio, &mut self.memory_verdict),
            Measure::TotalCpu => (&mut self.total_cpu_ratio, &mut self.total_cpu_verdict),
        }
    }
}

impl Measure {
    /// Returns the ratio of `row` for this measure.
    pub fn ratio(self, row: &Row) -> Option<Ratio> {
        row.comparison.get(self).0
    }

    /// Returns the verdict of `row` for this measure.
    pub fn verdict(self, row: &Row) -> Verdict {
        row.comparison.get(self).1
    }

    /// Returns the resolution of `cell` for this measure.
    pub fn resolution(self, cell: &CellResult) -> Option<f64> {
        *{ cell.resolution }.get_mut(self)
    }

    /// Returns the ratio of a pair comparison. Returns `None` for the median latency, which is not compared in pairs.
    pub fn pair_ratio(self, versus: &PairComparison) -> Option<Ratio> {
        versus.comparison.get(self).0
    }

    /// Returns the verdict of a pair comparison.
    pub fn pair_verdict(self, versus: &PairComparison) -> Verdict {
        versus.comparison.get(self).1
    }
}

/// Outcome of one contender in one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "why", rename_all = "snake_case")]
pub enum Outcome {
    /// The contender was measured.
    Measured,
    /// The contender could not be started, for this reason.
    Skipped(String),
    /// The contender failed for this reason, and its figures are excluded.
    Failed(String),
    /// The contender failed a check for this reason and was not measured.
    CheckFailed(String),
    /// The cell exceeds a limit of the contender.
    BeyondLimit(String),
    /// The contender does not support the request target of the cell.
    NotServed(String),
    /// The run was stopped before this contender was measured, or no slice was clean.
    NotMeasured,
}
