//! Counters of tasks and polls.

use std::cell::Cell;
use std::time::Duration;

/// The counters that are not kept for another purpose.
#[derive(Debug, Default)]
pub(super) struct TaskCounters {
    pub spawned: Cell<u64>,
    pub polls: Cell<u64>,
    /// Duration of the longest poll in nanoseconds, or `None` if polls are not measured.
    pub longest_poll_ns: Option<Cell<u64>>,
    /// Duration in nanoseconds from which a poll is reported as slow. If set, polls are measured.
    pub slow_poll_ns: Option<u64>,
}

impl TaskCounters {
    pub fn new(measures_polls: bool, slow_poll: Option<Duration>) -> Self {
        let slow_poll_ns = slow_poll.map(|threshold| u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX));
        let measures_polls = measures_polls || slow_poll_ns.is_some();
        Self { longest_poll_ns: measures_polls.then(Cell::default), slow_poll_ns, ..Self::default() }
    }
}

pub(super) fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}
