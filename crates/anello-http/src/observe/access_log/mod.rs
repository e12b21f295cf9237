//! The access log: one line per request, written by a dedicated thread, so that workers never wait for a disk.
//!
//! ```text
//!   worker 0: WorkerLog ── full or old buffers ──▶ ┐
//!             formats     ◀── empty buffers ────── ┤  thread "anello-log" ── write(2) ──▶ file or stdout
//!   worker 1: WorkerLog ──────────────────────────▶┘
//! ```
//!
//! - Each worker formats lines into its own buffer. When the next line might not fit, or the first line is older than
//!   [`flush_interval`](AccessLogOptions::flush_interval), the worker flushes: it queues the buffer for the writer
//!   thread and continues with an empty one. Full and empty buffers travel in bounded lock-free queues. Once enough
//!   buffers exist for the speed of the disk, nothing is allocated.
//! - A worker has at most [`max_buffers`](AccessLogOptions::max_buffers). If all of them are waiting to be written, new
//!   lines are dropped and counted in [`LogStats::dropped_lines`].
//! - If the file cannot be written, the writer thread reports this through `tracing` (at most once per minute), counts
//!   the error, and retries from the byte where it stopped. No line is torn, and buffered lines are lost only when the
//!   log is closed while the error persists.
//! - The length of a line is bounded: see [`max_field_bytes`](AccessLogOptions::max_field_bytes). Formatting takes
//!   about 650 instructions in the common format, 1000 in the combined format and 1100 as JSON, with the fields of a
//!   typical browser.

mod escape;
mod line;
mod output;
mod shared;
mod time_text;
mod worker_log;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

pub use line::{FormattedPeer, LogEntry, LogFormat, RequestLine};
pub use shared::LogStats;
pub use worker_log::WorkerLog;

use line::LineWriter;
use output::Output;
use shared::Shared;
use writer::Writer;

/// Options of an access log: target, line format and memory limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AccessLogOptions {
    /// File or standard output.
    pub target: LogTarget,
    /// Format of the lines.
    pub format: LogFormat,
    /// Size of one buffer. Default: 32 KiB. Must be able to hold the longest possible line, which has 384 bytes plus
    /// four times [`max_field_bytes`](Self::max_field_bytes).
    pub buffer_bytes: usize,
    /// Maximum number of buffers per worker. Default: 128, which is 4 MiB with the default buffer size. Buffers are
    /// allocated on demand, and all but a few are freed when they are no longer needed. Minimum: 2, so that a worker
    /// can fill one buffer while the other is written.
    pub max_buffers: usize,
    /// Maximum size of each field with data from the peer (method, target, referer, user agent), measured after
    /// escaping. Default: 4096. Longer values are truncated and end in `...`.
    pub max_field_bytes: usize,
    /// Age at which a partly filled buffer is flushed. Default: 1 s.
    pub flush_interval: Duration,
    /// Delay before a failed write or open is retried. Default: 1 s.
    pub retry_interval: Duration,
    /// Maximum time that closing the log takes. Default: 2 s. Lines that have not been written by then are dropped.
    pub close_timeout: Duration,
}

impl Default for AccessLogOptions {
    fn default() -> Self {
        Self {
            target: LogTarget::Stdout,
            format: LogFormat::default(),
            buffer_bytes: 32 * 1024,
            max_buffers: 128,
            max_field_bytes: 4096,
            flush_interval: Duration::from_secs(1),
            retry_interval: Duration::from_secs(1),
            close_timeout: Duration::from_secs(2),
        }
    }
}

impl AccessLogOptions {
    fn validate(&self) -> io::Result<()> {
        let max_line_bytes = LineWriter::max_line_bytes(self.max_field_bytes);
        if self.buffer_bytes < max_line_bytes {
            return Err(invalid_input(format!(
                "access log buffer too small: {} bytes (at least {max_line_bytes} required for fields of {} bytes)",
                self.buffer_bytes, self.max_field_bytes
            )));
        }
        if self.max_buffers < 2 {
            return Err(invalid_input(
                "too few access log buffers (at least 2 buffers per worker required)".into(),
            ));
        }
        Ok(())
    }
}

fn invalid_input(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Destination of the log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output. Its descriptor is duplicated when the log is started.
    Stdout,
    /// A file, opened for appending. A missing file is created with mode 0640, because log lines contain personal data.
    /// For a FIFO, lines are buffered until it has a reader.
    File(PathBuf),
}

/// A running access log.
///
/// Dropping it has the effect of [`close`](Self::close); an error is reported through `tracing`.
#[derive(Debug)]
pub struct AccessLog {
    handle: AccessLogHandle,
    /// Disconnected when the writer thread exits.
    writer_exited: Receiver<()>,
}

/// A handle to an access log that any thread can use. Clones are cheap and refer to the same log. A handle can outlive
/// the log.
#[derive(Clone, Debug)]
pub struct AccessLogHandle {
    shared: Arc<Shared>,
    writer: thread::Thread,
}

impl AccessLog {
    /// Opens the target (`open(2)`) and starts the writer thread.
    ///
    /// The writer thread inherits the CPU affinity of the caller, so start the log before pinning threads to cores.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidInput`] if the options are inconsistent, and the error of the system call if the
    /// target cannot be opened or the thread cannot be spawned. A FIFO without a reader is not an error: lines are
    /// buffered until it has one.
    pub fn start(options: AccessLogOptions) -> io::Result<Self> {
        options.validate()?;
        let output = Output::open(options.target.clone())?;
        Self::start_on(output, options)
    }

    fn start_on(output: Output, options: AccessLogOptions) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(options));
        let writer = Writer::new(output, Arc::clone(&shared));
        let (exit_guard, writer_exited) = channel::<()>();
        let thread = thread::Builder::new().name("anello-log".into()).spawn(move || {
            writer.run();
            drop(exit_guard);
        })?;
        Ok(Self { handle: AccessLogHandle { shared, writer: thread.thread().clone() }, writer_exited })
    }

    /// Returns a handle to the log.
    #[must_use]
    pub fn handle(&self) -> AccessLogHandle {
        self.handle.clone()
    }

    /// Creates the log of one worker. See [`AccessLogHandle::worker`].
    #[must_use]
    pub fn worker(&self, index: usize) -> WorkerLog {
        self.handle.worker(index)
    }

    /// Writes all flushed lines and stops the writer thread. Blocks for at most
    /// [`close_timeout`](AccessLogOptions::close_timeout).
    ///
    /// Drop every [`WorkerLog`] first, which flushes its buffer. Lines recorded afterwards are dropped and counted.
    ///
    /// # Errors
    /// Returns an error if lines could not be written in time, because writes fail or the reader of a pipe is stalled.
    /// A thread that is blocked in `write(2)` is detached.
    pub fn close(mut self) -> io::Result<()> {
        self.stop()
    }

    fn stop(&mut self) -> io::Result<()> {
        let AccessLogHandle { shared, writer } = &self.handle;
        shared.finish();
        writer.unpark();
        let timed_out =
            self.writer_exited.recv_timeout(shared.options.close_timeout) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            shared.abandon();
            writer.unpark();
        }
        match shared.lost_lines() {
            0 if !timed_out => Ok(()),
            lost => Err(io::Error::other(format!(
                "access log incomplete: {lost} queued lines lost{} (check that the target is writable)",
                if timed_out { ", more are pending because the writer is blocked" } else { "" }
            ))),
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        if self.handle.shared.is_finishing() {
            return;
        }
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "cannot close the access log");
        }
    }
}

impl AccessLogHandle {
    /// Creates the log of one worker. JSON lines contain the index of the worker.
    ///
    /// Each worker needs its own log, which has its own buffers. Once the access log is closed, all lines are dropped
    /// and counted.
    #[must_use]
    pub fn worker(&self, index: usize) -> WorkerLog {
        WorkerLog::new(index, &self.shared, self.writer.clone())
    }

    /// Requests that the file be reopened by its name, for example after log rotation has renamed it.
    ///
    /// Returns immediately. Lines that have not been written yet go to the new file. If it cannot be opened, lines
    /// still go to the old file, and the reopen is retried after [`retry_interval`](AccessLogOptions::retry_interval).
    /// If the old file ends in a partly written line, the new file receives the whole line. Has no effect on standard
    /// output.
    pub fn reopen(&self) {
        self.shared.request_reopen();
        self.writer.unpark();
    }

    /// Returns the counts since the log was started.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.shared.stats()
    }
}
