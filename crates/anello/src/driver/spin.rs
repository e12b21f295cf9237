//! Looking for work before sleeping.
//!
//! A sleeping wait costs a context switch each way; at one connection that is more than the request itself. Looking
//! for a short while instead trades processor time for latency. The time adapts: it doubles, up to the limit, while
//! looking finds something, and halves when it does not, so that an idle worker soon sleeps at once, but for a short
//! try now and then.

use std::time::{Duration, Instant};

/// How long to look before the next wait.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    current: Duration,
}

impl Spin {
    pub fn new(limit: Duration) -> Self {
        Self { limit, current: limit }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Calls `look` until it finds something or the time is over; whether it found something.
    pub fn look(&mut self, mut look: impl FnMut() -> bool) -> bool {
        let started = Instant::now();
        loop {
            for _ in 0..16 {
                if look() {
                    self.current = (self.current * 2).min(self.limit);
                    return true;
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= self.current {
                // Never down to nothing: otherwise a worker that was idle once would not look again.
                self.current = (self.current / 2).max(self.limit / 16);
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_follows_success() {
        let limit = Duration::from_micros(64);
        let mut spin = Spin::new(limit);
        for _ in 0..20 {
            assert!(!spin.look(|| false));
        }
        assert_eq!(spin.current, limit / 16);
        for _ in 0..20 {
            assert!(spin.look(|| true));
        }
        assert_eq!(spin.current, limit);
    }
}
