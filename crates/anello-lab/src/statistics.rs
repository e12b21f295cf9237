//! Medians, quartiles and intervals: nothing here assumes a shape of the noise.
//!
//! Comparisons are *paired*: within one round the contender and the reference ran moments apart, so their ratio is
//! free of the slow drift of the machine. The interval of the median ratio is a bootstrap in two levels, passes and
//! then rounds within them, because every pass starts fresh processes and a process keeps its luck (addresses, page
//! placement) for as long as it lives.
//!
//! A bootstrap of few passes is narrower than it says: it cannot know what the passes that were not made would have
//! shown. So the interval is stretched as Student's distribution asks for that number of passes; the tests hold it to
//! its confidence with luck of 2 to 5 % per process.

pub mod phases;

use serde::{Deserialize, Serialize};

use crate::schedule::Random;

/// How often the bootstrap draws again.
pub const RESAMPLES: usize = 2000;

/// The same for low deciles, which are for reading and carry no verdict.
const LOW_DECILE_RESAMPLES: usize = 500;

/// How sure the intervals are. High, because one run makes many comparisons.
pub const CONFIDENCE: f64 = 0.99;

/// A median with the quartiles around it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Half of the slices lie below.
    pub median: f64,
    /// A quarter of the slices lie below.
    pub low_quartile: f64,
    /// A quarter of the slices lie above.
    pub high_quartile: f64,
}

impl Estimate {
    /// The estimate of `values`; none when there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Estimate {
            median: quantile_of_sorted(&sorted, 0.5)?,
            low_quartile: quantile_of_sorted(&sorted, 0.25)?,
            high_quartile: quantile_of_sorted(&sorted, 0.75)?,
        })
    }

    /// Half the distance between the quartiles, as a fraction of the median; 0 for a median of 0.
    #[must_use]
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.high_quartile - self.low_quartile) / 2.0 / self.median }
    }
}

/// How many times the reference's value, with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the paired ratios.
    pub estimate: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// How many paired ratios it is the median of; of two runs compared, those of the run with fewer.
    #[serde(default)]
    pub pairs: usize,
    /// How many passes (for idle connections: rounds), each with processes of its own, had any; of two runs compared,
    /// those of the run with fewer.
    #[serde(default)]
    pub passes: usize,
    /// By how much the interval was stretched, as an exponent, because passes are few.
    #[serde(default = "default_stretch")]
    pub stretch: f64,
}

fn default_stretch() -> f64 {
    1.0
}

impl Ratio {
    /// The median of paired ratios and its bootstrap interval; `passes` holds the ratios of each pass. None when there
    /// are none at all.
    #[must_use]
    pub fn of(passes: &[Vec<f64>], random: &mut Random) -> Option<Ratio> {
        let passes: Vec<&Vec<f64>> = passes.iter().filter(|pass| !pass.is_empty()).collect();
        let mut all: Vec<f64> = passes.iter().flat_map(|pass| pass.iter().copied()).collect();
        if all.is_empty() {
            return None;
        }
        let estimate = median(&mut all);
        let mut medians = Vec::with_capacity(RESAMPLES);
        let mut draw = Vec::with_capacity(all.len());
        for _ in 0..RESAMPLES {
            draw.clear();
            for _ in 0..passes.len() {
                let pass = passes[random.below(passes.len())];
                draw.extend((0..pass.len()).map(|_| pass[random.below(pass.len())]));
            }
            medians.push(median(&mut draw));
        }
        Ratio::of_resampled(estimate, medians, (all.len(), passes.len()), 1)
    }

    /// The ratio with the interval that its values in redrawn samples of `runs` runs span, stretched for the number of
    /// passes; none
    /// without any, or if the estimate is no positive number.
    pub(crate) fn of_resampled(
        estimate: f64,
        mut resampled: Vec<f64>,
        (pairs, passes): (usize, usize),
        runs: usize,
    ) -> Option<Ratio> {
        resampled.retain(|ratio| ratio.is_finite());
        resampled.sort_by(f64::total_cmp);
        let tail = (1.0 - CONFIDENCE) / 2.0;
        let low = quantile_of_sorted(&resampled, tail)?;
        let high = quantile_of_sorted(&resampled, 1.0 - tail)?;
        let stretch = small_sample_stretch(pairs, passes, runs);
        // Ratios are stretched as factors, so that they stay above 0.
        let stretched = |end: f64| if end > 0.0 { estimate * (end / estimate).powf(stretch) } else { end };
        (estimate.is_finite() && estimate > 0.0).then(|| Ratio {
            estimate,
            low: stretched(low.min(estimate)),
            high: stretched(high.max(estimate)),
            pairs,
            passes,
            stretch,
        })
    }

    /// The ratio of the low deciles of two sides, by pass, and its bootstrap interval: what remains of a difference when
    /// the machine is at its best. Both sides draw the same passes, and then each its own slices. None if either has
    /// nothing in any pass that the other has.
    #[must_use]
    pub fn of_low_deciles(left: &[Vec<f64>], right: &[Vec<f64>], random: &mut Random) -> Option<Ratio> {
        let both: Vec<(&Vec<f64>, &Vec<f64>)> =
            left.iter().zip(right).filter(|(left, right)| !left.is_empty() && !right.is_empty()).collect();
        let decile = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            quantile_of_sorted(values, 0.1)
        };
        let mut all_left: Vec<f64> = both.iter().flat_map(|(left, _)| left.iter().copied()).collect();
        let mut all_right: Vec<f64> = both.iter().flat_map(|(_, right)| right.iter().copied()).collect();
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
        let least = |count: fn(&(&Vec<f64>, &Vec<f64>)) -> usize| both.iter().map(count).sum::<usize>();
        let pairs = least(|(left, _)| left.len()).min(least(|(_, right)| right.len()));
        Ratio::of_resampled(estimate, ratios, (pairs, both.len()), 1)
    }

    /// Whether 1 lies within the interval.
    #[must_use]
    pub fn includes_one(&self) -> bool {
        self.low <= 1.0 && 1.0 <= self.high
    }

    /// The farthest from 1 that the redrawn medians lay, before the interval was stretched: what two equal servers were
    /// seen to differ by.
    #[must_use]
    pub fn max_deviation(&self) -> f64 {
        let redrawn = |end: f64| {
            if end > 0.0 { self.estimate * (end / self.estimate).powf(1.0 / self.stretch) } else { end }
        };
        (1.0 - redrawn(self.low)).abs().max((redrawn(self.high) - 1.0).abs())
    }
}

/// By how much the interval of a bootstrap over so few pairs and passes is to be stretched: Student's quantile in place of
/// the normal one, and the spread of a sample in place of that of what it was drawn from. One pass tells nothing of the
/// luck of a process; it is treated as two. `runs` is how many runs of as many passes each are compared.
fn small_sample_stretch(pairs: usize, passes: usize, runs: usize) -> f64 {
    /// The 99.5 % quantiles of Student's distribution for 1 to 8 degrees of freedom.
    const STUDENT: [f64; 8] = [63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355];
    /// The same of the normal distribution.
    const NORMAL: f64 = 2.5758;
    let passes = passes.max(2);
    let freedom = runs * (passes - 1);
    // Beyond the table, the first terms of the expansion in 1/freedom.
    let expansion = |many: f64| NORMAL + 4.917 / many + 8.83 / (many * many);
    let student = STUDENT.get(freedom - 1).copied().unwrap_or_else(|| expansion(freedom as f64));
    let of_sample = (passes as f64 / (passes - 1) as f64).sqrt();
    // The median of a redrawn sample moves in steps, from one value to the next, and its interval ends a step early.
    (student / NORMAL * of_sample).max(1.0 + 4.0 / pairs.max(1) as f64)
}

/// The value below which the fraction `fraction` of the values lies, interpolated; none when there are no values.
#[must_use]
pub fn quantile(values: &[f64], fraction: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, fraction)
}

fn quantile_of_sorted(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = fraction.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

/// The median of at least one value. Reorders them.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let odd = values.len() % 2 == 1;
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if odd {
        return upper;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).unwrap_or(upper);
    f64::midpoint(lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quartiles_of_known_values() {
        let estimate = Estimate::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((estimate.low_quartile, estimate.median, estimate.high_quartile), (2.0, 3.0, 4.0));
        assert_eq!(quantile(&[0.0, 10.0], 0.1), Some(1.0));
        assert!((estimate.spread() - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Ratio::of(&[vec![], vec![]], &mut Random::new(1)), None);
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn equal_ratios_have_an_interval_without_width() {
        let ratio = Ratio::of(&[vec![1.25; 3], vec![1.25; 3]], &mut Random::new(1)).unwrap();
        assert_eq!((ratio.low, ratio.estimate, ratio.high), (1.25, 1.25, 1.25));
        assert!(!ratio.includes_one());
    }

    #[test]
    fn luck_that_lasts_a_pass_widens_the_interval() {
        let rounds = |pass: f64| vec![pass - 0.001, pass, pass + 0.001];
        let lucky: Vec<Vec<f64>> = [0.95, 1.0, 1.05, 0.97, 1.03].map(rounds).to_vec();
        let even: Vec<Vec<f64>> = [1.0; 5].map(rounds).to_vec();
        let wide = Ratio::of(&lucky, &mut Random::new(5)).unwrap();
        let narrow = Ratio::of(&even, &mut Random::new(5)).unwrap();
        assert!(wide.max_deviation() > 0.02 && narrow.max_deviation() < 0.002, "{wide:?} {narrow:?}");
    }

    /// How many of `trials` intervals leave out the true ratio, with noise of 1.5 % in each of a pair of slices and luck
    /// of this size for each of the two processes of a pass.
    fn count_misses(trials: u64, passes: usize, rounds: usize, process_factor: f64) -> usize {
        let one = |seed: u64| {
            let mut random = Random::stream(seed, (passes * 100 + rounds) as u64);
            let mut factor = |spread: f64| 1.0 + spread * ((0..12).map(|_| random.unit()).sum::<f64>() - 6.0);
            let passes: Vec<Vec<f64>> = (0..passes)
                .map(|_| {
                    let process_factor = factor(process_factor) / factor(process_factor);
                    (0..rounds).map(|_| process_factor * factor(0.015) / factor(0.015)).collect()
                })
                .collect();
            Ratio::of(&passes, &mut Random::new(seed)).unwrap().includes_one()
        };
        (0..trials).filter(|&seed| !one(seed)).count()
    }

    #[test]
    fn the_interval_covers_the_truth_as_often_as_it_says_whatever_the_luck_of_a_process() {
        const TRIALS: u64 = 250;
        for (passes, rounds) in [(9, 1), (15, 1), (3, 3)] {
            for process_factor in [0.02, 0.05] {
                let missed = count_misses(TRIALS, passes, rounds, process_factor);
                // The confidence allows 2.5; the rest is what chance makes of it.
                assert!(
                    missed <= 6,
                    "{passes} x {rounds}, luck {process_factor}: {missed} of {TRIALS} leave out the truth"
                );
            }
        }
    }

    #[test]
    fn few_passes_stretch_the_interval_and_many_little() {
        let factor = |passes: usize| small_sample_stretch(passes * 3, passes, 1);
        let factors: Vec<f64> = [1, 2, 3, 5, 9, 30, 1000].map(factor).to_vec();
        assert!(factors.windows(2).all(|pair| pair[0] >= pair[1]), "{factors:?}");
        assert!((factors[4] - 1.38).abs() < 0.01 && factors[6] < 1.01, "{factors:?}");
        assert!(small_sample_stretch(27, 9, 2) < factor(9), "two runs know more than one");
        // The table and the expansion meet.
        assert!((factor(10) - 3.250 / 2.5758 * (10.0f64 / 9.0).sqrt()).abs() < 0.01);
    }

    #[test]
    fn a_ratio_knows_how_many_pairs_and_passes_it_rests_on() {
        let ratio = Ratio::of(&[vec![1.1], vec![], vec![1.2, 1.3]], &mut Random::new(1)).unwrap();
        assert_eq!((ratio.pairs, ratio.passes), (3, 2));
        let low = Ratio::of_low_deciles(&[vec![1.0, 2.0]], &[vec![1.0]], &mut Random::new(1)).unwrap();
        assert_eq!((low.pairs, low.passes), (1, 1));
    }

    #[test]
    fn low_deciles_are_compared_by_pass() {
        let side = |best: f64| -> Vec<Vec<f64>> {
            (0..5).map(|_| (0..10).map(|index| best * (1.0 + index as f64 * 0.1)).collect()).collect()
        };
        let ratio = Ratio::of_low_deciles(&side(12.0), &side(10.0), &mut Random::new(1)).unwrap();
        assert!((ratio.estimate - 1.2).abs() < 1e-9 && ratio.low <= 1.2 && ratio.high >= 1.2, "{ratio:?}");
        assert!(ratio.max_deviation() < 1.0, "{ratio:?}");
        assert_eq!(
            Ratio::of_low_deciles(&[vec![1.0], vec![]], &[vec![], vec![1.0]], &mut Random::new(1)),
            None
        );
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_estimate_and_stays_above_nothing(
            passes in prop::collection::vec(prop::collection::vec(0.01f64..100.0, 0..6), 1..6), seed: u64
        ) {
            let all: Vec<f64> = passes.iter().flatten().copied().collect();
            let Some(ratio) = Ratio::of(&passes, &mut Random::new(seed)) else {
                prop_assert!(all.is_empty());
                return Ok(());
            };
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(0.0, f64::max);
            prop_assert!(0.0 <= ratio.low && ratio.low <= ratio.estimate && ratio.estimate <= ratio.high);
            prop_assert!(least <= ratio.estimate && ratio.estimate <= most);
        }
    }
}
