//! Verdicts on ratios: which differences are significant.
//!
//! A difference between two servers is significant only if both conditions hold:
//! 1. the interval of their ratio does not include 1;
//! 2. the ratio differs from 1 by more than the *resolution* of the cell, which is its noise floor. The resolution is
//!    the maximum deviation from 1 of the interval for the twins (the same server, measured twice). If it is smaller
//!    than the median over all cells, the median is used.
//!
//! The verdict is "too noisy" if the resolution is unknown or if the ratio is based on fewer than [`MIN_PAIRS`] pairs
//! or [`MIN_PASSES`] passes. The ratio of the twins must meet the same minimums. If the resolution exceeds 15 %, a
//! difference that is not significant is reported as "too noisy" instead of "no difference".

use crate::judge::statistics::quantile;
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, PairComparison, Ratio, Verdict};

/// Resolution above which a cell is too noisy for the verdict "no difference".
const NOISY_RESOLUTION: f64 = 0.15;

/// Minimum number of paired slices for a verdict.
pub const MIN_PAIRS: usize = 5;

/// Minimum number of passes for a verdict. With fewer passes, a single process can cause a difference.
pub const MIN_PASSES: usize = 3;

/// Fraction of core time below which a server counts as waiting for the load generator.
pub(crate) const SERVER_BUSY_THRESHOLD: f64 = 0.9;

/// Fraction of core time above which the load generator counts as saturated.
pub(crate) const LOAD_BUSY_THRESHOLD: f64 = 0.95;

/// Fraction of late or unsent requests above which a finding reports them.
pub(crate) const LATE_FRACTION_THRESHOLD: f64 = 0.01;

/// Computes the resolution of every cell and the verdict on every row and pair comparison for one measure.
pub(crate) fn judge_measure(result: &mut LabResult, measure: Measure) {
    let reference = &result.plan.reference;
    let twin = result.contenders.iter().position(|record| record.twin_of.as_ref() == Some(reference));
    let deviation = |cell: &CellResult| {
        Some(cell.rows[twin?].comparison.ratio(measure).filter(has_enough_samples)?.max_deviation())
    };
    let deviations: Vec<f64> = result.cells.iter().filter_map(deviation).collect();
    let median = quantile(&deviations, 0.5);
    for cell in result.cells.iter_mut().filter(|cell| measure.applies(&cell.cell)) {
        // A cell without a measured twin gets the median of the other cells.
        let resolution = deviation(cell).into_iter().chain(median).reduce(f64::max);
        for row in &mut cell.rows {
            let (ratio, verdict) = row.comparison.get_mut(measure);
            *verdict = if row.contender == *reference {
                Verdict::Reference
            } else {
                ratio.map_or(Verdict::NotComparable, |ratio| verdict_on(ratio, resolution))
            };
        }
        *cell.resolution.get_mut(measure) = resolution;
    }
    let cells = std::mem::take(&mut result.cells);
    judge_pairs(&cells, result.pair_lists_mut().into_iter().flatten(), measure);
    result.cells = cells;
}

/// Computes the verdicts on pair comparisons by the same rule, using the resolutions in `cells`.
pub(crate) fn judge_pairs<'a>(
    cells: &[CellResult],
    pairs: impl IntoIterator<Item = &'a mut PairComparison>,
    measure: Measure,
) {
    for pair in pairs {
        let Some(cell) = cells.iter().find(|cell| cell.cell == pair.cell) else { continue };
        let (ratio, verdict) = pair.comparison.get_mut(measure);
        *verdict = ratio.map_or(Verdict::NotComparable, |ratio| verdict_on(ratio, measure.resolution(cell)));
    }
}

/// Returns `true` if a ratio is based on at least [`MIN_PAIRS`] pairs and [`MIN_PASSES`] passes.
pub(crate) fn has_enough_samples(ratio: &Ratio) -> bool {
    ratio.pairs >= MIN_PAIRS && ratio.passes >= MIN_PASSES
}

/// Returns the verdict on one ratio in a cell with the given resolution. Without a resolution, the noise floor is
/// unknown and the verdict is [`Verdict::TooNoisy`].
pub fn verdict_on(ratio: Ratio, resolution: Option<f64>) -> Verdict {
    let Some(resolution) = resolution.filter(|_| has_enough_samples(&ratio)) else {
        return Verdict::TooNoisy;
    };
    if !ratio.includes_one() && (ratio.estimate - 1.0).abs() > resolution {
        // A difference larger than the noise is significant even in a noisy cell.
        if ratio.estimate > 1.0 { Verdict::More } else { Verdict::Less }
    } else if resolution > NOISY_RESOLUTION {
        Verdict::TooNoisy
    } else {
        Verdict::NoDifference
    }
}
