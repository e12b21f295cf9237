//! Bootstrap interval for the ratio between the medians of two runs.
//!
//! Each run is resampled separately: first the passes, then the values within each pass, because every pass starts new
//! processes, and some properties of a process affect its speed for its whole lifetime.

use crate::judge::statistics::{RESAMPLES, median, quantile};
use crate::plan::schedule::Random;
use crate::result::Ratio;

/// Computes the median of `after` as a multiple of the median of `before`, with the interval. Each argument holds the
/// values of one run, grouped by pass. Returns `None` if either run has no values.
pub fn ratio_of_medians(before: &[Vec<f64>], after: &[Vec<f64>], random: &mut Random) -> Option<Ratio> {
    let median_of = |passes: &[Vec<f64>]| quantile(&passes.concat(), 0.5).filter(|&middle| middle > 0.0);
    let estimate = median_of(after)? / median_of(before)?;
    let mut ratios = Vec::with_capacity(RESAMPLES);
    let mut draw = Vec::new();
    for _ in 0..RESAMPLES {
        let before = resampled_median(before, &mut draw, random);
        ratios.push(resampled_median(after, &mut draw, random) / before);
    }
    let pairs = |passes: &[Vec<f64>]| passes.iter().map(Vec::len).sum::<usize>();
    let non_empty = |passes: &[Vec<f64>]| passes.iter().filter(|pass| !pass.is_empty()).count();
    let passes = non_empty(before).min(non_empty(after));
    Ratio::of_resampled(estimate, ratios, (pairs(before).min(pairs(after)), passes), 2)
}

/// Returns the median of one two-level resample. At least one pass must contain a value. `draw` is a scratch buffer.
fn resampled_median(passes: &[Vec<f64>], draw: &mut Vec<f64>, random: &mut Random) -> f64 {
    draw.clear();
    while draw.is_empty() {
        for _ in 0..passes.len() {
            let pass = &passes[random.below(passes.len())];
            draw.extend((0..pass.len()).map(|_| pass[random.below(pass.len())]));
        }
    }
    median(draw)
}
