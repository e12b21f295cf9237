//! Counters of tasks and polls.

use std::cell::Cell;

/// The counters that are not kept for another purpose.
#[derive(Debug, Default)]
pub(super) struct TaskCounters {
    pub spawned: Cell<u64>,
    pub polls: Cell<u64>,
    /// Duration of the longest poll in nanoseconds, or `None` if polls are not measured.
    pub longest_poll_ns: Option<Cell<u64>>,
}

impl TaskCounters {
    pub fn new(measures_polls: bool) -> Self {
        Self { longest_poll_ns: measures_polls.then(Cell::default), ..Self::default() }
    }
}

pub(super) fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}
