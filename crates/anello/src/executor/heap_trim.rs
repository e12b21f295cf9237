//! Returns memory to the operating system after a burst.
//!
//! The pages of streams and small tasks are returned when they are empty (`driver/pages.rs`). The allocator of glibc keeps
//! the memory of larger tasks and of applications, except at the end of the heap. It is therefore asked to return its free
//! pages. Other allocators return memory on their own.

use std::cell::Cell;

use super::task_memory;

/// Returns the free memory of the heap to the operating system after most of the objects that it contained have been
/// freed.
///
/// The runtime does this for tasks and streams. A program needs it for other objects that it allocates in large numbers
/// and that clients occupy, such as buffers.
///
/// ```
/// use anello::HeapTrim;
///
/// let heap_trim = HeapTrim::new(1000);
/// let mut buffers: Vec<Vec<u8>> = (0..2000).map(|_| vec![1; 3000]).collect();
/// assert!(!heap_trim.update(buffers.len()));
/// buffers.truncate(10);
/// assert!(heap_trim.update(buffers.len()), "the memory of 1990 buffers is returned");
/// ```
#[derive(Debug)]
pub struct HeapTrim {
    min_freed: usize,
    /// Largest number of objects since the heap was trimmed, or the number at that time.
    peak: Cell<usize>,
}

impl HeapTrim {
    /// Creates a trim that ignores bursts of fewer than `min_freed` objects.
    #[must_use]
    pub const fn new(min_freed: usize) -> Self {
        Self { min_freed, peak: Cell::new(0) }
    }

    /// Sets the current number of objects. If at least half of them, and at least the minimum, have been freed since the
    /// peak, returns the free pages of the heap to the operating system (`malloc_trim(3)` of glibc; nothing with other
    /// allocators), and returns `true`. The time that this takes grows with the size of the heap.
    #[inline]
    pub fn update(&self, count: usize) -> bool {
        let is_due = self.is_due(count);
        if is_due {
            trim();
        }
        is_due
    }

    #[inline]
    fn is_due(&self, count: usize) -> bool {
        let peak = self.peak.get();
        if count < peak && (count > peak / 2 || peak - count < self.min_freed) {
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
    fn heap_is_trimmed_after_most_objects_have_been_freed() {
        let heap_trim = HeapTrim::new(4096);
        let is_due = |count| heap_trim.is_due(count);
        assert!(!is_due(3000) && !is_due(0), "a small burst");
        assert!(!is_due(100_000) && !is_due(50_001));
        assert!(is_due(50_000) && !is_due(50_000), "half have finished");
        assert!(!is_due(60_000) && !is_due(40_000));
        assert!(is_due(0) && !is_due(0));
        assert!(!is_due(4096) && is_due(0));
    }
}
