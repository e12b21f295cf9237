//! Latency histograms, and exact addition of histograms with different layouts.
//!
//! The *layout* of a histogram is its lowest discernible value and its number of significant digits, which determine
//! the buckets. Each bucket of a finer layout lies within one bucket of a coarser layout. In a sum in the coarser of
//! two layouts, each value is therefore counted in the bucket into which it would have been recorded directly, and the
//! order of additions does not matter. A sum in the finer layout would have to guess the position of values within
//! their buckets.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Maximum latency that the histograms can record, in nanoseconds: one day, which is the maximum timeout.
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
    /// Computes the quantiles of a histogram of values in nanoseconds. Returns `None` if it is empty.
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
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds are valid constants")
}

/// Adds `other` to `sum` bucket by bucket. If the layouts differ, `sum` is converted to the coarser one. Its range
/// grows if `other` contains higher values.
pub(crate) fn add_histogram(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    if sum.low() < other.low() || sum.sigfig() > other.sigfig() {
        let (low, high) = (sum.low().max(other.low()), sum.high().max(other.high()));
        // The bounds are valid because both inputs are valid: `high` is at least twice the `low` of either input, and
        // the input that provides `low` has at least as many significant digits as the result.
        let mut coarser = Histogram::new_with_bounds(low, high, sum.sigfig().min(other.sigfig()))
            .expect("the coarser layout of two valid histograms is valid");
        append(&mut coarser, sum);
        *sum = coarser;
    }
    append(sum, other);
}

/// Adds `other` to `sum`, whose layout must not be finer than that of `other`.
fn append(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    let auto_resize = sum.is_auto_resize();
    sum.auto(true);
    sum.add(other).expect("an auto-resizing histogram accepts any value");
    sum.auto(auto_resize);
}
