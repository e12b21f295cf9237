//! State shared by the workers, the writer thread and the handles of one log: requests to the writer thread, and
//! counters.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::AccessLogOptions;

const RUNNING: u8 = 0;
const FINISHING: u8 = 1;
const ABANDONED: u8 = 2;

/// Counters of an access log since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Lines written to the target.
    pub written_lines: u64,
    /// Bytes written to the target.
    pub written_bytes: u64,
    /// Lines dropped because no buffer was available, and lines lost at shutdown.
    pub dropped_lines: u64,
    /// Failed writes and opens. Each of them is retried.
    pub errors: u64,
    /// Completed reopens. Several requests that are pending at the same time count once.
    pub reopens: u64,
}

/// Shared state of one log.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: AccessLogOptions,
    /// `RUNNING`, `FINISHING` or `ABANDONED`.
    state: AtomicU8,
    reopen_requests: AtomicU64,
    /// Only the writer thread modifies this counter and the next three.
    pub(super) written_lines: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) reopens: AtomicU64,
    /// Locked when a worker starts or stops and when counters are read, but not for individual lines.
    queues: Mutex<WorkerQueues>,
}

#[derive(Debug, Default)]
struct WorkerQueues {
    /// Queues that the writer thread has not picked up yet.
    new: Vec<WorkerQueue>,
    /// Counters of each worker, until its log has been dropped and all its lines have been written.
    counts: Vec<Arc<WorkerCounts>>,
    /// Sum of the `dropped` counters of removed workers.
    departed_dropped: u64,
    /// Sum of the `lost` counters of removed workers.
    departed_lost: u64,
}

/// The writer thread's ends of the two queues of one worker.
#[derive(Debug)]
pub(super) struct WorkerQueue {
    pub(super) full: Receiver<Batch>,
    pub(super) empty: SyncSender<Vec<u8>>,
    pub(super) counts: Arc<WorkerCounts>,
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerCounts {
    /// Lines dropped by the worker, which is the only writer of this counter.
    pub(super) dropped: AtomicU64,
    /// Queued lines that could not be written.
    pub(super) lost: AtomicU64,
    /// Allocated buffers.
    pub(super) buffers: AtomicUsize,
}

/// A buffer of complete lines. Dropping a batch counts its unwritten lines as lost.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) lines: u64,
    pub(super) counts: Arc<WorkerCounts>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.lines > 0 {
            self.counts.lost.fetch_add(self.lines, Ordering::Relaxed);
        }
    }
}

impl Shared {
    pub(super) fn new(options: AccessLogOptions) -> Self {
        Self {
            options,
            state: AtomicU8::new(RUNNING),
            reopen_requests: AtomicU64::new(0),
            written_lines: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            reopens: AtomicU64::new(0),
            queues: Mutex::default(),
        }
    }

    /// Requests that the writer thread write all queued lines and exit.
    pub(super) fn finish(&self) {
        self.state.fetch_max(FINISHING, Ordering::AcqRel);
    }

    /// Requests that the writer thread exit without writing the remaining lines.
    pub(super) fn abandon(&self) {
        self.state.store(ABANDONED, Ordering::Release);
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.state.load(Ordering::Acquire) >= FINISHING
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.state.load(Ordering::Acquire) >= ABANDONED
    }

    pub(super) fn request_reopen(&self) {
        self.reopen_requests.fetch_add(1, Ordering::Release);
    }

    pub(super) fn reopen_requests(&self) -> u64 {
        self.reopen_requests.load(Ordering::Acquire)
    }

    /// Registers the queues of a worker. The writer thread picks them up when it is unparked next. Once the log is
    /// finishing, the queues are dropped instead, which disconnects the worker.
    pub(super) fn add(&self, queue: WorkerQueue) {
        let mut queues = self.queues();
        queues.counts.push(Arc::clone(&queue.counts));
        // The writer thread locks `queues` once more after it has seen the state change: either it finds this queue, or
        // the check below sees the new state.
        if !self.is_finishing() {
            queues.new.push(queue);
        }
    }

    /// Removes and returns the queues registered since the last call.
    pub(super) fn take_new(&self) -> Vec<WorkerQueue> {
        std::mem::take(&mut self.queues().new)
    }

    /// Removes a worker whose log has been dropped and whose lines have been written. Its counts are added to the
    /// totals.
    pub(super) fn remove(&self, departed: &Arc<WorkerCounts>) {
        let mut queues = self.queues();
        queues.departed_dropped += departed.dropped.load(Ordering::Relaxed);
        queues.departed_lost += departed.lost.load(Ordering::Relaxed);
        queues.counts.retain(|counts| !Arc::ptr_eq(counts, departed));
    }

    pub(super) fn stats(&self) -> LogStats {
        LogStats {
            written_lines: self.written_lines.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            dropped_lines: self.dropped_lines(),
            errors: self.errors.load(Ordering::Relaxed),
            reopens: self.reopens.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of lines that were dropped by workers or lost by the writer thread.
    pub(super) fn dropped_lines(&self) -> u64 {
        let queues = self.queues();
        let dropped: u64 = queues.counts.iter().map(|counts| counts.dropped.load(Ordering::Relaxed)).sum();
        dropped + queues.departed_dropped + queues.lost()
    }

    /// Returns the number of queued lines that could not be written.
    pub(super) fn lost_lines(&self) -> u64 {
        self.queues().lost()
    }

    #[cfg(test)]
    pub(super) fn registered_workers(&self) -> usize {
        self.queues().counts.len()
    }

    fn queues(&self) -> MutexGuard<'_, WorkerQueues> {
        // Poisoning can be ignored: no critical section leaves the queues and counters inconsistent on a panic.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerQueues {
    fn lost(&self) -> u64 {
        self.counts.iter().map(|counts| counts.lost.load(Ordering::Relaxed)).sum::<u64>() + self.departed_lost
    }
}
