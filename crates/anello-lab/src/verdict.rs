//! What can be said, and what cannot.
//!
//! Two servers are told apart only if both hold:
//! 1. the interval of their ratio does not include 1;
//! 2. the ratio differs from 1 by more than the *resolution* of the cell: the farthest that the interval of the twins
//!    (the same server twice) reaches from 1, or the middle of that over all cells where one cell was lucky.
//!
//! Where the resolution is worse than [`NOISY_RESOLUTION`] or unknown, or the ratio rests on fewer than [`MIN_PAIRS`]
//! pairs or [`MIN_PASSES`] passes, the cell is too noisy to say anything. The twins' own ratio must rest on as many.

use crate::findings;
use crate::measure::Measure;
use crate::result::{CellResult, LabResult, PairComparison, Verdict};
use crate::statistics::{Ratio, quantile};

/// A cell in which two equal servers may differ by more than this fraction tells nothing.
pub const NOISY_RESOLUTION: f64 = 0.15;

/// Fewer pairs of slices than this tell nothing.
pub const MIN_PAIRS: usize = 5;

/// Pairs from fewer passes than this tell nothing: they may all owe to the luck of one process.
pub const MIN_PASSES: usize = 3;

/// Below this part of its core the server was waiting for the load.
pub const SERVER_BUSY_THRESHOLD: f64 = 0.9;

/// Fills in the resolutions, the verdicts and the findings.
pub fn judge(result: &mut LabResult) {
    Measure::ALL.into_iter().for_each(|measure| judge_measure(result, measure));
    let LabResult { versus, runtime_versus, other_versus, base_versus, .. } = result;
    for pairs in [versus, runtime_versus, other_versus, base_versus] {
        judge_pairs(&result.cells, pairs);
    }
    result.findings = findings::findings(result);
}

/// Fills in the resolutions of one measure, and the verdicts on all rows by it.
pub(crate) fn judge_measure(result: &mut LabResult, measure: Measure) {
    let twin = result
        .contenders
        .iter()
        .position(|contender| contender.twin_of.as_ref() == Some(&result.plan.reference));
    let reach = |cell: &CellResult| {
        Some(measure.ratio(&cell.rows[twin?]).filter(has_enough_samples)?.max_deviation())
    };
    let reaches: Vec<f64> = result.cells.iter().filter_map(reach).collect();
    let middle = quantile(&reaches, 0.5);
    for cell in result.cells.iter_mut().filter(|cell| measure.applies(&cell.cell)) {
        // A cell in which the twin is missing is judged by the others.
        let resolution = match (reach(cell), middle) {
            (Some(here), Some(middle)) => Some(here.max(middle)),
            (here, middle) => here.or(middle),
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

/// Fills in the verdicts on anello against peers, and on others against their bases, by the same rule: what two equal
/// servers show in the judged `cells`.
pub fn judge_pairs(cells: &[CellResult], pairs: &mut [PairComparison]) {
    Measure::IN_PAIRS.into_iter().for_each(|measure| judge_pairs_by(cells, pairs, measure));
}

/// The same by one measure.
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

/// Whether a ratio rests on so many pairs from so many passes that its interval means something.
#[must_use]
pub fn has_enough_samples(ratio: &Ratio) -> bool {
    ratio.pairs >= MIN_PAIRS && ratio.passes >= MIN_PASSES
}

/// The verdict on one ratio, given what the machine resolves: without that, nobody knows what equal servers differ by.
#[must_use]
pub fn verdict_on(ratio: Ratio, resolution: Option<f64>) -> Verdict {
    let Some(resolution) = resolution.filter(|_| has_enough_samples(&ratio)) else {
        return Verdict::TooNoisy;
    };
    if !ratio.includes_one() && (ratio.estimate - 1.0).abs() > resolution {
        // Even in a noisy cell a difference that dwarfs the noise can be told.
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
    fn a_difference_must_leave_out_equality_and_exceed_the_resolution() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.03)), Verdict::More);
        assert_eq!(verdict_on(ratio(0.95, 0.02), Some(0.03)), Verdict::Less);
        assert_eq!(
            verdict_on(ratio(1.05, 0.06), Some(0.03)),
            Verdict::NoDifference,
            "the interval includes 1"
        );
        assert_eq!(
            verdict_on(ratio(1.05, 0.02), Some(0.06)),
            Verdict::NoDifference,
            "equal servers differ as much"
        );
        assert_eq!(verdict_on(ratio(1.0, 0.0), Some(0.0)), Verdict::NoDifference);
    }

    #[test]
    fn noise_forbids_a_verdict_but_not_on_the_obvious() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.3)), Verdict::TooNoisy);
        assert_eq!(verdict_on(ratio(3.0, 0.5), Some(0.3)), Verdict::More);
    }

    #[test]
    fn few_pairs_or_passes_forbid_a_verdict_however_large_the_difference() {
        let of = |pairs, passes| verdict_on(Ratio { pairs, passes, ..ratio(3.0, 0.0) }, Some(0.01));
        assert_eq!(of(MIN_PAIRS, MIN_PASSES), Verdict::More);
        assert_eq!(of(1, 1), Verdict::TooNoisy, "an interval without width");
        assert_eq!(of(MIN_PAIRS - 1, MIN_PASSES), Verdict::TooNoisy);
        assert_eq!(of(30, MIN_PASSES - 1), Verdict::TooNoisy);
    }

    #[test]
    fn without_a_twin_nothing_can_be_told() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), None), Verdict::TooNoisy);
        assert_eq!(verdict_on(ratio(3.0, 0.02), None), Verdict::TooNoisy);
    }
}
