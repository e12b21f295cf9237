//! Counters that a worker publishes for scrapes on other threads.

use std::sync::{Mutex, PoisonError, TryLockError};

use crate::driver::log_event;
use crate::{MetricEntry, current_driver_metrics};

/// Maximum number of entries that a worker can publish. Further entries are ignored.
pub const MAX_PUBLISHED_ENTRIES: usize = 64;

/// The entries that a worker published last, such as the counters of its driver.
///
/// ```
/// use anello::MetricEntry;
/// use anello::exposition::{Exposition, PublishedEntries};
///
/// let worker = PublishedEntries::default();
/// assert!(worker.publish([MetricEntry::counter("errors", "Errors of the back end.", 3)]));
/// let mut text = Vec::new();
/// Exposition::new(&mut text).published([&worker]);
/// assert!(String::from_utf8_lossy(&text).ends_with("anello_driver_errors_total{worker=\"0\"} 3\n"));
/// ```
#[derive(Debug, Default)]
pub struct PublishedEntries(Mutex<Vec<MetricEntry>>);

impl PublishedEntries {
    /// Replaces the entries. Entries beyond [`MAX_PUBLISHED_ENTRIES`] are ignored. Never blocks: returns `false` without
    /// publishing if a scrape is reading the entries. Allocates on the first call.
    pub fn publish(&self, entries: impl IntoIterator<Item = MetricEntry>) -> bool {
        let mut published = match self.0.try_lock() {
            Ok(published) => published,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        published.clear();
        published.extend(entries.into_iter().take(MAX_PUBLISHED_ENTRIES));
        true
    }

    /// Publishes the counters of the driver of the current runtime, as [`publish`](Self::publish) does. If a scrape is
    /// reading the entries, logs this and keeps them. Does nothing outside a runtime.
    pub fn publish_driver(&self) {
        if let Some(driver) = current_driver_metrics()
            && !self.publish(driver.entries())
        {
            log_event!(DEBUG, "driver metrics not published: a scrape is reading them");
        }
    }

    pub(super) fn entries(&self) -> Vec<MetricEntry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_during_scrape_returns_false() {
        let worker = PublishedEntries::default();
        let entry = MetricEntry::counter("turns", "Turns.", 7);
        assert!(worker.publish([entry]));
        let guard = worker.0.lock().unwrap();
        assert!(!worker.publish([]));
        drop(guard);
        assert_eq!(worker.entries(), [entry]);
        assert!(worker.publish([entry; MAX_PUBLISHED_ENTRIES + 1]));
        assert_eq!(worker.entries().len(), MAX_PUBLISHED_ENTRIES);
    }
}
