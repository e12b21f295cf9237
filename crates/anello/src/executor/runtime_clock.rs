//! Support for timers that have an [`Instant`] as their deadline and can move to another runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Identifier of a runtime, and a reference point for its clock.
#[derive(Debug)]
pub(crate) struct RuntimeClock {
    /// Unique in this process.
    pub id: u64,
    /// The reference point, as a time on each of the two clocks.
    started: Instant,
    started_ns: u64,
}

impl RuntimeClock {
    pub fn new(now_ns: impl FnOnce() -> u64) -> Self {
        static RUNTIMES: AtomicU64 = AtomicU64::new(0);
        // The clocks are read in this order so that a converted deadline is never earlier than the original.
        let started = Instant::now();
        Self { id: RUNTIMES.fetch_add(1, Ordering::Relaxed), started, started_ns: now_ns() }
    }

    pub fn ns_at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.started);
        self.started_ns.saturating_add(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    pub fn instant_at(&self, now_ns: u64) -> Instant {
        self.started + Duration::from_nanos(now_ns.saturating_sub(self.started_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_conversions_round_trip() {
        let before = Instant::now();
        let runtime_clock = RuntimeClock::new(|| 1_000_000);
        let instant = runtime_clock.instant_at(1_000_500);
        assert!(instant >= before + Duration::from_nanos(500));
        assert_eq!(runtime_clock.ns_at(instant), 1_000_500);
        assert_eq!(
            runtime_clock.ns_at(before),
            1_000_000,
            "earlier instants map to the start of the runtime"
        );
        assert_eq!(runtime_clock.instant_at(0), runtime_clock.instant_at(1_000_000));
        assert_ne!(RuntimeClock::new(|| 0).id, runtime_clock.id);
    }
}
