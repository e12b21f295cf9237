//! The access log: one line per request, written by a dedicated thread, so workers never wait for a disk.
//!
//! ```text
//!   worker 0: WorkerLog ── full or old buffers ──▶ ┐
//!             formats     ◀── empty buffers ────── ┤  thread "anello-log" ── write(2) ──▶ file or stdout
//!   worker 1: WorkerLog ──────────────────────────▶┘
//! ```
//!
//! - Each worker formats lines into its own buffer. When the next line might not fit, or the first line is older than
//!   [`flush_interval`](AccessLogOptions::flush_interval), the worker flushes: it queues the buffer for the writer
//!   thread and continues with an empty one. The writer then returns each buffer to its worker.
//! - A worker has at most [`max_buffers`](AccessLogOptions::max_buffers) buffers. If all of them are waiting to be
//!   written, new lines are dropped and counted in [`LogStats::dropped_lines`].
//! - If the file cannot be written, the writer thread reports this through `tracing` (at most once per minute), counts
//!   the error, and retries from the byte where it stopped. No line is torn, and buffered lines are lost only if the
//!   log is closed while the error persists.
//! - The length of a line is bounded: see [`max_field_bytes`](AccessLogOptions::max_field_bytes). With the fields of a
//!   typical browser, formatting takes about 650 instructions in the common format, 1000 in the combined format and
//!   1100 as JSON.

mod escape;
mod line;
mod options;
mod output;
mod shared;
mod worker_log;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

use anello::log_event;

pub use line::{FormattedPeer, LogEntry, LogFormat, RequestLine};
pub use options::{AccessLogOptions, LogTarget};
pub use shared::LogStats;
pub use worker_log::WorkerLog;

use output::Output;
use shared::{ABANDONED, FINISHING, Message, Shared};
use writer::Writer;

/// A running access log. Dropping it has the same effect as [`close`](Self::close), except that errors are reported
/// through `tracing`.
///
/// ```
#[doc = access_log!()]
/// log.worker(0).record(&entry);
/// log.close()?;
/// assert!(std::fs::read_to_string(path)?.contains("\"GET / HTTP/1.1\" 200 5"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct AccessLog {
    handle: AccessLogHandle,
    /// Disconnected when the writer thread exits.
    writer_exited: Receiver<()>,
}

/// A handle to an access log that any thread can use. Clones are cheap and refer to the same log. A handle can outlive
/// the log.
///
/// ```
#[doc = access_log!()]
/// let handle = log.handle();
/// let thread = std::thread::spawn(move || handle.worker(1).flush());
/// assert!(thread.join().expect("the thread does not panic"));
/// log.close()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AccessLogHandle {
    shared: Arc<Shared>,
    messages: Sender<Message>,
    writer: thread::Thread,
}

impl AccessLog {
    /// Opens the target (`open(2)`) and starts the writer thread. The thread inherits the CPU affinity of the caller,
    /// so start the log before pinning threads to cores.
    ///
    /// ```
    #[doc = access_log!()]
    /// assert!(path.exists());
    /// let too_small = AccessLogOptions::default().buffer_bytes(100);
    /// assert!(AccessLog::start(too_small).is_err());
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidInput`] if the options are inconsistent, and the error from the system call if
    /// the target cannot be opened or the thread cannot be spawned. A FIFO without a reader is not an error: lines are
    /// buffered until it has one.
    pub fn start(options: AccessLogOptions) -> io::Result<Self> {
        options.validate()?;
        let output = Output::open(options.target.clone())?;
        Self::start_on(output, options)
    }

    fn start_on(output: Output, options: AccessLogOptions) -> io::Result<Self> {
        let shared = Arc::new(Shared { options, ..Shared::default() });
        let (messages, received) = channel();
        let writer = Writer::new(output, Arc::clone(&shared), received);
        let (exit_guard, writer_exited) = channel::<()>();
        let thread = thread::Builder::new().name("anello-log".into()).spawn(move || {
            writer.run();
            drop(exit_guard);
        })?;
        let handle = AccessLogHandle { shared, messages, writer: thread.thread().clone() };
        Ok(Self { handle, writer_exited })
    }

    /// Returns a handle to the log.
    ///
    /// ```
    #[doc = access_log!()]
    /// let handle = log.handle();
    /// log.worker(0).record(&entry);
    /// log.close()?;
    /// // The handle outlives the log.
    /// assert_eq!(handle.stats().written_lines, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn handle(&self) -> AccessLogHandle {
        self.handle.clone()
    }

    /// Creates the log of one worker, like [`AccessLogHandle::worker`].
    ///
    /// ```
    #[doc = access_log!()]
    /// let mut worker = log.worker(0);
    /// worker.record(&entry);
    /// assert_eq!(worker.buffered_lines(), 1);
    /// # drop(worker);
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn worker(&self, index: usize) -> WorkerLog {
        self.handle.worker(index)
    }

    /// Writes all flushed lines and stops the writer thread. Blocks for at most
    /// [`close_timeout`](AccessLogOptions::close_timeout). Drop every [`WorkerLog`] first, to flush its buffer. Lines
    /// recorded afterwards are dropped and counted.
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
    ///
    /// # Errors
    /// Returns an error if lines could not be written in time, because writes fail or the reader of a pipe is stalled.
    /// A thread that is blocked in `write(2)` is detached.
    pub fn close(mut self) -> io::Result<()> {
        self.stop()
    }

    fn stop(&mut self) -> io::Result<()> {
        let shared = &self.handle.shared;
        shared.state.fetch_max(FINISHING, Ordering::AcqRel);
        self.handle.wake_writer();
        let timed_out =
            self.writer_exited.recv_timeout(shared.options.close_timeout) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            shared.state.store(ABANDONED, Ordering::Release);
            self.handle.wake_writer();
        }
        match shared.lost_lines.load(Ordering::Relaxed) {
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
        if !self.handle.shared.is_finishing()
            && let Err(error) = self.stop()
        {
            log_event!(WARN, %error, "cannot close the access log");
        }
    }
}

impl AccessLogHandle {
    /// Creates the log of one worker. JSON lines contain `index` in the field `worker`. Each worker needs its own log,
    /// with its own buffers. Once the access log is closed, all lines are dropped and counted.
    ///
    /// ```
    #[doc = access_log!()]
    /// let handle = log.handle();
    /// let mut worker = handle.worker(1);
    /// worker.record(&entry);
    /// drop(worker);
    /// log.close()?;
    /// // A worker of a closed log drops its lines.
    /// handle.worker(1).record(&entry);
    /// assert_eq!(handle.stats().written_lines, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn worker(&self, index: usize) -> WorkerLog {
        WorkerLog::new(index, &self.shared, self.messages.clone())
    }

    /// Requests that the file be reopened by its name, for example after log rotation has renamed it. Returns
    /// immediately. Lines that have not been written yet go to the new file. If the new file cannot be opened, lines
    /// still go to the old file, and opening is retried after [`retry_interval`](AccessLogOptions::retry_interval). If
    /// the old file ends in a partly written line, the new file receives the whole line. Has no effect on standard
    /// output.
    ///
    /// ```
    #[doc = access_log!()]
    /// std::fs::rename(&path, path.with_extension("1"))?;
    /// log.handle().reopen();
    /// while log.handle().stats().reopens == 0 {
    ///     std::thread::yield_now();
    /// }
    /// assert!(path.exists());
    /// # log.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reopen(&self) {
        self.shared.reopen_requests.fetch_add(1, Ordering::Release);
        self.wake_writer();
    }

    /// Wakes the writer thread, whether it is waiting for a message or for the next write attempt.
    fn wake_writer(&self) {
        // Fails only if the thread has exited.
        self.messages.send(Message::Wake).ok();
        self.writer.unpark();
    }

    /// Returns the counts since the log was started.
    ///
    /// ```
    #[doc = access_log!()]
    /// let handle = log.handle();
    /// log.worker(0).record(&entry);
    /// log.close()?;
    /// let stats = handle.stats();
    /// assert_eq!((stats.written_lines, stats.dropped_lines), (1, 0));
    /// assert_eq!(stats.written_bytes, std::fs::metadata(path)?.len());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stats(&self) -> LogStats {
        let shared = &self.shared;
        LogStats {
            written_lines: shared.written_lines.get(),
            written_bytes: shared.written_bytes.get(),
            dropped_lines: shared.all_dropped_lines(),
            errors: shared.errors.get(),
            reopens: shared.reopens.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::SocketAddr;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::pipe::fcntl_setpipe_size;

    use super::*;

    fn start_on(file: File, close_timeout: Duration) -> AccessLog {
        let options = AccessLogOptions {
            max_field_bytes: 24,
            buffer_bytes: 1024,
            max_buffers: 4,
            close_timeout,
            ..AccessLogOptions::default()
        };
        AccessLog::start_on(Output::inherited(file), options).unwrap()
    }

    fn record(worker: &mut WorkerLog, body_bytes: u64) {
        let peer = FormattedPeer::new(SocketAddr::from(([127, 0, 0, 1], 80)));
        worker.record(&LogEntry {
            unix_time_ns: 0,
            duration_us: 0,
            peer: &peer,
            request: None,
            status: 200,
            body_bytes,
            referer: None,
            user_agent: None,
        });
    }

    #[test]
    fn blocked_write_causes_drops_without_blocking_workers_or_close() {
        // A full pipe whose write end is in blocking mode, as standard output can be.
        let (mut reader, writer) = io::pipe().unwrap();
        let pipe_bytes = fcntl_setpipe_size(&writer, 4096).unwrap();
        let mut writer = File::from(OwnedFd::from(writer));
        writer.write_all(&vec![0; pipe_bytes]).unwrap();
        let log = start_on(writer, Duration::from_millis(10));
        let (mut worker, handle) = (log.worker(0), log.handle());
        let mut recorded = 0;
        while worker.dropped_lines() < 1000 {
            record(&mut worker, recorded);
            recorded += 1;
        }
        drop(worker);
        assert!(log.close().unwrap_err().to_string().contains("the writer is blocked"));
        // Once the pipe has been read, the writer thread continues and exits.
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        while handle.stats().written_lines + handle.stats().dropped_lines < recorded {
            thread::yield_now();
        }
        let line =
            |number| format!("127.0.0.1 - - [01/Jan/1970:00:00:00 +0000] \"-\" 200 {number} \"-\" \"-\"\n");
        let text = text.trim_start_matches('\0');
        let complete_lines = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        assert_eq!(complete_lines, (0..handle.stats().written_lines).map(line).collect::<String>());
    }

    #[test]
    fn departed_workers_release_their_memory() {
        let log = start_on(File::create("/dev/null").unwrap(), Duration::from_secs(60));
        let handle = log.handle();
        let references = Arc::strong_count(&handle.shared);
        for number in 0..100 {
            record(&mut log.worker(0), number);
        }
        // The writer thread frees the buffers of workers whose log has been dropped.
        while handle.stats().written_lines < 100 || Arc::strong_count(&handle.shared) > references {
            thread::yield_now();
        }
        log.close().unwrap();
    }
}
