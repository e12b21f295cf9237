//! Looking for work before sleeping.
//!
//! A sleeping wait costs a context switch each way; at one connection that is more than the request itself. Looking
//! for a short while instead trades processor time for latency. The time adapts: looking that finds something goes on for
//! at least twice as long as that took; when it finds nothing the time halves, so that an idle worker soon sleeps at once.
//! But each sixteenth try in vain is followed by one of full length: work that comes regularly after a longer time than
//! is looked would otherwise never be found again.

use std::time::{Duration, Instant};

/// How long to look before the next wait.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    current: Duration,
    /// Tries in a row that found nothing.
    misses: u32,
}

/// The shortest try is such a part of the longest, and so many in vain are followed by one of the longest.
const FULL_SPIN_INTERVAL: u32 = 16;

impl Spin {
    pub fn new(limit: Duration) -> Self {
        Self { limit, current: limit, misses: 0 }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Calls `condition` until it finds something or the time is over; whether it found something.
    pub fn spin_until(&mut self, mut condition: impl FnMut() -> bool) -> bool {
        let (started, current_limit) = (Instant::now(), self.current_limit());
        loop {
            for _ in 0..16 {
                if condition() {
                    self.record_hit(started.elapsed());
                    return true;
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= current_limit {
                self.record_miss();
                return false;
            }
        }
    }

    /// How long the next try is.
    fn current_limit(&self) -> Duration {
        let is_full = self.misses > 0 && self.misses.is_multiple_of(FULL_SPIN_INTERVAL);
        if is_full { self.limit } else { self.current }
    }

    fn record_hit(&mut self, elapsed: Duration) {
        self.misses = 0;
        self.current = self.current.max(elapsed * 2).min(self.limit);
    }

    fn record_miss(&mut self) {
        self.misses = self.misses.wrapping_add(1);
        self.current = (self.current / 2).max(self.limit / FULL_SPIN_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(64);

    #[test]
    fn who_finds_nothing_soon_looks_briefly() {
        let mut spin = Spin::new(LIMIT);
        for _ in 0..5 {
            assert!(!spin.spin_until(|| false));
        }
        assert_eq!(spin.current_limit(), LIMIT / 16);
        assert!(spin.spin_until(|| true));
        assert!(spin.current_limit() >= LIMIT / 16);
    }

    #[test]
    fn work_that_comes_later_than_is_looked_is_found_again() {
        let mut spin = Spin::new(LIMIT);
        let long = (1..=3 * FULL_SPIN_INTERVAL).map(|_| {
            spin.record_miss();
            spin.current_limit() == LIMIT
        });
        assert_eq!(long.filter(|is_full| *is_full).count(), 3, "one try of full length for sixteen in vain");
        spin.record_hit(LIMIT / 3);
        assert_eq!(spin.current_limit(), LIMIT / 3 * 2, "as long as it takes, and as much again");
        spin.record_hit(Duration::ZERO);
        assert_eq!(spin.current_limit(), LIMIT / 3 * 2, "what came sooner does not shorten it");
        spin.record_hit(LIMIT);
        assert_eq!(spin.current_limit(), LIMIT, "never longer than the limit");
    }
}
