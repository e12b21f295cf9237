//! Returns memory to the operating system after a burst.
//!
//! The pages of streams and small tasks are returned when they are empty (`driver/memory/pages.rs`). The allocator of
//! glibc keeps the memory of larger tasks and of applications, except at the end of the heap. It is therefore asked to
//! return its free pages. Other allocators return memory on their own.
//!
//! The number of objects shows when the memory of many small ones has been freed. Large objects, such as the buffers of
//! responses, may be few: for them, the free memory of the heap is measured.

use std::cell::Cell;
use std::mem;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::task_memory;

/// Minimum time between two trims.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Part of the time that trims may take: one of this many parts.
const TIME_PARTS: u32 = 100;

/// Smaller amounts of free memory are kept, in bytes.
const MIN_FREE_BYTES: usize = 16 << 20;

/// The heap, which all threads share.
static HEAP: Mutex<Heap> = Mutex::new(Heap { not_before: None, last_free: 0, returned: 0 });

/// Measurements of the heap. All sizes are in bytes.
#[derive(Debug)]
struct Heap {
    /// The next measurement may not start before.
    not_before: Option<Instant>,
    /// Free memory at the last measurement.
    last_free: usize,
    /// Free memory that the last trim has returned, and that has not been used since.
    returned: usize,
}

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

    /// Measures the memory of the heap that is free. If at least 16 MiB, and a quarter of the used memory, have been free
    /// since the last measurement and have not been returned yet, returns them to the operating system, like
    /// [`update`](Self::update), and returns `true`.
    ///
    /// There is at most one measurement per second in the process, and fewer if they would take more than 1 % of the time:
    /// call this periodically, and for two seconds after the last object has been freed.
    ///
    /// ```
    /// use anello::server::HeapTrim;
    ///
    /// assert!(!HeapTrim::return_free_memory(), "this process has used little memory");
    /// ```
    pub fn return_free_memory() -> bool {
        let start = Instant::now();
        // If the lock is held, another thread is measuring.
        let Ok(mut heap) = HEAP.try_lock() else { return false };
        if heap.not_before.is_some_and(|not_before| start < not_before) {
            return false;
        }
        let is_due = heap_bytes().is_some_and(|(used, free)| heap.is_due(used, free));
        if is_due {
            trim();
            heap.returned = heap_bytes().map_or(0, |(_, free)| free);
        }
        let end = Instant::now();
        heap.not_before = Some(end + MIN_INTERVAL.max((end - start) * TIME_PARTS));
        is_due
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

impl Heap {
    fn is_due(&mut self, used: usize, free: usize) -> bool {
        self.returned = self.returned.min(free);
        // Memory that is free only for a moment is needed again.
        let lasting = free.min(mem::replace(&mut self.last_free, free));
        lasting.saturating_sub(self.returned) >= MIN_FREE_BYTES.max(used / 4)
    }
}

/// Returns the used and the free memory of the heap of all threads in bytes, modulo 4 GiB. Large blocks, which are not
/// part of the heap, are not counted.
#[cfg(all(target_env = "gnu", not(miri)))]
fn heap_bytes() -> Option<(usize, usize)> {
    // `mallinfo2` has larger fields, but requires glibc 2.33.
    // SAFETY: the function accesses only memory that the allocator owns, under the allocator's locks.
    let info = unsafe { libc::mallinfo() };
    Some((info.uordblks as u32 as usize, info.fordblks as u32 as usize))
}

#[cfg(not(all(target_env = "gnu", not(miri))))]
fn heap_bytes() -> Option<(usize, usize)> {
    None
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
    fn free_memory_is_returned_once() {
        const MIB: usize = 1 << 20;
        let mut heap = Heap { not_before: None, last_free: 0, returned: 0 };
        assert!(!heap.is_due(MIB, 15 * MIB) && !heap.is_due(MIB, 15 * MIB), "a small amount");
        assert!(!heap.is_due(MIB, 300 * MIB) && !heap.is_due(300 * MIB, MIB), "free only for a moment");
        assert!(!heap.is_due(MIB, 300 * MIB) && heap.is_due(MIB, 300 * MIB));
        // The allocator still counts returned memory as free.
        heap.returned = 300 * MIB;
        assert!(!heap.is_due(MIB, 310 * MIB) && !heap.is_due(MIB, 310 * MIB));
        // It is used and freed again.
        assert!(
            !heap.is_due(290 * MIB, 10 * MIB) && !heap.is_due(MIB, 300 * MIB) && heap.is_due(MIB, 300 * MIB)
        );
        heap.returned = 0;
        assert!(
            !heap.is_due(1000 * MIB, 240 * MIB) && !heap.is_due(1000 * MIB, 240 * MIB),
            "less than a quarter"
        );
        assert!(heap.is_due(900 * MIB, 240 * MIB));
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
