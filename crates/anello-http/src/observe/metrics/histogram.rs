//! Latency histogram whose bucket bounds are powers of two, so that the bucket index is computed from the leading
//! zeros.
//!
//! ```text
//!   bucket     0         1         2       …    24        25
//!   up to   1024 ns   2048 ns   4096 ns    …  17.2 s   infinity
//!             2^10      2^11      2^12          2^34
//! ```
//!
//! Upper bounds are inclusive, as in Prometheus. Adjacent bounds differ by a factor of two, so a quantile estimated
//! from the buckets is accurate within that factor. This is sufficient for monitoring; use a load generator for exact
//! latencies.

use crate::observe::counter::Counter;

/// Exponent of the lowest bound (2^10 ns).
const LOWEST_EXPONENT: u32 = 10;

/// Number of buckets with a finite bound. The unbounded bucket follows them.
pub(super) const BOUNDS: usize = 25;

/// Histogram of one worker.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [Counter; BOUNDS + 1],
    sum_ns: Counter,
}

/// Sum of the histograms of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HistogramSum {
    /// Count of each bucket, not cumulative.
    pub(super) buckets: [u64; BOUNDS + 1],
    pub(super) sum_ns: u64,
}

impl Histogram {
    pub(super) fn record(&self, value_ns: u64) {
        self.buckets[bucket(value_ns)].add(1);
        self.sum_ns.add(value_ns);
    }

    pub(super) fn add_to(&self, sum: &mut HistogramSum) {
        for (total, bucket) in sum.buckets.iter_mut().zip(&self.buckets) {
            *total += bucket.get();
        }
        sum.sum_ns = sum.sum_ns.wrapping_add(self.sum_ns.get());
    }
}

/// Returns the inclusive upper bound of a bounded bucket, in nanoseconds.
pub(super) fn bound_ns(bucket: usize) -> u64 {
    1 << (LOWEST_EXPONENT as usize + bucket)
}

fn bucket(value_ns: u64) -> usize {
    // Subtracting one makes the bound inclusive: a power of two falls into the bucket that it bounds.
    let bits = u64::BITS - value_ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(LOWEST_EXPONENT) as usize).min(BOUNDS)
}
