//! Cached results of page-cache checks.

use std::time::{Duration, Instant};

/// Time for which the result of a residency check is valid.
///
/// Checking on every HTTP response would add 4 % to the instruction count for sending a 300 KiB file (on epoll,
/// results/large-files-instructions-6.12.txt). The kernel is unlikely to evict files that are sent this often.
const RESIDENCY_TTL: Duration = Duration::from_millis(100);

/// The range of a file that was last found in the page cache.
#[derive(Debug, Default)]
pub(super) struct ResidencyCache {
    start: u64,
    end: u64,
    /// Time of the oldest check within the range.
    since: Option<Instant>,
}

impl ResidencyCache {
    pub fn has(&self, start: u64, end: u64, now: Instant) -> bool {
        self.is_valid(now) && self.start <= start && end <= self.end
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) < RESIDENCY_TTL)
    }

    /// Records a range found in the page cache. Merges it with the previous range if they overlap or are adjacent.
    pub fn add(&mut self, start: u64, end: u64, now: Instant) {
        if start == end {
            return;
        }
        if self.is_valid(now) && start <= self.end && self.start <= end {
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
    fn cached_range_expires_and_merges_with_adjacent_ranges() {
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
        // A merged range keeps the age of its oldest part.
        assert!(!residency.has(200, 300, start + RESIDENCY_TTL));
        residency.add(500, 600, later);
        assert!(residency.has(500, 600, later) && !residency.has(100, 300, later));
    }
}
