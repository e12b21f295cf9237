//! Slow and fast phases of the machine.

use anello_lab::schedule::Random;
use anello_lab::statistics::phases::*;

/// Returns interleaved samples of contenders with different costs, on a machine that is slower by the factors that
/// `factor_at` returns. `noise` is the standard deviation of the noise.
fn samples(
    seed: u64,
    count: usize,
    noise: f64,
    mut factor_at: impl FnMut(usize, &mut Random) -> f64,
) -> Vec<Sample> {
    let mut random = Random::new(seed);
    let normal = |random: &mut Random| (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
    (0..count)
        .map(|index| {
            let contender = random.below(8);
            let factor = factor_at(index, &mut random);
            let cost = (5_000.0 + 700.0 * contender as f64) * factor * (noise * normal(&mut random)).exp();
            Sample { contender, stretch: index * 5 / count, cost }
        })
        .collect()
}

/// Returns, for each sample, whether the machine is slow. The state changes with a probability of 1 in `length`.
fn truth(seed: u64, count: usize, length: usize) -> Vec<bool> {
    let mut random = Random::stream(seed, 5);
    let mut slow = false;
    (0..count)
        .map(|_| {
            slow ^= random.below(length) == 0;
            slow
        })
        .collect()
}

#[test]
fn slow_phases_of_factor_1_6_are_found() {
    let mut found = 0;
    for seed in 0..50 {
        let truth = truth(seed, 240, 30);
        let slow = truth.iter().filter(|&&slow| slow).count();
        if !(12..=228).contains(&slow) {
            continue; // Too few slices in one of the phases.
        }
        let samples = samples(seed, 240, 0.03, |index, _| if truth[index] { 1.6 } else { 1.0 });
        let phases = find(&samples).unwrap_or_else(|| panic!("seed {seed}: no phases seen, {slow} slow"));
        assert!((phases.slow_factor / 1.6 - 1.0).abs() < 0.03, "seed {seed}: {}", phases.slow_factor);
        let wrong = phases.slow.iter().zip(&truth).filter(|(found, truth)| found != truth).count();
        assert!(wrong <= 10, "seed {seed}: {wrong} of 240 slices in the wrong phase");
        found += 1;
    }
    assert!(found > 30, "{found}");
}

#[test]
fn noise_drift_and_outliers_are_not_phases() {
    for seed in 0..200 {
        assert_eq!(find(&samples(seed, 120, 0.05, |_, _| 1.0)), None, "noise, seed {seed}");
        let drift = |index: usize, _: &mut Random| 1.0 + 0.06 * (index as f64 / 40.0).sin();
        assert_eq!(find(&samples(seed, 120, 0.02, drift)), None, "drift, seed {seed}");
        let outlier = |_: usize, random: &mut Random| if random.below(20) == 0 { 1.8 } else { 1.0 };
        assert_eq!(find(&samples(seed, 120, 0.02, outlier)), None, "outliers, seed {seed}");
    }
}

#[test]
fn few_or_invalid_samples_have_no_phases() {
    assert_eq!(find(&[]), None);
    let one = Sample { contender: 0, stretch: 0, cost: 0.0 };
    assert_eq!(find(&[one; 40]), None);
    assert_eq!(find(&[Sample { cost: 7.0, ..one }; 40]), None, "all alike");
}

#[test]
fn changes_between_groups_are_not_counted() {
    let sample = |stretch| Sample { contender: 0, stretch, cost: 1.0 };
    let samples = [sample(0), sample(0), sample(1), sample(1)];
    assert_eq!(changes(&samples, &[false, false, true, true]), 0);
    assert_eq!(changes(&samples, &[false, true, true, true]), 1);
}
