//! The core to which a worker's thread is pinned.

use std::cell::Cell;
use std::io;

use crate::driver::log_event;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    static PINNED: Cell<Option<PinnedCore>> = const { Cell::new(None) };
}

/// The core of a pinned thread, and its CPU affinity before it was pinned.
#[derive(Clone, Copy)]
pub(super) struct PinnedCore {
    core: usize,
    previous: CpuSet,
}

/// Pins the calling thread to a core.
pub(super) fn pin_thread(core: usize) -> io::Result<()> {
    let previous = sched_getaffinity(None)?;
    sched_setaffinity(None, &only(core))?;
    PINNED.set(Some(PinnedCore { core, previous }));
    Ok(())
}

/// Returns the pin of the calling thread, or `None` if [`pin_thread`] was not called on it.
pub(super) fn pinned_core() -> Option<PinnedCore> {
    PINNED.get()
}

/// Restores the CPU affinity of a thread that has inherited it from a pinned one. Does nothing if the affinity has been
/// changed since.
pub(super) fn unpin_thread(pinned: &PinnedCore) {
    if sched_getaffinity(None).is_ok_and(|current| current == only(pinned.core))
        && let Err(error) = sched_setaffinity(None, &pinned.previous)
    {
        log_event!(DEBUG, %error, "a thread stays on the core of the worker that started it");
    }
}

/// Returns the set that contains only this core.
pub(super) fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

#[cfg(test)]
pub(super) mod tests {
    use std::thread;

    use super::*;
    use crate::executor::{Runtime, spawn_blocking};

    /// Returns a set of two cores that this thread may use, and the first of them. `None` if it may use only one.
    pub fn two_cores() -> Option<(CpuSet, usize)> {
        let allowed = sched_getaffinity(None).unwrap();
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        let (core, other) = (cores.next()?, cores.next());
        let Some(other) = other else {
            eprintln!("skipped: only one core is allowed");
            return None;
        };
        let mut both = only(core);
        both.set(other);
        Some((both, core))
    }

    #[test]
    fn blocking_threads_leave_core_of_worker() {
        let Some((both, core)) = two_cores() else { return };
        let affinity = thread::spawn(move || {
            sched_setaffinity(None, &both).unwrap();
            pin_thread(core).unwrap();
            let runtime = Runtime::new().unwrap();
            // The pool is shared with other tests, so an idle thread may run the closure, but it is not pinned either.
            let affinity = runtime.block_on(async { spawn_blocking(|| sched_getaffinity(None)).await });
            assert_eq!(sched_getaffinity(None).unwrap(), only(core));
            affinity.unwrap().unwrap()
        });
        assert!(affinity.join().unwrap().count() > 1);
    }
}
