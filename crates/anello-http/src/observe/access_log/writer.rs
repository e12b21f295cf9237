//! The thread that writes: takes buffers from the workers in turn, writes them whole, gives them back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use super::output::Output;
use super::shared::{Batch, Shared, WorkerQueue};

/// Time between two messages about the same thing, when it goes on or comes again.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Time between looks at what is wished while a FIFO is full.
const CONTROL_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Writer {
    output: Output,
    shared: Arc<Shared>,
    queues: Vec<WorkerQueue>,
    /// Wishes to reopen that have been fulfilled.
    reopened: u64,
    /// When to try again what was wished and failed.
    reopen_at: Option<Instant>,
    /// Whether the last write failed.
    is_failing: bool,
    failures: LogThrottle,
    drops: LogThrottle,
    /// Dropped lines that have been told.
    reported_drops: u64,
}

/// Says when it is time to tell something that may go on for long.
#[derive(Default)]
struct LogThrottle {
    last: Option<Instant>,
}

impl Writer {
    pub(super) fn new(output: Output, shared: Arc<Shared>) -> Self {
        Self {
            output,
            shared,
            queues: Vec::new(),
            reopened: 0,
            reopen_at: None,
            is_failing: false,
            failures: LogThrottle::default(),
            drops: LogThrottle::default(),
            reported_drops: 0,
        }
    }

    /// Writes until the log is finished and nothing is left, or it is abandoned. Whoever has something to do for it does
    /// it and then wakes it, so that it may sleep without a deadline.
    pub(super) fn run(mut self) {
        loop {
            // Before the round, so that all that was handed over before is written by it.
            let finishing = self.shared.is_finishing();
            self.queues.append(&mut self.shared.take_new());
            // What is told may wake this thread; the round is last, so that nothing handed over is slept through.
            self.reopen_if_requested();
            self.report_drops();
            let worked = self.write_round();
            if self.shared.is_abandoned() || finishing && !worked {
                // What came late is not written any more; dropped, it counts as lost.
                drop(self.shared.take_new());
                return;
            }
            if !worked && !finishing {
                self.sleep();
            }
        }
    }

    fn sleep(&self) {
        match self.reopen_at {
            Some(then) => thread::park_timeout(then.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }

    /// Writes one buffer of each worker. False if there was none.
    fn write_round(&mut self) -> bool {
        let mut worked = false;
        let mut index = 0;
        while let Some(queue) = self.queues.get(index) {
            match queue.full.try_recv() {
                Ok(batch) => {
                    worked = true;
                    let bytes = self.write_batch(batch);
                    self.queues[index].return_buffer(bytes);
                    index += 1;
                }
                Err(TryRecvError::Empty) => index += 1,
                Err(TryRecvError::Disconnected) => {
                    let gone = self.queues.swap_remove(index);
                    self.shared.remove(&gone.counts);
                }
            }
        }
        worked
    }

    /// Writes a batch to its end, however long that takes, and returns its memory. Gives up when the log is abandoned, or
    /// finished while the target fails: then the rest counts as lost.
    fn write_batch(&mut self, mut batch: Batch) -> Vec<u8> {
        let mut position = 0;
        while position < batch.bytes.len() {
            if self.reopen_if_requested() {
                position = line_start(&batch.bytes, position);
            }
            match self.output.write(&batch.bytes[position..]) {
                Ok(written) => {
                    position += written;
                    add(&self.shared.written_bytes, written as u64);
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
        // What is left belongs to lines that are lost.
        let rest = batch.bytes[position..].iter().filter(|&&byte| byte == b'\n').count() as u64;
        add(&self.shared.written_lines, batch.lines - rest);
        batch.lines = rest;
        if rest == 0 {
            self.report_recovery();
        }
        std::mem::take(&mut batch.bytes)
    }

    /// A write brought nothing: waits until another may. False if the target is only slow.
    fn wait_before_retry(&mut self, error: &io::Error) -> bool {
        let is_full = error.kind() == io::ErrorKind::WouldBlock;
        if is_full && self.output.wait_writable(CONTROL_POLL_INTERVAL).is_ok() {
            self.report_drops();
            return false;
        }
        self.report_failure(error);
        let again = Instant::now() + self.shared.options.retry_interval;
        // Workers wake this thread for each buffer, which changes nothing.
        while !self.shared.is_finishing() && !self.reopen_requested() {
            let left = again.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::park_timeout(left);
        }
        true
    }

    fn report_failure(&mut self, error: &io::Error) {
        add(&self.shared.errors, 1);
        self.is_failing = true;
        if self.failures.is_due() {
            tracing::error!(
                log = %self.output, %error, retry_after = ?self.shared.options.retry_interval,
                "the access log cannot be written: lines wait, and are dropped when the buffers are full. Make room or mend \
                 the target; it is tried again"
            );
        }
    }

    fn report_recovery(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(log = %self.output, "the access log is written again");
        }
    }

    fn reopen_requested(&self) -> bool {
        self.shared.reopen_requests() != self.reopened
            && self.reopen_at.is_none_or(|then| then <= Instant::now())
    }

    /// Opens the file anew if that is wished. False if it stays the same.
    fn reopen_if_requested(&mut self) -> bool {
        let asked = self.shared.reopen_requests();
        if !self.reopen_requested() {
            return false;
        }
        match self.output.reopen() {
            Ok(another) => {
                self.reopened = asked;
                self.reopen_at = None;
                add(&self.shared.reopens, 1);
                another
            }
            Err(error) => {
                self.reopen_at = Some(Instant::now() + self.shared.options.retry_interval);
                add(&self.shared.errors, 1);
                if self.failures.is_due() {
                    tracing::error!(
                        %error, retry_after = ?self.shared.options.retry_interval,
                        "the access log cannot be opened anew: the old file is written on, and it is tried again"
                    );
                }
                false
            }
        }
    }

    fn report_drops(&mut self) {
        let dropped = self.shared.dropped_lines();
        if dropped > self.reported_drops && self.drops.is_due() {
            tracing::warn!(
                lines = dropped - self.reported_drops, log = %self.output,
                "lines of the access log were dropped: its target is slower than the requests. Log to a faster one, or give \
                 it more buffers"
            );
            self.reported_drops = dropped;
        }
    }
}

impl WorkerQueue {
    /// Gives a buffer back to the worker, or frees it when the worker has enough.
    fn return_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.empty.try_send(buffer) {
            self.counts.buffers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl LogThrottle {
    /// Whether to tell now; if so, not again for some time.
    fn is_due(&mut self) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= REPORT_INTERVAL);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}

/// Where the line begins that has been written in part: a new file gets it whole.
fn line_start(bytes: &[u8], position: usize) -> usize {
    bytes[..position].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1)
}

/// One thread alone writes these counts, so that no other addition can come between.
fn add(count: &AtomicU64, number: u64) {
    count.store(count.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

#[cfg(test)]
mod unit_tests {
    use super::line_start;

    #[test]
    fn a_line_begins_after_the_last_line_feed() {
        let bytes = b"ab\ncd\n";
        let starts: Vec<usize> = (0..=bytes.len()).map(|position| line_start(bytes, position)).collect();
        assert_eq!(starts, [0, 0, 0, 3, 3, 3, 6]);
    }
}
