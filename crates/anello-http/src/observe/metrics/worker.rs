//! Counters of one worker: a block of memory that only the worker writes to and that scrapes read.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::histogram::Histogram;
use super::kinds::{
    CloseReason, METHODS, ParseErrorKind, RejectReason, STATUS_CLASSES, method_index, status_class,
};
use super::sample::Sample;
use crate::h1::Method;
use crate::observe::counter::Counter;

/// Maximum number of samples that a worker can publish. Further samples are ignored.
pub const MAX_SAMPLES: usize = 64;

/// Aligned to two cache lines, because processors prefetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Block {
    pub(super) requests: [[Counter; STATUS_CLASSES.len()]; METHODS.len()],
    pub(super) durations: Histogram,
    pub(super) received_bytes: Counter,
    pub(super) sent_bytes: Counter,
    pub(super) cache_hits: Counter,
    pub(super) cache_misses: Counter,
    pub(super) cache_bytes: Counter,
    pub(super) accepted: Counter,
    pub(super) closed: [Counter; CloseReason::COUNT],
    pub(super) rejected: [Counter; RejectReason::COUNT],
    pub(super) parse_errors: [Counter; ParseErrorKind::COUNT],
    samples: Mutex<Vec<Sample>>,
    is_claimed: AtomicBool,
}

/// Handle with which one worker updates its counters. Each call takes a few instructions. No method blocks, and only
/// [`publish`](Self::publish) allocates or uses a lock.
#[derive(Debug)]
pub struct WorkerMetrics {
    block: Arc<Block>,
    /// Makes the type `Send` but not `Sync`: the handle can move to another thread, but there is only one writer.
    not_sync: PhantomData<Cell<()>>,
}

impl WorkerMetrics {
    /// Returns `None` if the block already has a handle.
    pub(super) fn claim(block: &Arc<Block>) -> Option<Self> {
        // Acquire pairs with the release in `drop`: a new handle sees the counts of its predecessor.
        let was_claimed = block.is_claimed.swap(true, Ordering::AcqRel);
        (!was_claimed).then(|| Self { block: Arc::clone(block), not_sync: PhantomData })
    }

    /// Records a completed or aborted request. [`Server`](crate::Server) measures the duration from the end of the
    /// request head until the response has been queued for sending.
    pub fn record_request(&self, method: Method, status: u16, duration_ns: u64) {
        self.record_untimed_request(method, status);
        self.block.durations.record(duration_ns);
    }

    /// Records a request that is not part of the duration histogram, such as one that could not be parsed.
    pub fn record_untimed_request(&self, method: Method, status: u16) {
        self.block.requests[method_index(method)][status_class(status)].add(1);
    }

    /// Adds bytes received from a peer: request heads, bodies and any other data (plaintext, with TLS).
    pub fn add_received_bytes(&self, bytes: u64) {
        self.block.received_bytes.add(bytes);
    }

    /// Adds response body bytes sent to a peer.
    pub fn add_sent_bytes(&self, bytes: u64) {
        self.block.sent_bytes.add(bytes);
    }

    /// Records an accepted connection. Call [`connection_closed`](Self::connection_closed) when it closes, on this
    /// worker or another.
    pub fn connection_accepted(&self) {
        self.block.accepted.add(1);
    }

    /// Records a rejected connection. It is counted neither as accepted nor as closed.
    pub fn connection_rejected(&self, reason: RejectReason) {
        self.block.rejected[reason as usize].add(1);
    }

    /// Records that an accepted connection was closed.
    pub fn connection_closed(&self, reason: CloseReason) {
        self.block.closed[reason as usize].add(1);
    }

    /// Records a request that was rejected with a parse error. If a response was sent, also call
    /// [`record_untimed_request`](Self::record_untimed_request).
    pub fn parse_error(&self, kind: ParseErrorKind) {
        self.block.parse_errors[kind as usize].add(1);
    }

    /// Records a file served from the cache: the entry was fresh or was revalidated successfully.
    pub fn cache_hit(&self) {
        self.block.cache_hits.add(1);
    }

    /// Records a cacheable file that was not in the cache, or whose entry was outdated.
    pub fn cache_miss(&self) {
        self.block.cache_misses.add(1);
    }

    /// Sets the current size of the worker's cache.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.block.cache_bytes.set(bytes);
    }

    /// Publishes additional samples for the worker, such as [`driver_samples`](super::driver_samples), which replace the
    /// previous ones. Samples beyond [`MAX_SAMPLES`] are ignored. A scrape reports the last published samples, so call
    /// this periodically, for example once per second.
    ///
    /// Never blocks: returns `false` without publishing if a scrape is reading the samples. Allocates on the first call.
    pub fn publish(&self, samples: &[Sample]) -> bool {
        let mut published = match self.block.samples.try_lock() {
            Ok(published) => published,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        published.clear();
        published.extend_from_slice(&samples[..samples.len().min(MAX_SAMPLES)]);
        true
    }
}

impl Drop for WorkerMetrics {
    fn drop(&mut self) {
        self.block.is_claimed.store(false, Ordering::Release);
    }
}

impl Block {
    pub(super) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_aligned_to_two_cache_lines() {
        assert_eq!((align_of::<Block>(), size_of::<Block>()), (128, 896));
    }

    #[test]
    fn publish_during_scrape_returns_false() {
        let block = Arc::new(Block::default());
        let worker = WorkerMetrics::claim(&block).unwrap();
        let sample = Sample::counter("turns", "Turns.", 7);
        assert!(worker.publish(&[sample]));
        let guard = block.samples.lock().unwrap();
        assert!(!worker.publish(&[]));
        drop(guard);
        assert_eq!(block.samples(), [sample]);
        assert!(worker.publish(&[sample; MAX_SAMPLES + 1]));
        assert_eq!(block.samples().len(), MAX_SAMPLES);
    }
}
