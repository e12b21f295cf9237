//! Estimates, ratios and their intervals.

use anello_lab::result::{Estimate, Ratio};
use anello_lab::schedule::Random;
use anello_lab::statistics::*;
use proptest::prelude::*;

#[test]
fn estimate_returns_quartiles() {
    let estimate = Estimate::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
    assert_eq!((estimate.low_quartile, estimate.median, estimate.high_quartile), (2.0, 3.0, 4.0));
    assert_eq!(quantile(&[0.0, 10.0], 0.1), Some(1.0));
    assert!((estimate.spread() - 1.0 / 3.0).abs() < 1e-12);
}

#[test]
fn empty_input_returns_none() {
    assert_eq!(Estimate::of(&[]), None);
    assert_eq!(Ratio::of(&[vec![], vec![]], &mut Random::new(1)), None);
    assert_eq!(quantile(&[], 0.5), None);
}

#[test]
fn equal_ratios_have_zero_width_interval() {
    let ratio = Ratio::of(&[vec![1.25; 3], vec![1.25; 3]], &mut Random::new(1)).unwrap();
    assert_eq!((ratio.low, ratio.estimate, ratio.high), (1.25, 1.25, 1.25));
    assert!(!ratio.includes_one());
}

#[test]
fn variation_between_passes_widens_interval() {
    let rounds = |pass: f64| vec![pass - 0.001, pass, pass + 0.001];
    let varying: Vec<Vec<f64>> = [0.95, 1.0, 1.05, 0.97, 1.03].map(rounds).to_vec();
    let constant: Vec<Vec<f64>> = [1.0; 5].map(rounds).to_vec();
    let wide = Ratio::of(&varying, &mut Random::new(5)).unwrap();
    let narrow = Ratio::of(&constant, &mut Random::new(5)).unwrap();
    assert!(wide.max_deviation() > 0.02 && narrow.max_deviation() < 0.002, "{wide:?} {narrow:?}");
}

/// Returns the number of `trials` in which the interval does not contain the true ratio. Each slice has 1.5 %
/// noise, and each process has a random constant factor with the standard deviation `process_factor`.
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
fn interval_coverage_matches_confidence_despite_process_variation() {
    const TRIALS: u64 = 250;
    for (passes, rounds) in [(9, 1), (15, 1), (3, 3)] {
        for process_factor in [0.02, 0.05] {
            let missed = count_misses(TRIALS, passes, rounds, process_factor);
            // 2.5 misses are expected at this confidence; the bound allows for random variation.
            assert!(
                missed <= 6,
                "{passes} x {rounds}, process factor {process_factor}: {missed} of {TRIALS} miss the true ratio"
            );
        }
    }
}

#[test]
fn stretch_decreases_with_number_of_passes() {
    let stretch =
        |passes: usize| Ratio::of(&vec![vec![1.0; 3]; passes], &mut Random::new(1)).unwrap().stretch;
    let stretches: Vec<f64> = [1, 2, 3, 5, 9, 30, 1000].map(stretch).to_vec();
    assert!(stretches.windows(2).all(|pair| pair[0] >= pair[1]), "{stretches:?}");
    assert!((stretches[4] - 1.38).abs() < 0.01 && stretches[6] < 1.01, "{stretches:?}");
    // The table of Student's quantiles ends at 9 passes. For 10, the quantile is 3.250 (normal quantile: 2.5758).
    assert!((stretch(10) - 3.250 / 2.5758 * (10.0f64 / 9.0).sqrt()).abs() < 0.01);
}

#[test]
fn ratio_reports_number_of_pairs_and_passes() {
    let ratio = Ratio::of(&[vec![1.1], vec![], vec![1.2, 1.3]], &mut Random::new(1)).unwrap();
    assert_eq!((ratio.pairs, ratio.passes), (3, 2));
    let low = Ratio::of_low_deciles(&[vec![1.0, 2.0]], &[vec![1.0]], &mut Random::new(1)).unwrap();
    assert_eq!((low.pairs, low.passes), (1, 1));
}

#[test]
fn low_decile_ratio_uses_common_passes() {
    let side = |best: f64| -> Vec<Vec<f64>> {
        (0..5).map(|_| (0..10).map(|index| best * (1.0 + index as f64 * 0.1)).collect()).collect()
    };
    let ratio = Ratio::of_low_deciles(&side(12.0), &side(10.0), &mut Random::new(1)).unwrap();
    assert!((ratio.estimate - 1.2).abs() < 1e-9 && ratio.low <= 1.2 && ratio.high >= 1.2, "{ratio:?}");
    assert!(ratio.max_deviation() < 1.0, "{ratio:?}");
    assert_eq!(Ratio::of_low_deciles(&[vec![1.0], vec![]], &[vec![], vec![1.0]], &mut Random::new(1)), None);
}

proptest! {
    #[test]
    fn interval_contains_estimate_and_is_not_negative(
        passes in prop::collection::vec(prop::collection::vec(0.01f64..100.0, 0..6), 1..6), seed: u64
    ) {
        let all: Vec<f64> = passes.iter().flatten().copied().collect();
        let Some(ratio) = Ratio::of(&passes, &mut Random::new(seed)) else {
            prop_assert!(all.is_empty());
            return Ok(());
        };
        let min = all.iter().copied().fold(f64::INFINITY, f64::min);
        let max = all.iter().copied().fold(0.0, f64::max);
        prop_assert!(0.0 <= ratio.low && ratio.low <= ratio.estimate && ratio.estimate <= ratio.high);
        prop_assert!(min <= ratio.estimate && ratio.estimate <= max);
    }
}
