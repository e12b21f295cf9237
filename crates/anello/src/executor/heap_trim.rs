//! Returns memory to the operating system after a burst of tasks.
//!
//! The pages of streams and small tasks are returned when they are empty (`driver/pages.rs`). The allocator of glibc keeps
//! the memory of larger tasks and of applications, except at the end of the heap. It is therefore asked to return its free
//! pages after most of the tasks have finished. Other allocators return memory on their own.

use std::cell::Cell;

use super::task_memory;

/// Smaller bursts are ignored. A task and its stream take about 0.5 KiB.
const MIN_FINISHED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct HeapTrim {
    /// Largest number of tasks and streams since the heap was trimmed, or the number at that time.
    peak: Cell<usize>,
}

impl HeapTrim {
    /// Called before the worker sleeps, with the number of tasks and streams. Returns the free pages of the heap if at
    /// least half of them, and at least [`MIN_FINISHED`], have finished since the peak.
    #[inline]
    pub fn before_sleep(&self, count: usize) {
        if self.is_due(count) {
            trim();
        }
    }

    #[inline]
    fn is_due(&self, count: usize) -> bool {
        let peak = self.peak.get();
        if count < peak && (count > peak / 2 || peak - count < MIN_FINISHED) {
            return false;
        }
        self.peak.set(count);
        count < peak
    }
}

#[cold]
fn trim() {
    // Blocks in the cache are spread over many pages, and each keeps its page.
    task_memory::clear();
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
        let is_due = |count| heap_trim.is_due(count);
        assert!(!is_due(3000) && !is_due(0), "a small burst");
        assert!(!is_due(100_000) && !is_due(50_001));
        assert!(is_due(50_000) && !is_due(50_000), "half have finished");
        assert!(!is_due(60_000) && !is_due(40_000));
        assert!(is_due(0) && !is_due(0));
        assert!(!is_due(4096) && is_due(0));
    }
}
