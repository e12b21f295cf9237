//! What tells a runtime from all others, and where its clock meets that of the standard library.
//!
//! For timers that are given as an [`Instant`] and held by what may move to another thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When and as which a runtime was built.
#[derive(Debug)]
pub(crate) struct RuntimeClock {
    /// No other runtime of this process has the same.
    pub number: u64,
    /// One moment on both clocks.
    started: Instant,
    started_ns: u64,
}

impl RuntimeClock {
    /// That of a runtime whose clock says this.
    pub fn new(now_ns: impl FnOnce() -> u64) -> Self {
        static RUNTIMES: AtomicU64 = AtomicU64::new(0);
        // In this order: what is due at a moment of the one clock is never due earlier on the other.
        let started = Instant::now();
        Self { number: RUNTIMES.fetch_add(1, Ordering::Relaxed), started, started_ns: now_ns() }
    }

    /// What the runtime's clock says at a moment.
    pub fn ns_at(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.started);
        self.started_ns.saturating_add(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The moment at which the runtime's clock says this.
    pub fn moment_at(&self, now_ns: u64) -> Instant {
        self.started + Duration::from_nanos(now_ns.saturating_sub(self.started_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_agree() {
        let before = Instant::now();
        let runtime_clock = RuntimeClock::new(|| 1_000_000);
        let moment = runtime_clock.moment_at(1_000_500);
        assert!(moment >= before + Duration::from_nanos(500));
        assert_eq!(runtime_clock.ns_at(moment), 1_000_500);
        assert_eq!(runtime_clock.ns_at(before), 1_000_000, "nothing is due before the runtime was there");
        assert_eq!(runtime_clock.moment_at(0), runtime_clock.moment_at(1_000_000));
        assert_ne!(RuntimeClock::new(|| 0).number, runtime_clock.number);
    }
}
