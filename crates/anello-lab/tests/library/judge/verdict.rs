//! Verdicts on ratios.

use anello_lab::measure::Measure;
use anello_lab::result::{Ratio, Verdict};
use anello_lab::verdict::*;

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
fn difference_requires_interval_without_one_and_exceeded_resolution() {
    assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.03)), Verdict::More);
    assert_eq!(verdict_on(ratio(0.95, 0.02), Some(0.03)), Verdict::Less);
    assert_eq!(verdict_on(ratio(1.05, 0.06), Some(0.03)), Verdict::NoDifference, "the interval includes 1");
    assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.06)), Verdict::NoDifference, "within the resolution");
    assert_eq!(verdict_on(ratio(1.0, 0.0), Some(0.0)), Verdict::NoDifference);
}

#[test]
fn noisy_cell_allows_verdict_only_on_large_difference() {
    assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.3)), Verdict::TooNoisy);
    assert_eq!(verdict_on(ratio(3.0, 0.5), Some(0.3)), Verdict::More);
}

#[test]
fn too_few_pairs_or_passes_give_no_verdict() {
    let of = |pairs, passes| verdict_on(Ratio { pairs, passes, ..ratio(3.0, 0.0) }, Some(0.01));
    assert_eq!(of(MIN_PAIRS, MIN_PASSES), Verdict::More);
    assert_eq!(of(1, 1), Verdict::TooNoisy, "an interval without width");
    assert_eq!(of(MIN_PAIRS - 1, MIN_PASSES), Verdict::TooNoisy);
    assert_eq!(of(30, MIN_PASSES - 1), Verdict::TooNoisy);
}

#[test]
fn unknown_resolution_gives_no_verdict() {
    assert_eq!(verdict_on(ratio(1.05, 0.02), None), Verdict::TooNoisy);
    assert_eq!(verdict_on(ratio(3.0, 0.02), None), Verdict::TooNoisy);
}

#[test]
fn is_better_for_higher_rate_and_lower_cpu() {
    assert_eq!(Measure::Rate.is_better(Verdict::More), Some(true));
    assert_eq!(Measure::Cpu.is_better(Verdict::More), Some(false));
    assert_eq!(Measure::Cpu.is_better(Verdict::NoDifference), None);
}
