//! A counter with a single writer.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only one thread writes and any thread can read.
///
/// An increment is a load, an addition and a store, which is cheaper than an atomic addition. No increment is lost,
/// because only one thread writes.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, increment: u64) {
        self.set(self.get().wrapping_add(increment));
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
