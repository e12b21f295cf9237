//! Cell results: figures, ratios and verdicts.

use serde::{Deserialize, Serialize};

use crate::plan::cell::Cell;
use crate::result::finding::Verdict;
use crate::result::measure::Measure;

/// Result of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The measured cell.
    pub cell: Cell,
    #[serde(flatten)]
    pub(crate) resolution: Resolution,
    /// Slow and fast phases of the machine, if they were detected in this cell.
    pub phases: Option<PhaseSummary>,
    /// Rows, in the order of the contenders.
    pub rows: Vec<Row>,
}

/// Resolution of each measure in a cell: the difference between two identical servers, as a fraction. `None` if the
/// resolution is unknown or the measure does not apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Resolution {
    rate_resolution: Option<f64>,
    cpu_resolution: Option<f64>,
    p50_resolution: Option<f64>,
    p99_resolution: Option<f64>,
    memory_resolution: Option<f64>,
    total_cpu_resolution: Option<f64>,
}

impl Resolution {
    pub(crate) fn get_mut(&mut self, measure: Measure) -> &mut Option<f64> {
        match measure {
            Measure::Rate => &mut self.rate_resolution,
            Measure::Cpu => &mut self.cpu_resolution,
            Measure::P50 => &mut self.p50_resolution,
            Measure::P99 => &mut self.p99_resolution,
            Measure::Memory => &mut self.memory_resolution,
            Measure::TotalCpu => &mut self.total_cpu_resolution,
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
    /// Outcome in this cell: measured, or the reason why the contender was not measured.
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
    /// Ratio of the first deciles of server CPU time per request: the difference when the machine is at its fastest.
    pub cpu_low_ratio: Option<Ratio>,
    /// Memory that the server process uses per idle connection, in bytes, excluding kernel memory; idle cells only.
    pub memory_per_connection_bytes: Option<Estimate>,
    /// Server instructions per request, from [`instructions`](crate::LabResult::instructions); `None` if not counted.
    pub instructions_per_request: Option<f64>,
    /// Quantiles and their latencies in nanoseconds over all clean slices; empty if the contender was not measured.
    pub latency_curve: Vec<(f64, u64)>,
}

impl Row {
    /// Returns the figure for a measure.
    pub fn figure(&self, measure: Measure) -> Option<Estimate> {
        if measure == Measure::Memory {
            return self.memory_per_connection_bytes;
        }
        let figures = self.figures.as_ref()?;
        match measure {
            Measure::Rate => Some(figures.requests_per_second),
            Measure::Cpu => Some(figures.cpu_ns),
            Measure::P50 => Some(figures.p50_ns),
            Measure::P99 => Some(figures.p99_ns),
            Measure::TotalCpu => figures.total_cpu_ns,
            Measure::Memory => None,
        }
    }
}

/// The figures of one contender in one cell, over its clean slices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests answered per second.
    pub requests_per_second: Estimate,
    /// Median latency, in nanoseconds.
    pub p50_ns: Estimate,
    /// 90th percentile of the latency, in nanoseconds.
    pub p90_ns: Estimate,
    /// 99th percentile of the latency, in nanoseconds.
    pub p99_ns: Estimate,
    /// 99.9th percentile of the latency, in nanoseconds.
    pub p999_ns: Estimate,
    /// Maximum latency in all clean slices, in nanoseconds.
    pub max_ns: u64,
    /// 99th percentile of the latency measured from the actual send time, in nanoseconds; open loop only.
    pub uncorrected_p99_ns: Option<Estimate>,
    /// CPU time of the server per request, in nanoseconds.
    pub cpu_ns: Estimate,
    /// Combined CPU time of server and load generator per request, in nanoseconds; only for HTTP.
    pub total_cpu_ns: Option<Estimate>,
    /// First decile of the slices' server CPU time per request, in nanoseconds.
    pub cpu_low_decile_ns: f64,
    /// CPU time of the server divided by elapsed time: 0 to 1 on one core, more on several cores.
    pub server_busy: f64,
    /// Voluntary and involuntary context switches of the server per request; `None` if unknown.
    pub switches_per_request: Option<f64>,
    /// Resident memory of the server at the end of a slice, in bytes; `None` if unknown.
    pub resident_bytes: Option<f64>,
    /// CPU time of the load generator divided by elapsed time: 0 to 1 on one core, more on several cores.
    pub load_busy: f64,
    /// `true` if the load generator was saturated and the server was not. The rate is then not the server's capacity.
    pub load_bottleneck: bool,
    /// Fraction of the offered requests that were answered; open loop only.
    pub reached_fraction: Option<f64>,
    /// `false` if the server was overloaded by the offered rate; open loop only.
    pub rate_reached: Option<bool>,
    /// Fraction of the offered requests that were sent more than 1 ms late; open loop only.
    pub late_fraction: Option<f64>,
    /// Fraction of the offered requests that were never sent; open loop only.
    pub unsent_fraction: Option<f64>,
}

/// Median and quartiles of a set of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Median of the slices.
    pub median: f64,
    /// Lower quartile: a quarter of the slices have a smaller value.
    pub low_quartile: f64,
    /// Upper quartile: a quarter of the slices have a larger value.
    pub high_quartile: f64,
}

/// A value as a multiple of the reference's value, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the paired ratios, or the ratio of the medians when two runs are compared.
    pub estimate: f64,
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// Number of paired ratios in the sample. If two runs are compared, the smaller of the two runs' numbers.
    #[serde(default)]
    pub pairs: usize,
    /// Number of passes (for idle connections: rounds) with at least one paired ratio. Each pass or round has its own
    /// processes. If two runs are compared, the smaller of the two runs' numbers.
    #[serde(default)]
    pub passes: usize,
    /// Exponent that was used to widen the interval because of the small number of passes.
    #[serde(default = "crate::result::plan::one")]
    pub stretch: f64,
}

/// Comparison of two contenders in one cell: an anello contender with a peer, or a contender with its base. In the
/// field names, `contender` refers to the first of the two, and `peer` to the second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairComparison {
    /// Name of the anello contender, or of the contender that is compared with its base.
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

/// Comparison of one contender with another: for each measure, the first contender's value as a multiple of the
/// second's, and the verdict. Ratios are `None` for measures that do not apply to the cell ([`Measure::of_cell`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Requests per second. [`Verdict::More`] means that the contender is faster.
    pub rate_ratio: Option<Ratio>,
    /// Server CPU time per request. [`Verdict::Less`] means that the contender uses less.
    pub cpu_ratio: Option<Ratio>,
    /// Median latency. Not computed in a [`PairComparison`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ratio: Option<Ratio>,
    /// p99 latency.
    pub p99_ratio: Option<Ratio>,
    /// Memory per idle connection.
    pub memory_ratio: Option<Ratio>,
    /// Combined CPU time of server and load generator per request.
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
    pub(crate) fn ratio(mut self, measure: Measure) -> Option<Ratio> {
        *self.get_mut(measure).0
    }

    pub(crate) fn verdict(mut self, measure: Measure) -> Verdict {
        *self.get_mut(measure).1
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
    /// Returns the resolution of `cell` for this measure.
    pub fn resolution(self, cell: &CellResult) -> Option<f64> {
        *{ cell.resolution }.get_mut(self)
    }
}

/// Outcome of one contender in one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The contender was measured.
    Measured,
    /// The contender could not be started. Contains the reason.
    Skipped(String),
    /// The contender failed, and its figures are excluded. Contains the reason.
    Failed(String),
    /// The contender failed a check and was not measured. Contains the reason.
    CheckFailed(String),
    /// The cell exceeds a limit of the contender.
    BeyondLimit(String),
    /// The contender does not support the request target of the cell.
    NotServed(String),
    /// The run was stopped before this contender was measured, or no slice was clean.
    NotMeasured,
}
