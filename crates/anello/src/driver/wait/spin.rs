//! Adaptive spinning before a blocking wait.
//!
//! A blocking wait costs a context switch in each direction, which, with a single connection, takes more time than the
//! request itself. Spinning for a short time trades CPU time for latency. When a spin finds work, the following spins
//! last at least twice as long as it took to find that work. When a spin finds none, the spin time is halved, so that
//! an idle worker spins only briefly. After every sixteenth consecutive spin without work, however, the next one runs
//! for the full time. Otherwise, work that arrives regularly but later than the current limit would never be found
//! again.

use std::io;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    current: Duration,
    /// Number of consecutive spins that found no work.
    misses: u32,
}

/// The shortest spin is the limit divided by this number, and a full spin follows after this many consecutive misses.
const FULL_SPIN_INTERVAL: u32 = 16;

impl Spin {
    pub fn new(limit: Duration) -> Self {
        Self { limit, current: limit, misses: 0 }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Calls `condition` until it returns `true` or the time limit is reached. Returns `true` if the condition was met.
    pub fn spin_until(&mut self, mut condition: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
        let (started, current_limit) = (Instant::now(), self.current_limit());
        loop {
            for _ in 0..16 {
                if condition()? {
                    self.record_hit(started.elapsed());
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= current_limit {
                self.record_miss();
                return Ok(false);
            }
        }
    }

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
    fn spin_time_shrinks_after_misses() {
        let mut spin = Spin::new(LIMIT);
        assert!((0..5).all(|_| !spin.spin_until(|| Ok(false)).unwrap()));
        assert_eq!(spin.current_limit(), LIMIT / 16);
        assert!(spin.spin_until(|| Ok(true)).unwrap());
        assert!(spin.current_limit() >= LIMIT / 16);
    }

    #[test]
    fn full_spin_recurs_after_sixteen_misses() {
        let mut spin = Spin::new(LIMIT);
        let is_full_spin = |_: &u32| {
            spin.record_miss();
            spin.current_limit() == LIMIT
        };
        assert_eq!((1..=3 * FULL_SPIN_INTERVAL).filter(is_full_spin).count(), 3, "one per sixteen misses");
        for (hit, limit, name) in [
            (LIMIT / 3, LIMIT / 3 * 2, "the limit is twice the time until the hit"),
            (Duration::ZERO, LIMIT / 3 * 2, "an earlier hit does not shorten the spin"),
            (LIMIT, LIMIT, "the spin is never longer than the configured limit"),
        ] {
            spin.record_hit(hit);
            assert_eq!(spin.current_limit(), limit, "{name}");
        }
    }
}
