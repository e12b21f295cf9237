//! What one worker counts: a block of memory of its own, which it alone writes and a scrape reads.
//!
//! A count is raised by a load and a store, not by an atomic addition: there is one writer, and its cache line is its own.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::histogram::Histogram;
use super::kinds::{CloseReason, MethodClass, ParseErrorKind, RejectReason, STATUS_CLASSES, status_class};
use super::sample::Sample;

/// Most samples that a worker may publish; further ones are left out.
pub const MAX_SAMPLES: usize = 64;

/// One worker's counts. Two cache lines are its least distance to its neighbours, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Block {
    pub(super) requests: [[AtomicU64; STATUS_CLASSES.len()]; MethodClass::ALL.len()],
    pub(super) durations: Histogram,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) cache_hits: AtomicU64,
    pub(super) cache_misses: AtomicU64,
    pub(super) cache_bytes: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) closed: [AtomicU64; CloseReason::ALL.len()],
    pub(super) refused: [AtomicU64; RejectReason::ALL.len()],
    pub(super) refusals: [AtomicU64; ParseErrorKind::ALL.len()],
    samples: Mutex<Vec<Sample>>,
    /// Whether there is a `WorkerMetrics` for it.
    is_taken: AtomicBool,
}

/// The counts of one worker, for that worker to raise. Every call is a few instructions; none waits, allocates or locks
/// but [`publish`](Self::publish).
#[derive(Debug)]
pub struct WorkerMetrics {
    block: Arc<Block>,
    /// One writer: it may move to another thread, and must not be shared with one.
    one_thread: PhantomData<Cell<()>>,
}

impl WorkerMetrics {
    /// None while there is another for the same block.
    pub(super) fn take(block: &Arc<Block>) -> Option<Self> {
        // Acquire and release: who takes it after another goes on from the counts that the other left.
        let was_taken = block.is_taken.swap(true, Ordering::AcqRel);
        (!was_taken).then(|| Self { block: Arc::clone(block), one_thread: PhantomData })
    }

    /// A request was answered, or given up: its method, the status of the answer, and how long it took. A
    /// [`Server`](crate::Server) says from when its head had been read to when its answer had been handed over to be sent.
    pub fn record_request(&self, method: MethodClass, status: u16, duration_ns: u64) {
        self.record_untimed_request(method, status);
        self.block.durations.record(duration_ns);
    }

    /// A request was answered of which nobody knows how long it took, such as one that could not be read: it is not among
    /// the durations.
    pub fn record_untimed_request(&self, method: MethodClass, status: u16) {
        add(&self.block.requests[method as usize][status_class(status)], 1);
    }

    /// Bytes came from a peer: heads, bodies and what else it sends, under TLS as plaintext.
    pub fn add_received_bytes(&self, bytes: u64) {
        add(&self.block.received_bytes, bytes);
    }

    /// Bytes of an answer's body went to a peer.
    pub fn add_sent_bytes(&self, bytes: u64) {
        add(&self.block.sent_bytes, bytes);
    }

    /// A connection was accepted and is served. Tell its end by [`connection_closed`](Self::connection_closed), on the same worker or another.
    pub fn connection_accepted(&self) {
        add(&self.block.accepted, 1);
    }

    /// A connection was not served. It counts neither as accepted nor as closed.
    pub fn connection_rejected(&self, reason: RejectReason) {
        add(&self.block.refused[reason as usize], 1);
    }

    /// A connection that was accepted has been closed.
    pub fn connection_closed(&self, reason: CloseReason) {
        add(&self.block.closed[reason as usize], 1);
    }

    /// A request was refused by the protocol. Count it as an [`record_untimed_request`](Self::record_untimed_request), too, when it was
    /// answered.
    pub fn parse_error(&self, kind: ParseErrorKind) {
        add(&self.block.refusals[kind as usize], 1);
    }

    /// A file was answered from the cache, where it still counted as true or was found to be.
    pub fn cache_hit(&self) {
        add(&self.block.cache_hits, 1);
    }

    /// A file that may be cached was not in the cache, or no longer as it is.
    pub fn cache_miss(&self) {
        add(&self.block.cache_misses, 1);
    }

    /// The worker's cache holds so many bytes now.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.block.cache_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Publishes what else the worker counts, such as [`driver_samples`](super::driver_samples). A scrape shows what was
    /// published last: call it now and then, say once a second. Never waits: while a scrape reads, nothing is published and
    /// this says false. Allocates the first time. Samples beyond [`MAX_SAMPLES`] are left out.
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
        self.block.is_taken.store(false, Ordering::Release);
    }
}

impl Block {
    /// What was published last.
    pub(super) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Raises a count that this thread alone writes.
pub(super) fn add(count: &AtomicU64, number: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_cache_lines_of_its_own() {
        assert_eq!((align_of::<Block>(), size_of::<Block>()), (128, 896));
    }

    #[test]
    fn there_is_one_writer_of_a_block_at_a_time() {
        let block = Arc::new(Block::default());
        let first = WorkerMetrics::take(&block).unwrap();
        assert!(WorkerMetrics::take(&block).is_none());
        first.add_received_bytes(5);
        drop(first);
        let second = WorkerMetrics::take(&block).unwrap();
        second.add_received_bytes(6);
        assert_eq!(block.received_bytes.load(Ordering::Relaxed), 11);
    }

    #[test]
    fn publishing_does_not_wait_for_a_scrape() {
        let block = Arc::new(Block::default());
        let worker = WorkerMetrics::take(&block).unwrap();
        let sample = Sample::counter("turns", "Turns.", 7);
        assert!(worker.publish(&[sample]));
        let reading = block.samples.lock().unwrap();
        assert!(!worker.publish(&[]));
        drop(reading);
        assert_eq!(block.samples(), [sample]);
        assert!(worker.publish(&[sample; MAX_SAMPLES + 1]));
        assert_eq!(block.samples().len(), MAX_SAMPLES);
    }
}
