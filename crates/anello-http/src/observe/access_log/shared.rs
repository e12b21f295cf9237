//! What the workers, the writing thread and the handles of one log have in common: wishes and counts.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::AccessLogOptions;

const RUNNING: u8 = 0;
const FINISHING: u8 = 1;
const ABANDONED: u8 = 2;

/// Counts of a log since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Lines written out.
    pub written_lines: u64,
    /// Bytes written out.
    pub written_bytes: u64,
    /// Lines that no buffer had room for, and those lost at the end.
    pub dropped_lines: u64,
    /// Writes and opens that failed; each is tried again.
    pub errors: u64,
    /// Wishes to open the file anew that were fulfilled; several at once count as one.
    pub reopens: u64,
}

/// One per log.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: AccessLogOptions,
    /// `RUNNING`, `FINISHING` or `ABANDONED`.
    stage: AtomicU8,
    reopen_requests: AtomicU64,
    /// Written by the writing thread alone.
    pub(super) written_lines: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) reopens: AtomicU64,
    /// Taken when a worker starts or ends and when somebody asks for counts, never for a line.
    queues: Mutex<WorkerQueues>,
}

#[derive(Debug, Default)]
struct WorkerQueues {
    /// Of workers that the writing thread does not know yet.
    new: Vec<WorkerQueue>,
    /// Counts of each worker, until its log has been dropped and all its lines are written.
    counts: Vec<Arc<WorkerCounts>>,
    /// Counts of workers that are gone.
    departed_dropped: u64,
    departed_lost: u64,
}

/// The writing thread's ends of the queues of one worker.
#[derive(Debug)]
pub(super) struct WorkerQueue {
    pub(super) full: Receiver<Batch>,
    pub(super) empty: SyncSender<Vec<u8>>,
    pub(super) counts: Arc<WorkerCounts>,
}

/// Counts of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerCounts {
    /// Lines that the worker dropped; it alone writes this.
    pub(super) dropped: AtomicU64,
    /// Lines that were handed over and could not be written.
    pub(super) lost: AtomicU64,
    /// Buffers that exist.
    pub(super) buffers: AtomicUsize,
}

/// Lines on their way. Dropped before it is written, it counts them as lost.
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
            stage: AtomicU8::new(RUNNING),
            reopen_requests: AtomicU64::new(0),
            written_lines: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            reopens: AtomicU64::new(0),
            queues: Mutex::default(),
        }
    }

    /// No more lines are to come.
    pub(super) fn finish(&self) {
        self.stage.fetch_max(FINISHING, Ordering::AcqRel);
    }

    /// Nobody waits for lines any more.
    pub(super) fn abandon(&self) {
        self.stage.store(ABANDONED, Ordering::Release);
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= FINISHING
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= ABANDONED
    }

    pub(super) fn request_reopen(&self) {
        self.reopen_requests.fetch_add(1, Ordering::Release);
    }

    pub(super) fn reopen_requests(&self) -> u64 {
        self.reopen_requests.load(Ordering::Acquire)
    }

    /// Makes the worker's queues known to the writing thread, which looks when it is woken next. After the end there is
    /// nobody to look, and the queues end here.
    pub(super) fn add(&self, queue: WorkerQueue) {
        let mut queues = self.queues();
        queues.counts.push(Arc::clone(&queue.counts));
        // The writing thread takes the lock once more after it has seen the end: either it finds this lane, or this sees
        // the end.
        if !self.is_finishing() {
            queues.new.push(queue);
        }
    }

    /// The queues of workers that have started since the last call.
    pub(super) fn take_new(&self) -> Vec<WorkerQueue> {
        std::mem::take(&mut self.queues().new)
    }

    /// A worker is gone and its lines are written: only its counts remain.
    pub(super) fn remove(&self, gone: &Arc<WorkerCounts>) {
        let mut queues = self.queues();
        queues.departed_dropped += gone.dropped.load(Ordering::Relaxed);
        queues.departed_lost += gone.lost.load(Ordering::Relaxed);
        queues.counts.retain(|counts| !Arc::ptr_eq(counts, gone));
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

    /// All lines that were recorded and are not and will not be written.
    pub(super) fn dropped_lines(&self) -> u64 {
        let queues = self.queues();
        let dropped: u64 = queues.counts.iter().map(|counts| counts.dropped.load(Ordering::Relaxed)).sum();
        dropped + queues.departed_dropped + queues.lost()
    }

    /// Those of them that had been handed over.
    pub(super) fn lost_lines(&self) -> u64 {
        self.queues().lost()
    }

    #[cfg(test)]
    pub(super) fn known_workers(&self) -> usize {
        self.queues().counts.len()
    }

    fn queues(&self) -> MutexGuard<'_, WorkerQueues> {
        // Counts and queues are whole whenever the lock is free, whoever panicked.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerQueues {
    fn lost(&self) -> u64 {
        self.counts.iter().map(|counts| counts.lost.load(Ordering::Relaxed)).sum::<u64>() + self.departed_lost
    }
}
