//! Writes to files that have been reported as accepted, but have not been performed. The last runtime of the process
//! waits for them when it is dropped, so that a program that returns from `main` does not lose them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct Writes {
    counts: Mutex<Counts>,
    all_performed: Condvar,
}

struct Counts {
    pending: usize,
    runtimes: usize,
}

static WRITES: Writes = Writes::new();

impl Writes {
    const fn new() -> Self {
        Self { counts: Mutex::new(Counts { pending: 0, runtimes: 0 }), all_performed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing panics while the lock is held.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_runtime(&self, max_wait: Option<Duration>) {
        let mut counts = self.lock();
        debug_assert!(counts.runtimes > 0, "a runtime ends that has not been counted");
        counts.runtimes -= 1;
        let waits = |counts: &mut Counts| counts.runtimes == 0 && counts.pending > 0;
        match max_wait {
            None => drop(self.all_performed.wait_while(counts, waits)),
            Some(max_wait) => drop(self.all_performed.wait_timeout_while(counts, max_wait, waits)),
        }
    }
}

/// A write that has been reported as accepted. Dropped when it has been performed.
#[derive(Debug)]
pub(crate) struct AcceptedWrite(());

impl AcceptedWrite {
    pub fn new() -> Self {
        WRITES.lock().pending += 1;
        Self(())
    }
}

impl Drop for AcceptedWrite {
    fn drop(&mut self) {
        let mut counts = WRITES.lock();
        counts.pending -= 1;
        if counts.pending == 0 {
            WRITES.all_performed.notify_all();
        }
    }
}

/// Counts a runtime until [`end_runtime`] is called for it.
pub(super) fn start_runtime() {
    WRITES.lock().runtimes += 1;
}

/// Waits for the accepted writes, for at most `max_wait`, if this is the last runtime.
pub(super) fn end_runtime(max_wait: Option<Duration>) {
    WRITES.end_runtime(max_wait);
}
