//! Worker side of the access log: formats lines, queues full buffers for the writer thread, and drops lines if no
//! buffer is available. Never blocks.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, sync_channel};

use super::line::{LineWriter, LogEntry};
use super::shared::{Batch, Message, Shared, WorkerBuffers};

/// Maximum number of empty buffers kept for reuse by one worker. Further buffers are freed.
const MAX_FREE_BUFFERS: usize = 8;

/// The access log of one worker. Dropping it flushes its buffer.
///
/// ```
#[doc = access_log!()]
/// let mut worker = log.worker(0);
/// worker.record(&entry);
/// drop(worker);
/// log.close()?;
/// assert_eq!(std::fs::read_to_string(path)?.lines().count(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct WorkerLog {
    line: LineWriter,
    batch: Batch,
    /// Time of the first line in the batch, in nanoseconds since the Unix epoch.
    oldest_ns: u64,
    messages: Sender<Message>,
    empty: Receiver<Vec<u8>>,
    dropped_lines: u64,
    buffer_bytes: usize,
    flush_interval_ns: u64,
}

impl WorkerLog {
    pub(super) fn new(index: usize, shared: &Arc<Shared>, messages: Sender<Message>) -> Self {
        let options = &shared.options;
        let (returned, empty) = sync_channel(MAX_FREE_BUFFERS);
        let (shared, allocated) = (Arc::clone(shared), AtomicUsize::new(1));
        let buffers = Arc::new(WorkerBuffers { shared, allocated, empty: returned });
        Self {
            line: LineWriter::new(options.format, options.max_field_bytes, index),
            batch: Batch { bytes: Vec::with_capacity(options.buffer_bytes), lines: 0, buffers },
            oldest_ns: 0,
            messages,
            empty,
            dropped_lines: 0,
            buffer_bytes: options.buffer_bytes,
            flush_interval_ns: u64::try_from(options.flush_interval.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Records one request. Formats the line into the buffer of the worker, and flushes the buffer when it is full or its
    /// first line is too old. Never blocks. If no buffer is available, the line is dropped and counted.
    ///
    /// ```
    #[doc = access_log!()]
    /// let mut worker = log.worker(0);
    /// worker.record(&entry);
    /// worker.record(&entry);
    /// assert_eq!(worker.buffered_lines(), 2);
    /// # drop(worker);
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn record(&mut self, entry: &LogEntry<'_>) {
        let free_bytes = self.buffer_bytes.saturating_sub(self.batch.bytes.len());
        if free_bytes < self.line.max_entry_bytes(entry) && !self.flush_batch() {
            self.dropped_lines += 1;
            self.batch.buffers.shared.dropped_lines.fetch_add(1, Ordering::Relaxed);
            return;
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
    /// so that the lines of an idle worker are written as well.
    ///
    /// ```
    #[doc = access_log!()]
    /// let mut worker = log.worker(0);
    /// worker.record(&entry);
    /// worker.flush_old(entry.unix_time_ns + 1);
    /// assert_eq!(worker.buffered_lines(), 1);
    /// worker.flush_old(entry.unix_time_ns + 1_000_000_000);
    /// assert_eq!(worker.buffered_lines(), 0);
    /// # drop(worker);
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn flush_old(&mut self, unix_time_ns: u64) {
        // Uses `abs_diff`, because the clock may have been set back.
        if self.batch.lines > 0 && unix_time_ns.abs_diff(self.oldest_ns) >= self.flush_interval_ns {
            self.flush_batch();
        }
    }

    /// Flushes the buffer immediately. Returns `false` if all buffers are waiting to be written, or the log is closed;
    /// the lines then stay in the buffer.
    ///
    /// ```
    #[doc = access_log!()]
    /// let mut worker = log.worker(0);
    /// worker.record(&entry);
    /// assert!(worker.flush());
    /// assert_eq!(worker.buffered_lines(), 0);
    /// # drop(worker);
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn flush(&mut self) -> bool {
        self.batch.lines == 0 || self.flush_batch()
    }

    /// Returns the number of lines that this worker has dropped.
    ///
    /// ```
    #[doc = access_log!()]
    /// let mut worker = log.worker(0);
    /// worker.record(&entry);
    /// assert_eq!(worker.dropped_lines(), 0);
    /// # drop(worker);
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn dropped_lines(&self) -> u64 {
        self.dropped_lines
    }

    /// Returns the number of lines that have not been flushed.
    ///
    /// ```
    #[doc = access_log!()]
    /// let mut worker = log.worker(0);
    /// assert_eq!(worker.buffered_lines(), 0);
    /// worker.record(&entry);
    /// assert_eq!(worker.buffered_lines(), 1);
    /// # drop(worker);
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn buffered_lines(&self) -> u64 {
        self.batch.lines
    }

    /// Returns the number of buffers allocated for this worker.
    ///
    /// ```
    #[doc = access_log!()]
    /// let worker = log.worker(0);
    /// assert_eq!(worker.buffers(), 1);
    /// # drop(worker);
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn buffers(&self) -> usize {
        self.batch.buffers.allocated.load(Ordering::Relaxed)
    }

    /// Queues the batch for the writer thread and starts a new one. Returns `false` if no empty buffer is available or
    /// the log is closed.
    #[cold]
    fn flush_batch(&mut self) -> bool {
        self.take_empty_buffer().is_some_and(|empty| self.send_batch(empty))
    }

    /// Queues the batch for the writer thread, and starts a new batch in the buffer `empty`. Returns `false` and
    /// changes nothing if the log is closed.
    fn send_batch(&mut self, empty: Vec<u8>) -> bool {
        let next = Batch { bytes: empty, lines: 0, buffers: Arc::clone(&self.batch.buffers) };
        let sent = self.messages.send(Message::Batch(mem::replace(&mut self.batch, next)));
        let Err(SendError(Message::Batch(batch))) = sent else { return true };
        self.batch = batch;
        false
    }

    fn take_empty_buffer(&self) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.empty.try_recv() {
            return Some(buffer);
        }
        let WorkerBuffers { shared, allocated, .. } = &*self.batch.buffers;
        if allocated.load(Ordering::Relaxed) >= shared.options.max_buffers {
            return None;
        }
        allocated.fetch_add(1, Ordering::Relaxed);
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
