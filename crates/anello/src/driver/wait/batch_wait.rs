//! Adaptive batching of events: the number of events for which a worker without work waits.
//!
//! Waking a worker for every event costs a context switch each time. With a maximum delay, the worker waits for several
//! events instead, and the kernel wakes it when they have arrived or when the delay has passed. The number of events
//! adapts: it is set to the number of events found, and increased by a quarter after sixteen consecutive waits that found
//! as many events as expected. Only the waits after an increase can therefore last for the whole delay, and a worker that
//! finds one event at a time, as with a single client, waits for one event and is never delayed.

use std::time::Duration;

/// After this many consecutive waits that found as many events as expected, the next one waits for more events.
const PROBE_INTERVAL: u32 = 16;

#[derive(Debug)]
pub(crate) struct BatchWait {
    pub max_delay_us: u32,
    /// Number of events for which the next wait waits. Always one if batching is off.
    target: u32,
    /// Number of consecutive waits that found as many events as expected.
    hits: u32,
}

impl BatchWait {
    pub fn new(max_delay: Duration) -> Self {
        Self { max_delay_us: max_delay.as_micros().try_into().unwrap_or(u32::MAX), target: 1, hits: 0 }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.max_delay_us != 0
    }

    #[inline]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Adapts the target to the number of events that a wait has found.
    pub fn record(&mut self, found: u32) {
        if found != self.target {
            (self.target, self.hits) = (found.max(1), 0);
        } else if self.target > 1 {
            self.hits += 1;
            if self.hits == PROBE_INTERVAL {
                (self.target, self.hits) = (self.target + self.target.div_ceil(4), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the target after each of `waits` waits, during which at most `arriving` events arrive.
    fn targets(batch: &mut BatchWait, arriving: u32, waits: usize) -> Vec<u32> {
        let mut wait = || {
            batch.record(batch.target().min(arriving));
            batch.target()
        };
        (0..waits).map(|_| wait()).collect()
    }

    #[test]
    fn single_client_is_never_delayed() {
        let mut batch = BatchWait::new(Duration::from_micros(100));
        assert!(batch.is_on());
        assert_eq!(targets(&mut batch, 1, 100), [1; 100]);
    }

    #[test]
    fn target_follows_number_of_events() {
        let mut batch = BatchWait::new(Duration::from_micros(100));
        // The worker was busy when these events arrived.
        batch.record(8);
        assert_eq!(batch.target(), 8);
        let targets_of_50 = targets(&mut batch, 50, 400);
        assert!(targets_of_50.contains(&50), "{targets_of_50:?}");
        let delayed = targets_of_50.iter().rev().take(170).filter(|target| **target > 50).count();
        assert_eq!(delayed, 10, "one of 17 waits expects more than arrive");
        // Two waits later, the remaining client is no longer delayed.
        assert_eq!(targets(&mut batch, 1, 2)[1], 1);
        batch.record(0);
        assert_eq!(batch.target(), 1, "a wait that found no event");
    }

    #[test]
    fn delay_of_zero_disables_batching() {
        assert!(!BatchWait::new(Duration::ZERO).is_on());
        assert!(!BatchWait::new(Duration::from_nanos(999)).is_on());
        assert_eq!(BatchWait::new(Duration::MAX).max_delay_us, u32::MAX);
    }
}
