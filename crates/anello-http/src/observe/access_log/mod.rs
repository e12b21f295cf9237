//! The access log: one line a request, written by a thread of its own, so that no worker ever waits for a disk.
//!
//! ```text
//!   worker 0: WorkerLog ── full or old buffers ──▶ ┐
//!             formats     ◀── empty buffers ────── ┤  thread "anello-log" ── write(2) ──▶ file or stdout
//!   worker 1: WorkerLog ──────────────────────────▶┘
//! ```
//!
//! - A worker formats lines into a buffer of its own. When the next line might not fit, or the first one is older than
//!   [`flush_interval`](AccessLogOptions::flush_interval), it hands the buffer over and goes on with an empty one. Both ways are
//!   bounded queues without locks; nothing is allocated once there are as many buffers as the disk's pace needs.
//! - A worker has at most [`max_buffers`](AccessLogOptions::max_buffers). When all of them wait for the disk, its new lines are
//!   dropped and counted: [`LogStats::dropped_lines`].
//! - When the file cannot be written, the thread tells so once through `tracing`, counts, and tries again from the byte
//!   where it stopped: no line is torn, and none that a buffer holds is lost but at the end of the log.
//! - A line is bounded: see [`max_field_bytes`](AccessLogOptions::max_field_bytes). It costs a worker some 650 instructions in the
//!   common format, 1000 in the combined one and 1100 as JSON, with the fields that a browser sends.

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

/// Where lines go, how they look, and the limits of what waits in memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AccessLogOptions {
    /// Where lines go.
    pub target: LogTarget,
    /// How they look.
    pub format: LogFormat,
    /// Bytes of one buffer: 32 KiB. At least as many as the longest line may have: 384 and four times `field_bytes`.
    pub buffer_bytes: usize,
    /// Most buffers of one worker: 128, which is 4 MiB. They are allocated when they are needed, and all but a few are
    /// freed when they are not needed any more. At least 2: one to write into while the other is written out.
    pub max_buffers: usize,
    /// Most bytes that a line has of one thing that a peer sent (method, target, referer, user agent), escapes
    /// counted as they are written: 4096. What is longer is cut and ends in `...`.
    pub max_field_bytes: usize,
    /// Age at which lines are handed over though their buffer has room: 1 s.
    pub flush_interval: Duration,
    /// Time between the tries of what failed: 1 s.
    pub retry_interval: Duration,
    /// Longest time that the end of the log takes: 2 s. Lines that are not written by then are dropped.
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
    fn check(&self) -> io::Result<()> {
        let longest_bytes = LineWriter::max_line_bytes(self.max_field_bytes);
        if self.buffer_bytes < longest_bytes {
            return Err(invalid(format!(
                "a buffer of {} bytes does not hold the longest line of the access log: with fields of {} bytes give it at \
                 least {longest_bytes}",
                self.buffer_bytes, self.max_field_bytes
            )));
        }
        if self.max_buffers < 2 {
            return Err(invalid("the access log needs at least 2 buffers for each worker".into()));
        }
        Ok(())
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output, as it is when the log is started.
    Stdout,
    /// A file that is appended to. It is created with mode 0640 where there is none; lines tell who visited. A FIFO is
    /// written when it has a reader.
    File(PathBuf),
}

/// A log that is being written. Dropping it is like [`close`](Self::close), with the error told through `tracing`.
#[derive(Debug)]
pub struct AccessLog {
    handle: AccessLogHandle,
    /// Ends when the thread does.
    ended: Receiver<()>,
}

/// What any thread may do with a log. Clones are cheap, all of them the same log. It may outlive the log.
#[derive(Clone, Debug)]
pub struct AccessLogHandle {
    shared: Arc<Shared>,
    writer: thread::Thread,
}

impl AccessLog {
    /// Opens the target (`open(2)`) and starts the thread that writes to it. The thread may run on the cores that the
    /// caller may run on: start the log before workers are pinned.
    ///
    /// # Errors
    /// When the options contradict each other, the target cannot be opened or the thread cannot be started. A FIFO
    /// without a reader is no error: lines wait for one.
    pub fn start(options: AccessLogOptions) -> io::Result<Self> {
        options.check()?;
        let output = Output::open(options.target.clone())?;
        Self::start_on(output, options)
    }

    fn start_on(output: Output, options: AccessLogOptions) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(options));
        let writer = Writer::new(output, Arc::clone(&shared));
        let (alive, ended) = channel::<()>();
        let thread = thread::Builder::new().name("anello-log".into()).spawn(move || {
            writer.run();
            drop(alive);
        })?;
        Ok(Self { handle: AccessLogHandle { shared, writer: thread.thread().clone() }, ended })
    }

    /// What any thread may do with the log.
    #[must_use]
    pub fn handle(&self) -> AccessLogHandle {
        self.handle.clone()
    }

    /// The log of one worker: see [`AccessLogHandle::worker`].
    #[must_use]
    pub fn worker(&self, number: usize) -> WorkerLog {
        self.handle.worker(number)
    }

    /// Writes what workers have handed over and ends the thread. Drop every [`WorkerLog`] before, which hands over what
    /// it holds; lines recorded afterwards are dropped and counted. Waits for as long as
    /// [`close_timeout`](AccessLogOptions::close_timeout).
    ///
    /// # Errors
    /// When lines could not be written in time: the target fails, or nobody reads standard output. A thread that hangs in
    /// `write(2)` is left to itself.
    pub fn close(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let AccessLogHandle { shared, writer } = &self.handle;
        shared.finish();
        writer.unpark();
        let hangs = self.ended.recv_timeout(shared.options.close_timeout) == Err(RecvTimeoutError::Timeout);
        if hangs {
            shared.abandon();
            writer.unpark();
        }
        match shared.lost_lines() {
            0 if !hangs => Ok(()),
            lost => Err(io::Error::other(format!(
                "the access log did not end properly: {lost} lines that had been handed over are lost{}; look whether its \
                 target can be written",
                if hangs { ", others wait for a writer that hangs" } else { "" }
            ))),
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        if self.handle.shared.is_finishing() {
            return;
        }
        if let Err(error) = self.end() {
            tracing::warn!(%error, "the access log is not complete");
        }
    }
}

impl AccessLogHandle {
    /// The log of one worker, whose number stands in its lines. Give each worker one; its buffers are its own. After the
    /// end of the log it drops and counts all lines.
    #[must_use]
    pub fn worker(&self, number: usize) -> WorkerLog {
        WorkerLog::new(number, &self.shared, self.writer.clone())
    }

    /// Asks for the file to be opened anew, after it has been renamed (log rotation). Returns at once; lines that have not
    /// been written by then go to the new file. While it cannot be opened the old one is written on, and
    /// [`retry_interval`](AccessLogOptions::retry_interval) later it is tried again. When a line had been written in part, the new
    /// file gets the whole of it. Standard output stays what it is.
    pub fn reopen(&self) {
        self.shared.request_reopen();
        self.writer.unpark();
    }

    /// What the log has counted since it was started.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.shared.stats()
    }
}
