//! Returns memory to the operating system after a burst of tasks.
//!
//! The tables of a runtime free their empty pages, and tasks are freed when they finish. The allocator of glibc keeps
//! such memory, except at the end of the heap. It is therefore asked to return its free pages after most of the tasks
//! have finished. Other allocators return memory on their own.

use std::cell::Cell;

/// Smaller bursts are ignored. The memory of a task and its stream is about 0.5 KiB.
const MIN_FINISHED_TASKS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct HeapTrim {
    /// Largest number of tasks seen since the last call, or the number at that time.
    peak_tasks: Cell<usize>,
}

impl HeapTrim {
    /// Called before the worker sleeps. Returns the free pages of the heap if at least half of the tasks, and at least
    /// [`MIN_FINISHED_TASKS`], have finished since the peak. Takes about 1 ms per 10 MiB returned.
    #[inline]
    pub fn before_sleep(&self, tasks: usize) {
        if self.is_due(tasks) {
            trim();
        }
    }

    #[inline]
    fn is_due(&self, tasks: usize) -> bool {
        let peak = self.peak_tasks.get();
        if tasks < peak && (tasks > peak / 2 || peak - tasks < MIN_FINISHED_TASKS) {
            return false;
        }
        self.peak_tasks.set(tasks);
        tasks < peak
    }
}

#[cold]
fn trim() {
    // SAFETY: the function accesses only memory that the allocator owns, under the allocator's locks.
    #[cfg(all(target_env = "gnu", not(miri)))]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_is_trimmed_after_most_tasks_have_finished() {
        let heap_trim = HeapTrim::default();
        let is_due = |tasks| heap_trim.is_due(tasks);
        assert!(!is_due(3000) && !is_due(0), "a small burst");
        assert!(!is_due(100_000) && !is_due(50_001));
        assert!(is_due(50_000) && !is_due(50_000), "half of the tasks have finished");
        assert!(!is_due(60_000) && !is_due(40_000));
        assert!(is_due(0) && !is_due(0));
        assert!(!is_due(4096) && is_due(0));
    }
}
