//! The interval of a ratio of medians of two runs: each is drawn anew, passes first and then the values within them,
//! because every pass starts fresh processes and a process keeps its luck for as long as it lives.

use crate::schedule::Random;
use crate::statistics::{RESAMPLES, Ratio, median, quantile};

/// The median of `after` as a multiple of the median of `before`, with its interval; both hold the values of each pass of
/// a run of their own. None when either holds none.
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
    let with_any = |passes: &[Vec<f64>]| passes.iter().filter(|pass| !pass.is_empty()).count();
    let passes = with_any(before).min(with_any(after));
    Ratio::of_resampled(estimate, ratios, (pairs(before).min(pairs(after)), passes), 2)
}

/// The median of passes drawn anew, and of values drawn anew within each; at least one pass must hold a value. `draw` is
/// memory to use.
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
    fn equal_values_have_an_interval_without_width_and_no_values_none() {
        let (one, other) = (vec![vec![2.0; 3], vec![]], vec![vec![3.0], vec![3.0; 4]]);
        let ratio = ratio_of_medians(&one, &other, &mut Random::new(1)).unwrap();
        assert_eq!((ratio.low, ratio.estimate, ratio.high), (1.5, 1.5, 1.5));
        assert_eq!((ratio.pairs, ratio.passes), (3, 1), "those of the run with fewer");
        assert_eq!(ratio_of_medians(&one, &[vec![]], &mut Random::new(1)), None);
        assert_eq!(ratio_of_medians(&[], &other, &mut Random::new(1)), None);
    }

    #[test]
    fn the_redrawn_median_is_one_of_the_values_or_between_two() {
        let passes = vec![vec![1.0, 2.0], vec![4.0]];
        let mut random = Random::new(3);
        for _ in 0..200 {
            let median = resampled_median(&passes, &mut Vec::new(), &mut random);
            assert!((1.0..=4.0).contains(&median), "{median}");
        }
    }
}
