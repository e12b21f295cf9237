//! Writes to files that have been reported as accepted, but have not been performed. The last runtime of the process
//! waits for them when it is dropped, so that a program that returns from `main` does not lose them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static COUNTS: Mutex<Counts> = Mutex::new(Counts { pending: 0, runtimes: 0 });
static ALL_PERFORMED: Condvar = Condvar::new();

struct Counts {
    /// Number of accepted writes that have not been performed.
    pending: usize,
    runtimes: usize,
}

/// A write that has been reported as accepted. Dropped when it has been performed.
#[derive(Debug)]
pub(crate) struct AcceptedWrite(());

impl AcceptedWrite {
    pub fn new() -> Self {
        counts().pending += 1;
        Self(())
    }
}

impl Drop for AcceptedWrite {
    fn drop(&mut self) {
        let mut counts = counts();
        counts.pending -= 1;
        if counts.pending == 0 {
            ALL_PERFORMED.notify_all();
        }
    }
}

/// Counts a runtime until [`end_runtime`] is called for it.
pub(super) fn start_runtime() {
    counts().runtimes += 1;
}

/// Waits for the accepted writes, for at most `max_wait`, if this is the last runtime.
pub(super) fn end_runtime(max_wait: Option<Duration>) {
    let mut counts = counts();
    debug_assert!(counts.runtimes > 0, "a runtime ends that has not been counted");
    counts.runtimes -= 1;
    let waits = |counts: &mut Counts| counts.runtimes == 0 && counts.pending > 0;
    match max_wait {
        None => drop(ALL_PERFORMED.wait_while(counts, waits)),
        Some(max_wait) => drop(ALL_PERFORMED.wait_timeout_while(counts, max_wait, waits)),
    }
}

fn counts() -> MutexGuard<'static, Counts> {
    // Nothing that can fail changes the counts while the lock is held.
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}
