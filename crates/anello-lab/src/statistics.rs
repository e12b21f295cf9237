//! Medians, quartiles and intervals: nothing here assumes a shape of the noise.
//!
//! Comparisons are *paired*: within one round the contender and the reference ran moments apart, so their ratio is
//! free of the slow drift of the machine. The interval of the median ratio is a bootstrap in two levels, passes and
//! then rounds within them, because every pass starts fresh processes and a process keeps its luck (addresses, page
//! placement) for as long as it lives.

use serde::{Deserialize, Serialize};

use crate::schedule::Random;

/// How often the bootstrap draws again.
pub const RESAMPLES: usize = 2000;

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
        medians.sort_by(f64::total_cmp);
        let tail = (1.0 - CONFIDENCE) / 2.0;
        Some(Ratio {
            estimate,
            low: quantile_of_sorted(&medians, tail)?,
            high: quantile_of_sorted(&medians, 1.0 - tail)?,
        })
    }

    /// Whether 1 lies within the interval.
    #[must_use]
    pub fn includes_one(&self) -> bool {
        self.low <= 1.0 && 1.0 <= self.high
    }

    /// The farthest that the interval reaches from 1: what two equal servers may differ by.
    #[must_use]
    pub fn reach(&self) -> f64 {
        (1.0 - self.low).abs().max((self.high - 1.0).abs())
    }
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
fn median(values: &mut [f64]) -> f64 {
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
        assert!(wide.reach() > 0.02 && narrow.reach() < 0.002, "{wide:?} {narrow:?}");
    }

    #[test]
    fn the_interval_covers_the_true_median_about_as_often_as_it_says() {
        let covered = (0..300u64)
            .filter(|&seed| {
                let mut random = Random::new(seed);
                let passes: Vec<Vec<f64>> =
                    (0..5).map(|_| (0..3).map(|_| 1.0 + 0.05 * (random.unit() - 0.5)).collect()).collect();
                Ratio::of(&passes, &mut random).unwrap().includes_one()
            })
            .count();
        assert!(covered >= 291, "{covered} of 300 intervals cover the truth");
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_estimate_and_stays_within_the_data(
            passes in prop::collection::vec(prop::collection::vec(0.01f64..100.0, 0..6), 1..6), seed: u64
        ) {
            let all: Vec<f64> = passes.iter().flatten().copied().collect();
            let Some(ratio) = Ratio::of(&passes, &mut Random::new(seed)) else {
                prop_assert!(all.is_empty());
                return Ok(());
            };
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(0.0, f64::max);
            prop_assert!(least <= ratio.low && ratio.low <= ratio.high && ratio.high <= most);
            prop_assert!(least <= ratio.estimate && ratio.estimate <= most);
        }
    }
}
