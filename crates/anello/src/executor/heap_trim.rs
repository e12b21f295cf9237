//! Returns memory to the operating system after a burst.
//!
//! The pages of streams and small tasks are returned when they are empty (`driver/memory/pages.rs`). The allocator of
//! glibc keeps the memory of larger tasks and of applications, except at the end of the heap. It is therefore asked to
//! return its free pages. Other allocators return memory on their own.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::task_memory;

/// Minimum time between two trims.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Part of the time that trims may take: one of this many parts.
const TIME_PARTS: u32 = 100;

/// Returns the free memory of the heap to the operating system after most of the objects that it contained have been
/// freed.
///
/// The runtime does this for tasks and streams. A program needs it for other objects that it allocates in large numbers
/// and that clients occupy, such as buffers.
///
/// If transparent huge pages are enabled for all programs, the kernel can allocate the returned pages again, as parts of
/// huge pages. `anello echo` and `anello http` therefore disable huge pages for their process (`PR_SET_THP_DISABLE` of
/// `prctl(2)`).
///
/// ```
/// use anello::server::HeapTrim;
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
    /// The next trim may not start before.
    not_before: Cell<Option<Instant>>,
}

impl HeapTrim {
    /// Creates a trim that ignores bursts of fewer than `min_freed` objects.
    #[must_use]
    pub const fn new(min_freed: usize) -> Self {
        Self { min_freed, peak: Cell::new(0), not_before: Cell::new(None) }
    }

    /// Sets the current number of objects. If at least half of them, and at least the minimum, have been freed since the
    /// peak, returns the free pages of the heap to the operating system (`malloc_trim(3)` of glibc; nothing with other
    /// allocators), and returns `true`.
    ///
    /// A trim visits the heap of all threads, and frees the memory that the runtime of this thread keeps for new tasks.
    /// There is at most one per second, and fewer if they would take more than 1 % of the time: call this periodically.
    #[inline]
    pub fn update(&self, count: usize) -> bool {
        if !self.is_due(count) {
            return false;
        }
        let start = Instant::now();
        if self.not_before.get().is_some_and(|not_before| start < not_before) {
            return false;
        }
        self.peak.set(count);
        trim();
        let end = Instant::now();
        self.not_before.set(Some(end + MIN_INTERVAL.max((end - start) * TIME_PARTS)));
        true
    }

    #[inline]
    fn is_due(&self, count: usize) -> bool {
        let peak = self.peak.get();
        if count >= peak {
            self.peak.set(count);
            return false;
        }
        count <= peak / 2 && peak - count >= self.min_freed
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
        let update = |count| {
            // Without the minimum time between two trims.
            heap_trim.not_before.set(None);
            heap_trim.update(count)
        };
        assert!(!update(3000) && !update(0), "a small burst");
        assert!(!update(100_000) && !update(50_001));
        assert!(update(50_000) && !update(50_000), "half have been freed");
        assert!(!update(60_000) && !update(40_000));
        assert!(update(0) && !update(0));
        assert!(!update(4096) && update(0));
    }

    #[test]
    fn trim_is_repeated_only_after_a_while() {
        let heap_trim = HeapTrim::new(1);
        assert!(!heap_trim.update(10) && heap_trim.update(1));
        assert!(!heap_trim.update(10));
        heap_trim.not_before.set(Some(Instant::now() + Duration::from_secs(1000)));
        assert!(!heap_trim.update(1), "too early");
        heap_trim.not_before.set(Some(Instant::now()));
        assert!(heap_trim.update(1), "the memory is not forgotten");
    }
}
