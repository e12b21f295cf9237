//! The writer thread: receives buffers from the workers, writes them completely and returns them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anello::log_event;

use super::output::Output;
use super::shared::{Batch, Message, Shared};

/// Minimum time between two log messages about the same problem.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which the thread checks for shutdown and reopen requests while a FIFO is full.
const CONTROL_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Writer {
    output: Output,
    shared: Arc<Shared>,
    messages: Receiver<Message>,
    /// Number of reopen requests that have been completed.
    reopened: u64,
    /// Time of the next attempt to reopen the file after a failure.
    reopen_at: Option<Instant>,
    is_failing: bool,
    /// Times of the last messages about failures and about dropped lines.
    failures_reported_at: Option<Instant>,
    drops_reported_at: Option<Instant>,
    reported_drops: u64,
}

impl Writer {
    pub(super) fn new(output: Output, shared: Arc<Shared>, messages: Receiver<Message>) -> Self {
        Self {
            output,
            shared,
            messages,
            reopened: 0,
            reopen_at: None,
            is_failing: false,
            failures_reported_at: None,
            drops_reported_at: None,
            reported_drops: 0,
        }
    }

    /// Runs the writer until the log is finishing and all queued lines are written, or until the log is abandoned. The
    /// remaining messages are then dropped, which counts their lines as lost.
    pub(super) fn run(mut self) {
        while let Some(message) = self.receive() {
            self.reopen_if_requested();
            self.report_drops();
            if let Message::Batch(batch) = message {
                self.write_batch(batch);
            }
        }
    }

    fn receive(&self) -> Option<Message> {
        if self.shared.is_abandoned() {
            return None;
        }
        if self.shared.is_finishing() {
            return self.messages.try_recv().ok();
        }
        let Some(deadline) = self.reopen_at else { return self.messages.recv().ok() };
        match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => Some(Message::Wake),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Writes an entire batch, however long it takes.
    ///
    /// Stops early only if the log is abandoned, or if writing fails while the log is finishing. The remaining lines
    /// then count as lost.
    fn write_batch(&mut self, mut batch: Batch) {
        let mut position = 0;
        while position < batch.bytes.len() {
            if self.reopen_if_requested() {
                position = line_start(&batch.bytes, position);
            }
            match self.output.write(&batch.bytes[position..]) {
                Ok(written) => {
                    position += written;
                    self.shared.written_bytes.add(written as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let is_failure = self.wait_before_retry(&error);
                    if self.shared.is_abandoned() || is_failure && self.shared.is_finishing() {
                        break;
                    }
                }
            }
        }
        // A line counts as lost if its line feed was not written.
        let lost_lines = batch.bytes[position..].iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.shared.written_lines.add(batch.lines - lost_lines);
        batch.lines = lost_lines;
        if lost_lines == 0 && std::mem::take(&mut self.is_failing) {
            log_event!(INFO, log = %self.output, "access log can be written again");
        }
    }

    /// Waits until a failed write can be retried. Returns `true` if the target has failed, and `false` if it is merely
    /// slow.
    fn wait_before_retry(&mut self, error: &io::Error) -> bool {
        let is_full = error.kind() == io::ErrorKind::WouldBlock;
        if is_full && self.output.wait_writable(CONTROL_POLL_INTERVAL).is_ok() {
            self.report_drops();
            return false;
        }
        self.is_failing = true;
        self.report_failure(
            error,
            "cannot write access log: lines are buffered, and dropped when the buffers are full; will retry (free \
             disk space or fix the target)",
        );
        let retry_at = Instant::now() + self.shared.options.retry_interval;
        while !self.shared.is_finishing() && !self.reopen_requested() {
            let remaining = retry_at.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                break;
            }
            thread::park_timeout(remaining);
        }
        true
    }

    fn report_failure(&mut self, error: &io::Error, message: &str) {
        self.shared.errors.add(1);
        if is_report_due(&mut self.failures_reported_at) {
            let retry_after = self.shared.options.retry_interval;
            log_event!(ERROR, log = %self.output, %error, ?retry_after, "{message}");
        }
    }

    fn reopen_requested(&self) -> bool {
        self.shared.reopen_requests.load(Ordering::Acquire) != self.reopened
            && self.reopen_at.is_none_or(|deadline| deadline <= Instant::now())
    }

    /// Reopens the file if a request is pending. Returns `true` if the log is now written to a different file.
    fn reopen_if_requested(&mut self) -> bool {
        let requests = self.shared.reopen_requests.load(Ordering::Acquire);
        if !self.reopen_requested() {
            return false;
        }
        match self.output.reopen() {
            Ok(is_new_file) => {
                self.reopened = requests;
                self.reopen_at = None;
                self.shared.reopens.add(1);
                is_new_file
            }
            Err(error) => {
                self.reopen_at = Some(Instant::now() + self.shared.options.retry_interval);
                let message = "cannot reopen access log; will keep writing to the old file and retry";
                self.report_failure(&error, message);
                false
            }
        }
    }

    fn report_drops(&mut self) {
        let dropped = self.shared.all_dropped_lines();
        if dropped > self.reported_drops && is_report_due(&mut self.drops_reported_at) {
            log_event!(WARN, lines = dropped - self.reported_drops, log = %self.output,
                "access log lines dropped: target too slow (use a faster target or more buffers)"
            );
            self.reported_drops = dropped;
        }
    }
}

/// Returns `true` if a message is due. If so, the next one is due after [`REPORT_INTERVAL`].
fn is_report_due(last: &mut Option<Instant>) -> bool {
    let is_due = last.is_none_or(|last| last.elapsed() >= REPORT_INTERVAL);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

/// Returns the start of the line that contains `position`. After the file has been reopened, the writer continues
/// there, so that the new file receives the whole line.
fn line_start(bytes: &[u8], position: usize) -> usize {
    bytes[..position].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1)
}

#[cfg(test)]
#[test]
fn line_start_follows_last_line_feed() {
    let starts = [0, 1, 2, 3, 4, 5, 6].map(|position| line_start(b"ab\ncd\n", position));
    assert_eq!(starts, [0, 0, 0, 3, 3, 3, 6]);
}
