//! Bootstrap interval for the ratio between the medians of two runs.
//!
//! Each run is resampled separately: first the passes, then the values within each pass. Two levels are needed
//! because every pass starts new processes, and some properties of a process affect its speed for its whole lifetime.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_of_constant_values_has_zero_width_interval() {
        let (one, other) = (vec![vec![2.0; 3], vec![]], vec![vec![3.0], vec![3.0; 4]]);
        let ratio = ratio_of_medians(&one, &other, &mut Random::new(1)).unwrap();
        assert_eq!((ratio.low, ratio.estimate, ratio.high), (1.5, 1.5, 1.5));
        assert_eq!((ratio.pairs, ratio.passes), (3, 1), "those of the run with fewer");
        assert_eq!(ratio_of_medians(&one, &[vec![]], &mut Random::new(1)), None);
        assert_eq!(ratio_of_medians(&[], &other, &mut Random::new(1)), None);
    }

    #[test]
    fn resampled_median_is_within_value_range() {
        let passes = vec![vec![1.0, 2.0], vec![4.0]];
        let mut random = Random::new(3);
        for _ in 0..200 {
            let median = resampled_median(&passes, &mut Vec::new(), &mut random);
            assert!((1.0..=4.0).contains(&median), "{median}");
        }
    }
}
