//! The thread that writes: takes buffers from the workers in turn, writes them whole, gives them back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use super::output::Output;
use super::shared::{Batch, Lane, Shared};

/// Time between two messages about the same thing, when it goes on or comes again.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Time between looks at what is wished while a FIFO is full.
const LOOK_UP_AFTER: Duration = Duration::from_millis(100);

pub(super) struct Writer {
    output: Output,
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    /// Wishes to reopen that have been fulfilled.
    reopened: u64,
    /// When to try again what was wished and failed.
    reopen_at: Option<Instant>,
    /// Whether the last write failed.
    fails: bool,
    failures: Teller,
    drops: Teller,
    /// Dropped lines that have been told.
    drops_told: u64,
}

/// Says when it is time to tell something that may go on for long.
#[derive(Default)]
struct Teller {
    last: Option<Instant>,
}

impl Writer {
    pub(super) fn new(output: Output, shared: Arc<Shared>) -> Self {
        Self {
            output,
            shared,
            lanes: Vec::new(),
            reopened: 0,
            reopen_at: None,
            fails: false,
            failures: Teller::default(),
            drops: Teller::default(),
            drops_told: 0,
        }
    }

    /// Writes until the log is finished and nothing is left, or it is abandoned. Whoever has something to do for it does
    /// it and then wakes it, so that it may sleep without a deadline.
    pub(super) fn run(mut self) {
        loop {
            // Before the round, so that all that was handed over before is written by it.
            let finishing = self.shared.is_finishing();
            self.lanes.append(&mut self.shared.take_new());
            // What is told may wake this thread; the round is last, so that nothing handed over is slept through.
            self.reopen_if_wished();
            self.tell_drops();
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
        while let Some(lane) = self.lanes.get(index) {
            match lane.full.try_recv() {
                Ok(batch) => {
                    worked = true;
                    let bytes = self.write_batch(batch);
                    self.lanes[index].give_back(bytes);
                    index += 1;
                }
                Err(TryRecvError::Empty) => index += 1,
                Err(TryRecvError::Disconnected) => {
                    let gone = self.lanes.swap_remove(index);
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
            if self.reopen_if_wished() {
                position = line_start(&batch.bytes, position);
            }
            match self.output.write(&batch.bytes[position..]) {
                Ok(written) => {
                    position += written;
                    add(&self.shared.written_bytes, written as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let is_failure = self.wait_out(&error);
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
            self.recovered();
        }
        std::mem::take(&mut batch.bytes)
    }

    /// A write brought nothing: waits until another may. False if the target is only slow.
    fn wait_out(&mut self, error: &io::Error) -> bool {
        let is_full = error.kind() == io::ErrorKind::WouldBlock;
        if is_full && self.output.wait_for_room(LOOK_UP_AFTER).is_ok() {
            self.tell_drops();
            return false;
        }
        self.failed(error);
        let again = Instant::now() + self.shared.options.retry_interval;
        // Workers wake this thread for each buffer, which changes nothing.
        while !self.shared.is_finishing() && !self.reopen_is_wished() {
            let left = again.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::park_timeout(left);
        }
        true
    }

    fn failed(&mut self, error: &io::Error) {
        add(&self.shared.errors, 1);
        self.fails = true;
        if self.failures.is_due() {
            tracing::error!(
                log = %self.output, %error, retry_after = ?self.shared.options.retry_interval,
                "the access log cannot be written: lines wait, and are dropped when the buffers are full. Make room or mend \
                 the target; it is tried again"
            );
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.fails) {
            tracing::info!(log = %self.output, "the access log is written again");
        }
    }

    fn reopen_is_wished(&self) -> bool {
        self.shared.reopens_asked() != self.reopened
            && self.reopen_at.is_none_or(|then| then <= Instant::now())
    }

    /// Opens the file anew if that is wished. False if it stays the same.
    fn reopen_if_wished(&mut self) -> bool {
        let asked = self.shared.reopens_asked();
        if !self.reopen_is_wished() {
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

    fn tell_drops(&mut self) {
        let dropped = self.shared.dropped_lines();
        if dropped > self.drops_told && self.drops.is_due() {
            tracing::warn!(
                lines = dropped - self.drops_told, log = %self.output,
                "lines of the access log were dropped: its target is slower than the requests. Log to a faster one, or give \
                 it more buffers"
            );
            self.drops_told = dropped;
        }
    }
}

impl Lane {
    /// Gives a buffer back to the worker, or frees it when the worker has enough.
    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.empty.try_send(buffer) {
            self.counts.buffers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Teller {
    /// Whether to tell now; if so, not again for some time.
    fn is_due(&mut self) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= TELL_AGAIN_AFTER);
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
