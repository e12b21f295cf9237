//! A counter with a single writer.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only one thread writes and any thread can read.
///
/// An increment is a load, an addition and a store, which is cheaper than an atomic addition. No increment is lost as
/// long as only one thread writes.
///
/// ```
/// use anello::exposition::Counter;
///
/// let counter = Counter::default();
/// counter.add(2);
/// counter.add(3);
/// assert_eq!(counter.get(), 5);
/// counter.set(1);
/// assert_eq!(counter.get(), 1);
/// ```
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `increment`, and wraps around on overflow.
    pub fn add(&self, increment: u64) {
        self.set(self.get().wrapping_add(increment));
    }

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
