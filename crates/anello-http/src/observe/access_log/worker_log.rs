//! Worker side of the access log: formats lines, queues full buffers for the writer thread, and drops lines if no
//! buffer is available. Never blocks.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::Thread;

use super::line::{LineWriter, LogEntry};
use super::shared::{Batch, Shared, WorkerCounts, WorkerQueue};

/// Maximum number of empty buffers kept for reuse by one worker. Further buffers are freed.
const MAX_FREE_BUFFERS: usize = 8;

/// The access log of one worker. Dropping it flushes its buffer.
#[derive(Debug)]
pub struct WorkerLog {
    line: LineWriter,
    batch: Batch,
    /// Time of the first line of the batch, in nanoseconds since the Unix epoch.
    oldest_ns: u64,
    full: SyncSender<Batch>,
    empty: Receiver<Vec<u8>>,
    counts: Arc<WorkerCounts>,
    buffer_bytes: usize,
    max_buffers: usize,
    flush_interval_ns: u64,
    /// Declared after `full`, and therefore dropped after it: the writer thread wakes up and finds the queue
    /// disconnected.
    writer: UnparkOnDrop,
}

/// Unparks a thread when dropped.
#[derive(Debug)]
struct UnparkOnDrop(Thread);

impl Drop for UnparkOnDrop {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

impl WorkerLog {
    pub(super) fn new(index: usize, shared: &Shared, writer: Thread) -> Self {
        let options = &shared.options;
        let counts = Arc::new(WorkerCounts::default());
        // The queue has capacity for all buffers, so sending a full buffer never fails for lack of space.
        let (full, full_receiver) = sync_channel(options.max_buffers);
        let (empty_sender, empty) = sync_channel(MAX_FREE_BUFFERS);
        shared.add(WorkerQueue { full: full_receiver, empty: empty_sender, counts: Arc::clone(&counts) });
        writer.unpark();
        counts.buffers.store(1, Ordering::Relaxed);
        let batch =
            Batch { bytes: Vec::with_capacity(options.buffer_bytes), lines: 0, counts: Arc::clone(&counts) };
        Self {
            line: LineWriter::new(options.format, options.max_field_bytes, index),
            batch,
            oldest_ns: 0,
            full,
            empty,
            counts,
            buffer_bytes: options.buffer_bytes,
            max_buffers: options.max_buffers,
            flush_interval_ns: u64::try_from(options.flush_interval.as_nanos()).unwrap_or(u64::MAX),
            writer: UnparkOnDrop(writer),
        }
    }

    /// Records one request.
    ///
    /// Formats the line into the buffer of the worker, and flushes the buffer when it is full or old. Never blocks. If
    /// no buffer is available, the line is dropped and counted.
    pub fn record(&mut self, entry: &LogEntry<'_>) {
        let free_bytes = self.buffer_bytes.saturating_sub(self.batch.bytes.len());
        if free_bytes < self.line.max_entry_bytes(entry) && !self.flush_batch() {
            let dropped = self.counts.dropped.load(Ordering::Relaxed);
            return self.counts.dropped.store(dropped + 1, Ordering::Relaxed);
        }
        if self.batch.lines == 0 {
            self.oldest_ns = entry.unix_time_ns;
        }
        self.line.push(entry, &mut self.batch.bytes);
        self.batch.lines += 1;
        self.flush_old(entry.unix_time_ns);
    }

    /// Flushes the buffer if its first line is at least [`flush_interval`](super::AccessLogOptions::flush_interval)
    /// old. `unix_time_ns` is the current time in nanoseconds since the Unix epoch.
    ///
    /// [`record`](Self::record) does this automatically. Call this method about once per flush interval from a timer,
    /// so that the lines of an idle worker are written too.
    pub fn flush_old(&mut self, unix_time_ns: u64) {
        // `abs_diff`, because the clock can have been set back.
        if self.batch.lines > 0 && unix_time_ns.abs_diff(self.oldest_ns) >= self.flush_interval_ns {
            self.flush_batch();
        }
    }

    /// Flushes the buffer immediately. Returns `false` if all buffers are waiting to be written; the lines then stay in
    /// the buffer.
    pub fn flush(&mut self) -> bool {
        self.batch.lines == 0 || self.flush_batch()
    }

    /// Returns the number of lines that this worker has dropped.
    #[must_use]
    pub fn dropped_lines(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn buffered_lines(&self) -> u64 {
        self.batch.lines
    }

    #[cfg(test)]
    pub(super) fn buffers(&self) -> usize {
        self.counts.buffers.load(Ordering::Relaxed)
    }

    /// Queues the batch for the writer thread and starts a new one. Returns `false` if no empty buffer is available.
    #[cold]
    fn flush_batch(&mut self) -> bool {
        let Some(empty) = self.take_empty_buffer() else { return false };
        self.send_batch(empty);
        true
    }

    /// Queues the batch for the writer thread, and starts a new batch in the buffer `next`.
    fn send_batch(&mut self, next: Vec<u8>) {
        let next = Batch { bytes: next, lines: 0, counts: Arc::clone(&self.counts) };
        match self.full.try_send(mem::replace(&mut self.batch, next)) {
            Ok(()) => self.writer.0.unpark(),
            // Dropping the batch counts its lines as lost. `Full` cannot occur: the queue has capacity for all buffers.
            Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => drop(batch),
        }
    }

    fn take_empty_buffer(&self) -> Option<Vec<u8>> {
        match self.empty.try_recv() {
            Ok(buffer) => return Some(buffer),
            // The log is closed.
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        if self.counts.buffers.load(Ordering::Relaxed) >= self.max_buffers {
            return None;
        }
        self.counts.buffers.fetch_add(1, Ordering::Relaxed);
        Some(Vec::with_capacity(self.buffer_bytes))
    }
}

impl Drop for WorkerLog {
    fn drop(&mut self) {
        if self.batch.lines > 0 {
            self.send_batch(Vec::new());
        }
    }
}
