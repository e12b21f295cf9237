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

const LOWEST_EXPONENT: u32 = 10;

/// Number of buckets with a finite bound. An unbounded bucket follows them.
pub(super) const BOUNDS: usize = 25;

#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// Count of each bucket, not cumulative.
    pub(super) buckets: [Counter; BOUNDS + 1],
    pub(super) sum_ns: Counter,
}

impl Histogram {
    pub(super) fn record(&self, value_ns: u64) {
        self.buckets[bucket(value_ns)].add(1);
        self.sum_ns.add(value_ns);
    }
}

pub(super) fn bound_ns(bucket: usize) -> u64 {
    1 << (LOWEST_EXPONENT as usize + bucket)
}

fn bucket(value_ns: u64) -> usize {
    // Subtracting one makes the bound inclusive: a power of two falls into the bucket that it bounds.
    let bits = u64::BITS - value_ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(LOWEST_EXPONENT) as usize).min(BOUNDS)
}
