//! A worker's side: formats lines, hands buffers over, drops what has no room. It never waits.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::Thread;

use super::line::{LineWriter, LogEntry};
use super::shared::{Batch, Shared, WorkerCounts, WorkerQueue};

/// Empty buffers that wait for a worker; more of them are freed.
const MAX_FREE_BUFFERS: usize = 8;

/// The log of one worker. Dropping it hands over what it holds.
///
/// Servers keep it as an `Option`, which is none when there is no log.
#[derive(Debug)]
pub struct WorkerLog {
    line: LineWriter,
    batch: Batch,
    /// When the first line of the batch was recorded.
    oldest_ns: u64,
    full: SyncSender<Batch>,
    empty: Receiver<Vec<u8>>,
    counts: Arc<WorkerCounts>,
    buffer_bytes: usize,
    buffers: usize,
    flush_interval_ns: u64,
    /// After `full`, so that the thread that it wakes sees that the queue has ended.
    writer: UnparkOnDrop,
}

/// Wakes a thread for the last time when it is dropped.
#[derive(Debug)]
struct UnparkOnDrop(Thread);

impl Drop for UnparkOnDrop {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

impl WorkerLog {
    pub(super) fn new(number: usize, shared: &Shared, writer: Thread) -> Self {
        let options = &shared.options;
        let counts = Arc::new(WorkerCounts::default());
        // All buffers fit: a worker that has an empty one can always hand the other over.
        let (full, full_out) = sync_channel(options.max_buffers);
        let (empty_in, empty) = sync_channel(MAX_FREE_BUFFERS);
        shared.add(WorkerQueue { full: full_out, empty: empty_in, counts: Arc::clone(&counts) });
        writer.unpark();
        counts.buffers.store(1, Ordering::Relaxed);
        let batch =
            Batch { bytes: Vec::with_capacity(options.buffer_bytes), lines: 0, counts: Arc::clone(&counts) };
        Self {
            line: LineWriter::new(options.format, options.max_field_bytes, number),
            batch,
            oldest_ns: 0,
            full,
            empty,
            counts,
            buffer_bytes: options.buffer_bytes,
            buffers: options.max_buffers,
            flush_interval_ns: u64::try_from(options.flush_interval.as_nanos()).unwrap_or(u64::MAX),
            writer: UnparkOnDrop(writer),
        }
    }

    /// Records one request. Formats it into memory and, now and then, hands a buffer over; never waits. A line for which
    /// there is no room is dropped and counted.
    pub fn record(&mut self, entry: &LogEntry<'_>) {
        let room_bytes = self.buffer_bytes.saturating_sub(self.batch.bytes.len());
        if room_bytes < self.line.bound_bytes(entry) && !self.flush_batch() {
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

    /// Hands over what is [`flush_interval`](super::AccessLogOptions::flush_interval) old at that time (nanoseconds since the Unix
    /// epoch). [`record`](Self::record) does so by itself: this is for workers that have nothing to record. Call it once in
    /// such a time, say from the worker's ticker.
    pub fn flush_old(&mut self, unix_time_ns: u64) {
        // The clock may have been set back.
        if self.batch.lines > 0 && unix_time_ns.abs_diff(self.oldest_ns) >= self.flush_interval_ns {
            self.flush_batch();
        }
    }

    /// Hands over what the worker holds, for it is to be seen. False if all buffers wait for the disk: then the worker
    /// keeps it.
    pub fn flush(&mut self) -> bool {
        self.batch.lines == 0 || self.flush_batch()
    }

    /// Lines that this worker has dropped.
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

    /// Goes on with an empty buffer. False if there is none.
    #[cold]
    fn flush_batch(&mut self) -> bool {
        let Some(empty) = self.empty_buffer() else { return false };
        self.send_batch(empty);
        true
    }

    /// Hands over what there is, and goes on in another buffer.
    fn send_batch(&mut self, next: Vec<u8>) {
        let next = Batch { bytes: next, lines: 0, counts: Arc::clone(&self.counts) };
        match self.full.try_send(mem::replace(&mut self.batch, next)) {
            Ok(()) => self.writer.0.unpark(),
            // The batch counts its lines as lost. The queue holds all buffers: it is never full.
            Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => drop(batch),
        }
    }

    fn empty_buffer(&self) -> Option<Vec<u8>> {
        match self.empty.try_recv() {
            Ok(buffer) => return Some(buffer),
            // The log has ended: lines are dropped.
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        if self.counts.buffers.load(Ordering::Relaxed) >= self.buffers {
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
