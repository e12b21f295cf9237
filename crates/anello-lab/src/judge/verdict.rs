//! Verdicts on ratios: which differences are significant.
//!
//! A difference between two servers is significant only if both conditions hold:
//! 1. the interval of their ratio does not include 1;
//! 2. the ratio differs from 1 by more than the *resolution* of the cell, which is its noise floor. The resolution is
//!    the maximum deviation from 1 of the interval of the twins (the same server, measured twice). If it is smaller
//!    than the median over all cells, the median is used.
//!
//! The verdict is "too noisy" if the resolution is unknown or if the ratio is based on fewer than [`MIN_PAIRS`] pairs
//! or [`MIN_PASSES`] passes. The ratio of the twins needs the same numbers. Above [`NOISY_RESOLUTION`], a difference
//! that is not significant is "too noisy" instead of "no difference".

use crate::judge::findings;
use crate::judge::statistics::quantile;
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, PairComparison, Verdict};

/// Resolution, as a fraction, above which a cell is too noisy to show that two servers do not differ.
pub const NOISY_RESOLUTION: f64 = 0.15;

/// Minimum number of paired slices for a verdict.
pub const MIN_PAIRS: usize = 5;

/// Minimum number of passes for a verdict. With fewer passes, a difference can be an effect of a single process.
pub const MIN_PASSES: usize = 3;

/// Fraction of its core's time below which a server counts as waiting for the load.
pub const SERVER_BUSY_THRESHOLD: f64 = 0.9;

/// Computes the resolutions, the verdicts and the findings of `result`.
pub fn judge(result: &mut LabResult) {
    Measure::ALL.into_iter().for_each(|measure| judge_measure(result, measure));
    let LabResult { versus, runtime_versus, other_versus, base_versus, .. } = result;
    for pairs in [versus, runtime_versus, other_versus, base_versus] {
        judge_pairs(&result.cells, pairs);
    }
    result.findings = findings::findings(result);
}

/// Computes the resolution of every cell and the verdict on every row for one measure.
pub(crate) fn judge_measure(result: &mut LabResult, measure: Measure) {
    let twin = result
        .contenders
        .iter()
        .position(|contender| contender.twin_of.as_ref() == Some(&result.plan.reference));
    let deviation = |cell: &CellResult| {
        Some(measure.ratio(&cell.rows[twin?]).filter(has_enough_samples)?.max_deviation())
    };
    let deviations: Vec<f64> = result.cells.iter().filter_map(deviation).collect();
    let median = quantile(&deviations, 0.5);
    for cell in result.cells.iter_mut().filter(|cell| measure.applies(&cell.cell)) {
        // A cell without a measured twin gets the median of the other cells.
        let resolution = match (deviation(cell), median) {
            (Some(own), Some(median)) => Some(own.max(median)),
            (own, median) => own.or(median),
        };
        for row in &mut cell.rows {
            let verdict = if row.contender == result.plan.reference {
                Verdict::Reference
            } else {
                let ratio = measure.ratio(row);
                ratio.map_or(Verdict::NotComparable, |ratio| verdict_on(ratio, resolution))
            };
            match measure {
                Measure::Rate => row.rate_verdict = verdict,
                Measure::Cpu => row.cpu_verdict = verdict,
                Measure::P50 => row.p50_verdict = verdict,
                Measure::P99 => row.p99_verdict = verdict,
                Measure::Memory => row.memory_verdict = verdict,
                Measure::TotalCpu => row.cpu_of_both_verdict = verdict,
            }
        }
        match measure {
            Measure::Rate => cell.rate_resolution = resolution,
            Measure::Cpu => cell.cpu_resolution = resolution,
            Measure::P50 => cell.p50_resolution = resolution,
            Measure::P99 => cell.p99_resolution = resolution,
            Measure::Memory => cell.memory_resolution = resolution,
            Measure::TotalCpu => cell.cpu_of_both_resolution = resolution,
        }
    }
}

/// Computes the verdicts on pair comparisons by the same rule. The resolutions are those of `cells`.
pub fn judge_pairs(cells: &[CellResult], pairs: &mut [PairComparison]) {
    Measure::IN_PAIRS.into_iter().for_each(|measure| judge_pairs_by(cells, pairs, measure));
}

/// Computes the verdicts on pair comparisons for one measure.
pub(crate) fn judge_pairs_by(cells: &[CellResult], pairs: &mut [PairComparison], measure: Measure) {
    for versus in pairs {
        let Some(cell) = cells.iter().find(|cell| cell.cell == versus.cell) else { continue };
        let ratio = measure.pair_ratio(versus);
        let verdict =
            ratio.map_or(Verdict::NotComparable, |ratio| verdict_on(ratio, measure.resolution(cell)));
        match measure {
            Measure::Rate => versus.rate_verdict = verdict,
            Measure::Cpu => versus.cpu_verdict = verdict,
            Measure::P50 => {}
            Measure::P99 => versus.p99_verdict = verdict,
            Measure::Memory => versus.memory_verdict = verdict,
            Measure::TotalCpu => versus.cpu_of_both_verdict = verdict,
        }
    }
}

/// Returns `true` if a ratio is based on at least [`MIN_PAIRS`] pairs and [`MIN_PASSES`] passes.
#[must_use]
pub fn has_enough_samples(ratio: &Ratio) -> bool {
    ratio.pairs >= MIN_PAIRS && ratio.passes >= MIN_PASSES
}

/// Returns the verdict on one ratio in a cell with the given resolution. Without a resolution, the noise floor is
/// unknown and the verdict is [`Verdict::TooNoisy`].
#[must_use]
pub fn verdict_on(ratio: Ratio, resolution: Option<f64>) -> Verdict {
    let Some(resolution) = resolution.filter(|_| has_enough_samples(&ratio)) else {
        return Verdict::TooNoisy;
    };
    if !ratio.includes_one() && (ratio.estimate - 1.0).abs() > resolution {
        // A difference larger than the noise is significant in a noisy cell, too.
        if ratio.estimate > 1.0 { Verdict::More } else { Verdict::Less }
    } else if resolution > NOISY_RESOLUTION {
        Verdict::TooNoisy
    } else {
        Verdict::NoDifference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(estimate: f64, half_width: f64) -> Ratio {
        Ratio {
            estimate,
            low: estimate - half_width,
            high: estimate + half_width,
            pairs: 15,
            passes: 5,
            stretch: 1.0,
        }
    }

    #[test]
    fn difference_requires_interval_without_one_and_exceeded_resolution() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.03)), Verdict::More);
        assert_eq!(verdict_on(ratio(0.95, 0.02), Some(0.03)), Verdict::Less);
        assert_eq!(
            verdict_on(ratio(1.05, 0.06), Some(0.03)),
            Verdict::NoDifference,
            "the interval includes 1"
        );
        assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.06)), Verdict::NoDifference, "within the resolution");
        assert_eq!(verdict_on(ratio(1.0, 0.0), Some(0.0)), Verdict::NoDifference);
    }

    #[test]
    fn noisy_cell_allows_verdict_only_on_large_difference() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.3)), Verdict::TooNoisy);
        assert_eq!(verdict_on(ratio(3.0, 0.5), Some(0.3)), Verdict::More);
    }

    #[test]
    fn too_few_pairs_or_passes_give_no_verdict() {
        let of = |pairs, passes| verdict_on(Ratio { pairs, passes, ..ratio(3.0, 0.0) }, Some(0.01));
        assert_eq!(of(MIN_PAIRS, MIN_PASSES), Verdict::More);
        assert_eq!(of(1, 1), Verdict::TooNoisy, "an interval without width");
        assert_eq!(of(MIN_PAIRS - 1, MIN_PASSES), Verdict::TooNoisy);
        assert_eq!(of(30, MIN_PASSES - 1), Verdict::TooNoisy);
    }

    #[test]
    fn unknown_resolution_gives_no_verdict() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), None), Verdict::TooNoisy);
        assert_eq!(verdict_on(ratio(3.0, 0.02), None), Verdict::TooNoisy);
    }
}
