//! What of a file was found in the kernel's memory lately.

use std::time::{Duration, Instant};

/// How long bytes that were found in memory count as being there. To ask the kernel for each answer takes 4 of 100
/// instructions of sending a file of 300 KiB (on epoll, results/large-files-instructions-6.12.txt), and what is sent so
/// often is the last that it forgets.
const RESIDENCY_TTL: Duration = Duration::from_millis(100);

/// One range of it.
#[derive(Debug, Default)]
pub(super) struct ResidencyCache {
    start: u64,
    end: u64,
    /// When the first of it was.
    since: Option<Instant>,
}

impl ResidencyCache {
    /// Whether all of this was found lately.
    pub fn has(&self, start: u64, end: u64, now: Instant) -> bool {
        self.is_new(now) && self.start <= start && end <= self.end
    }

    fn is_new(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) < RESIDENCY_TTL)
    }

    /// Notes what is found now, with what it adjoins.
    pub fn add(&mut self, start: u64, end: u64, now: Instant) {
        if start == end {
            return;
        }
        if self.is_new(now) && start <= self.end && self.start <= end {
            (self.start, self.end) = (self.start.min(start), self.end.max(end));
        } else {
            *self = Self { start, end, since: Some(now) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_counts_for_a_while_and_grows_by_what_adjoins_it() {
        let start = Instant::now();
        let later = start + RESIDENCY_TTL / 2;
        let mut residency = ResidencyCache::default();
        assert!(!residency.has(0, 0, start));
        residency.add(100, 200, start);
        assert!(residency.has(100, 200, later) && residency.has(150, 160, later));
        assert!(!residency.has(99, 150, later) && !residency.has(150, 201, later));
        residency.add(200, 300, later);
        residency.add(900, 900, later);
        assert!(residency.has(100, 300, later));
        // It is as old as its oldest part.
        assert!(!residency.has(200, 300, start + RESIDENCY_TTL));
        residency.add(500, 600, later);
        assert!(residency.has(500, 600, later) && !residency.has(100, 300, later));
    }
}
