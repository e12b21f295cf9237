//! Addition of histograms with different layouts.
//!
//! The *layout* of a histogram is its lowest discernible value and its number of significant digits. It determines the
//! buckets. Each bucket of a finer layout lies within one bucket of a coarser layout. A sum in the coarser of two
//! layouts is therefore exact: each value is counted in the bucket into which it would have been recorded directly, and
//! the order of additions does not matter. A sum in the finer layout would have to guess the position of values within
//! their buckets.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Maximum latency that the histograms resolve, in nanoseconds: one day, which is the maximum timeout.
const MAX_LATENCY_NS: u64 = 86_400_000_000_000;

/// Quantiles of a latency distribution, in nanoseconds with three significant digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Minimum.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

impl Latency {
    /// Computes the quantiles of a histogram of nanoseconds. Returns `None` if it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        (!histogram.is_empty()).then(|| Self {
            min_ns: histogram.min(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        })
    }
}

/// Returns an empty histogram with the bounds of all latency histograms: 1 ns to one day, with three significant
/// digits. Longer latencies are recorded as one day.
///
/// # Panics
/// Never panics, because the bounds are valid constants.
#[must_use]
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds are valid constants")
}

/// Adds `other` to `sum` exactly. If the layouts differ, `sum` is converted to the coarser one. Its range grows if
/// `other` contains higher values.
pub(crate) fn add_histogram(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    if sum.low() < other.low() || sum.sigfig() > other.sigfig() {
        let mut coarser = empty_in_coarser_layout(sum, other);
        append(&mut coarser, sum);
        *sum = coarser;
    }
    append(sum, other);
}

/// Returns an empty histogram with the coarser layout and the wider range of the two.
fn empty_in_coarser_layout(one: &Histogram<u64>, other: &Histogram<u64>) -> Histogram<u64> {
    let low = one.low().max(other.low());
    let high = one.high().max(other.high());
    // The bounds are valid because both inputs are valid: `high` is at least twice the `low` of either input, and the
    // input that provides `low` has at least as many significant digits as the result.
    Histogram::new_with_bounds(low, high, one.sigfig().min(other.sigfig()))
        .expect("the coarser layout of two valid histograms is valid")
}

/// Adds `other` to `sum`, whose layout must not be finer than that of `other`.
fn append(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    let auto_resize = sum.is_auto_resize();
    sum.auto(true);
    sum.add(other).expect("an auto-resizing histogram accepts any value");
    sum.auto(auto_resize);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(low: u64, high: u64, digits: u8, values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(low, high, digits).unwrap();
        values.into_iter().for_each(|value| histogram.record(value).unwrap());
        histogram
    }

    fn counts(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
        let counts = histogram.iter_recorded();
        counts.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }

    #[test]
    fn sum_equals_recording_all_values_in_coarser_layout() {
        let layouts =
            [(1, 60_000_000_000, 3), (1, 1_000_000, 5), (1000, 3_600_000_000_000, 2), (1, u64::MAX, 1)];
        let values = |seed: u64| (0..500).map(move |index| 1 + index * (seed + 7) * 131 % 900_000);
        for (first, (low, high, digits)) in layouts.into_iter().enumerate() {
            for (second, (other_low, other_high, other_digits)) in layouts.into_iter().enumerate() {
                let mut sum = histogram(low, high, digits, values(first as u64));
                add_histogram(
                    &mut sum,
                    &histogram(other_low, other_high, other_digits, values(second as u64)),
                );
                let all = values(first as u64).chain(values(second as u64));
                let expected =
                    histogram(low.max(other_low), high.max(other_high), digits.min(other_digits), all);
                assert_eq!(counts(&sum), counts(&expected), "{first} + {second}");
                assert_eq!((sum.len(), sum.max(), sum.min()), (1000, expected.max(), expected.min()));
            }
        }
    }

    #[test]
    fn sum_grows_for_higher_values() {
        let mut sum = histogram(1, 1000, 3, [5]);
        let high = histogram(1, u64::MAX, 3, [1 << 62]);
        add_histogram(&mut sum, &high);
        assert_eq!((sum.len(), sum.max()), (2, high.max()));
        assert!(!sum.is_auto_resize());
    }
}
