//! Writes to files that have been reported as accepted, but have not been performed. The last runtime of the process
//! waits for them when it is dropped, so that a program that returns from `main` does not lose them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::PerProcess;

/// A forked child process does not perform the writes of its parent.
static WRITES: PerProcess<Writes> = PerProcess::new(Writes::default);

#[derive(Debug, Default)]
struct Writes {
    counts: Mutex<Counts>,
    all_performed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Number of accepted writes that have not been performed.
    pending: usize,
    runtimes: usize,
}

impl Writes {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing that can fail changes the counts while the lock is held.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write that has been reported as accepted. Dropped when it has been performed.
#[derive(Debug)]
pub(crate) struct AcceptedWrite(&'static Writes);

impl AcceptedWrite {
    pub fn new() -> Self {
        let writes = WRITES.get();
        writes.lock().pending += 1;
        Self(writes)
    }
}

impl Drop for AcceptedWrite {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        counts.pending -= 1;
        if counts.pending == 0 {
            self.0.all_performed.notify_all();
        }
    }
}

/// Counts a runtime until [`end_runtime`] is called for it.
pub(super) fn start_runtime() {
    WRITES.get().lock().runtimes += 1;
}

/// Waits for the accepted writes, for at most `max_wait`, if this is the last runtime.
pub(super) fn end_runtime(max_wait: Option<Duration>) {
    let writes = WRITES.get();
    let mut counts = writes.lock();
    debug_assert!(counts.runtimes > 0, "a runtime ends that has not been counted");
    counts.runtimes -= 1;
    let waits = |counts: &mut Counts| counts.runtimes == 0 && counts.pending > 0;
    match max_wait {
        None => drop(writes.all_performed.wait_while(counts, waits)),
        Some(max_wait) => drop(writes.all_performed.wait_timeout_while(counts, max_wait, waits)),
    }
}
