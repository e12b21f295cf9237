//! State shared by the workers, the writer thread and the handles of one log: requests to the writer thread, and
//! counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;

use anello::exposition::Counter;

use super::options::AccessLogOptions;

/// State in which the writer thread must write all queued lines and exit. In state 0, the log is running.
pub(super) const FINISHING: u8 = 1;
/// State in which the writer thread must exit without writing the remaining lines.
pub(super) const ABANDONED: u8 = 2;

/// Counts of an access log since it was started.
///
/// ```
/// use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogStats};
///
/// let log = AccessLog::start(AccessLogOptions::default())?;
/// assert_eq!(log.handle().stats(), LogStats::default());
/// log.close()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Lines written to the target.
    pub written_lines: u64,
    /// Bytes written to the target.
    pub written_bytes: u64,
    /// Lines dropped because no buffer was available, and lines lost at shutdown.
    pub dropped_lines: u64,
    /// Failed attempts to open the target or write to it. Each is retried.
    pub errors: u64,
    /// Number of times the file was reopened. Several requests pending at the same time count as one.
    pub reopens: u64,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub options: AccessLogOptions,
    pub state: AtomicU8,
    pub reopen_requests: AtomicU64,
    /// Only the writer thread modifies this counter and the three after it.
    pub written_lines: Counter,
    pub written_bytes: Counter,
    pub errors: Counter,
    pub reopens: Counter,
    /// Lines that workers dropped because they had no empty buffer.
    pub dropped_lines: AtomicU64,
    /// Queued lines that could not be written.
    pub lost_lines: AtomicU64,
}

/// A message to the writer thread.
#[derive(Debug)]
pub(super) enum Message {
    Batch(Batch),
    /// The state or the number of reopen requests has changed.
    Wake,
}

/// A buffer of complete lines. Dropping a batch counts its unwritten lines as lost.
#[derive(Debug)]
pub(super) struct Batch {
    pub bytes: Vec<u8>,
    pub lines: u64,
    pub buffers: Arc<WorkerBuffers>,
}

#[derive(Debug)]
pub(super) struct WorkerBuffers {
    pub shared: Arc<Shared>,
    pub allocated: AtomicUsize,
    /// Queue from which the worker receives empty buffers.
    pub empty: SyncSender<Vec<u8>>,
}

impl Drop for Batch {
    /// Returns the buffer to the worker, or frees it if the worker has enough of them.
    fn drop(&mut self) {
        if self.lines > 0 {
            self.buffers.shared.lost_lines.fetch_add(self.lines, Ordering::Relaxed);
        }
        self.bytes.clear();
        if self.buffers.empty.try_send(std::mem::take(&mut self.bytes)).is_err() {
            self.buffers.allocated.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Shared {
    pub fn is_finishing(&self) -> bool {
        self.state.load(Ordering::Acquire) >= FINISHING
    }

    pub fn is_abandoned(&self) -> bool {
        self.state.load(Ordering::Acquire) >= ABANDONED
    }

    pub fn all_dropped_lines(&self) -> u64 {
        self.dropped_lines.load(Ordering::Relaxed) + self.lost_lines.load(Ordering::Relaxed)
    }
}
