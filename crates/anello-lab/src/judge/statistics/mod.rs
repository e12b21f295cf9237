//! Medians, quartiles and bootstrap confidence intervals. No distribution of the noise is assumed.
//!
//! Comparisons are *paired*: within one round, the contender and the reference ran shortly after each other, so slow
//! drift of the machine cancels out in their ratio. The interval of the median ratio comes from a two-level bootstrap
//! that first resamples passes, then rounds within each pass. Two levels are needed because every pass starts new
//! processes, and some properties of a process (address layout, page placement) affect its speed for its whole
//! lifetime.
//!
//! With few passes, a bootstrap interval is too narrow for its nominal confidence, because the sample contains little
//! of the variation between passes. The interval is therefore widened using Student's t-distribution for that number of
//! passes. The tests verify the coverage with a variation of 2 to 5 % between processes.

pub mod phases;

use crate::plan::schedule::Random;
use crate::result::{Estimate, Ratio};

const RESAMPLES: usize = 2000;

/// Number of resamples for low deciles, which are for information only: no verdict depends on them.
const LOW_DECILE_RESAMPLES: usize = 500;

/// Confidence level of the intervals. It is high because one run makes many comparisons.
pub(crate) const CONFIDENCE: f64 = 0.99;

impl Estimate {
    /// Computes the median and quartiles of `values`. Returns `None` if `values` is empty.
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Estimate {
            median: quantile_of_sorted(&sorted, 0.5)?,
            low_quartile: quantile_of_sorted(&sorted, 0.25)?,
            high_quartile: quantile_of_sorted(&sorted, 0.75)?,
        })
    }

    /// Returns half the interquartile range as a fraction of the median, or 0 if the median is 0.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.high_quartile - self.low_quartile) / 2.0 / self.median }
    }
}

impl Ratio {
    /// Computes the median of paired ratios, grouped by pass, and its interval. Returns `None` if there are no ratios.
    pub fn of(passes: &[Vec<f64>], random: &mut Random) -> Option<Ratio> {
        let passes: Vec<&Vec<f64>> = passes.iter().filter(|pass| !pass.is_empty()).collect();
        let mut all: Vec<f64> = passes.iter().flat_map(|pass| pass.iter().copied()).collect();
        if all.is_empty() {
            return None;
        }
        let estimate = median(&mut all);
        let mut draw = Vec::with_capacity(all.len());
        let medians = (0..RESAMPLES).map(|_| resampled_median(&passes, &mut draw, random)).collect();
        Ratio::of_resampled(estimate, medians, all.len(), passes.len(), 1)
    }

    /// Builds the ratio from its estimate and its resampled values. `runs` is the number of compared runs. Returns
    /// `None` if there are no finite values or if the estimate is not a positive number.
    fn of_resampled(
        estimate: f64,
        mut resampled: Vec<f64>,
        pairs: usize,
        passes: usize,
        runs: usize,
    ) -> Option<Ratio> {
        resampled.retain(|ratio| ratio.is_finite());
        resampled.sort_by(f64::total_cmp);
        let tail = (1.0 - CONFIDENCE) / 2.0;
        let low = quantile_of_sorted(&resampled, tail)?;
        let high = quantile_of_sorted(&resampled, 1.0 - tail)?;
        let stretch = small_sample_stretch(pairs, passes, runs);
        let stretched = |bound: f64| widened(estimate, bound, stretch);
        (estimate.is_finite() && estimate > 0.0).then(|| Ratio {
            estimate,
            low: stretched(low.min(estimate)),
            high: stretched(high.max(estimate)),
            pairs,
            passes,
            stretch,
        })
    }

    /// Computes the ratio between the low deciles of two contenders, which shows how they differ while the machine is
    /// at its fastest. `left` and `right` hold the values of each pass. A resample uses the same passes for both
    /// contenders, but draws their slices independently. Returns `None` if no pass contains values for both.
    pub fn of_low_deciles(left: &[Vec<f64>], right: &[Vec<f64>], random: &mut Random) -> Option<Ratio> {
        let both: Vec<(&Vec<f64>, &Vec<f64>)> =
            left.iter().zip(right).filter(|(left, right)| !left.is_empty() && !right.is_empty()).collect();
        let decile = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            quantile_of_sorted(values, 0.1)
        };
        let mut all_left: Vec<f64> = both.iter().flat_map(|(left, _)| left.iter().copied()).collect();
        let mut all_right: Vec<f64> = both.iter().flat_map(|(_, right)| right.iter().copied()).collect();
        let pairs = all_left.len().min(all_right.len());
        let estimate = decile(&mut all_left)? / decile(&mut all_right)?;
        let mut ratios = Vec::with_capacity(LOW_DECILE_RESAMPLES);
        for _ in 0..LOW_DECILE_RESAMPLES {
            all_left.clear();
            all_right.clear();
            for _ in 0..both.len() {
                let (left, right) = both[random.below(both.len())];
                all_left.extend((0..left.len()).map(|_| left[random.below(left.len())]));
                all_right.extend((0..right.len()).map(|_| right[random.below(right.len())]));
            }
            ratios.push(decile(&mut all_left)? / decile(&mut all_right)?);
        }
        Ratio::of_resampled(estimate, ratios, pairs, both.len(), 1)
    }

    /// Returns `true` if the interval contains 1.
    pub fn includes_one(&self) -> bool {
        self.low <= 1.0 && 1.0 <= self.high
    }

    /// Returns the distance from 1 to the farther bound of the interval before it was widened. For two identical
    /// servers, this is the observed difference between them.
    pub fn max_deviation(&self) -> f64 {
        let unstretched = |bound: f64| widened(self.estimate, bound, 1.0 / self.stretch);
        (1.0 - unstretched(self.low)).abs().max((unstretched(self.high) - 1.0).abs())
    }
}

/// Computes the median of `after` as a multiple of the median of `before`, with the interval. Each argument holds the
/// values of one run, grouped by pass; each run is resampled separately. Returns `None` if either run has no values.
pub fn ratio_of_medians(before: &[Vec<f64>], after: &[Vec<f64>], random: &mut Random) -> Option<Ratio> {
    let median_of = |passes: &[Vec<f64>]| quantile(&passes.concat(), 0.5).filter(|&middle| middle > 0.0);
    let estimate = median_of(after)? / median_of(before)?;
    let mut draw = Vec::new();
    let ratios = (0..RESAMPLES).map(|_| {
        let before = resampled_median(before, &mut draw, random);
        resampled_median(after, &mut draw, random) / before
    });
    let ratios = ratios.collect();
    let min = |count: fn(&[Vec<f64>]) -> usize| count(before).min(count(after));
    let pairs = min(|passes| passes.iter().map(Vec::len).sum());
    let passes = min(|passes| passes.iter().filter(|pass| !pass.is_empty()).count());
    Ratio::of_resampled(estimate, ratios, pairs, passes, 2)
}

/// Returns the median of one two-level resample. At least one pass must contain a value. `draw` is a scratch buffer.
fn resampled_median(passes: &[impl AsRef<[f64]>], draw: &mut Vec<f64>, random: &mut Random) -> f64 {
    draw.clear();
    while draw.is_empty() {
        for _ in 0..passes.len() {
            let pass = passes[random.below(passes.len())].as_ref();
            draw.extend((0..pass.len()).map(|_| pass[random.below(pass.len())]));
        }
    }
    median(draw)
}

/// Moves the bound of an interval away from the estimate on a logarithmic scale, so that it stays positive.
fn widened(estimate: f64, bound: f64, stretch: f64) -> f64 {
    if bound > 0.0 { estimate * (bound / estimate).powf(stretch) } else { bound }
}

/// Returns the factor by which a bootstrap interval over these numbers of pairs and passes must be widened.
///
/// The factor replaces the normal quantile with Student's quantile, and the standard deviation of the sample with the
/// estimate for the population. A single pass contains no information about the variation between processes and is
/// treated as two passes. `runs` is the number of compared runs, each with `passes` passes.
fn small_sample_stretch(pairs: usize, passes: usize, runs: usize) -> f64 {
    /// 99.5 % quantiles of Student's t-distribution for 1 to 8 degrees of freedom.
    const STUDENT: [f64; 8] = [63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355];
    /// 99.5 % quantile of the normal distribution.
    const NORMAL: f64 = 2.5758;
    let passes = passes.max(2);
    let freedom = runs * (passes - 1);
    // Beyond the table, use the first terms of the series expansion in 1 / (degrees of freedom).
    let expansion = |freedom: f64| NORMAL + 4.917 / freedom + 8.83 / (freedom * freedom);
    let student = STUDENT.get(freedom - 1).copied().unwrap_or_else(|| expansion(freedom as f64));
    let sample_correction = (passes as f64 / (passes - 1) as f64).sqrt();
    // The median of a resample takes discrete values, so the interval of a small sample is one step too narrow.
    (student / NORMAL * sample_correction).max(1.0 + 4.0 / pairs.max(1) as f64)
}

/// Returns the quantile at `fraction` (0 to 1), with linear interpolation. `None` if there are no values.
pub fn quantile(values: &[f64], fraction: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, fraction)
}

/// Returns the smallest and the largest value. `None` if there are no values.
pub(crate) fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.map(|value| (value, value)).reduce(|(low, high), (value, _)| (low.min(value), high.max(value)))
}

fn quantile_of_sorted(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = fraction.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64))
}

/// Returns the median of `values`, which it reorders. Panics if `values` is empty.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let is_odd = values.len() % 2 == 1;
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if is_odd {
        return upper;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).unwrap_or(upper);
    f64::midpoint(lower, upper)
}
