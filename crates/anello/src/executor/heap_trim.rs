//! Returns memory to the operating system after a burst.
//!
//! The pages of streams and small tasks are returned when they are empty (`driver/memory/pages.rs`). The allocator of
//! glibc keeps the memory of larger tasks and of applications, except at the end of the heap. It is therefore asked to
//! return its free pages. Other allocators return memory on their own.
//!
//! The number of objects shows when the memory of many small ones has been freed. Large objects, such as the buffers of
//! responses, may be few: for them, the free memory of the heap is measured.

use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::task_memory;

/// Minimum time between two trims.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Part of the CPU time of one core that trims may take: one of this many parts.
const TIME_PARTS: u32 = 100;

/// Estimate of the CPU time after which the kernel has provided a returned page again.
const FAULT_TIME: Duration = Duration::from_nanos(250);

/// Minimum size of a page.
const PAGE_BYTES: usize = 4096;

/// Smaller amounts of free memory are kept, in bytes.
const MIN_FREE_BYTES: usize = 16 << 20;

/// The heap, which all threads share.
static HEAP: Mutex<Heap> = Mutex::new(Heap { not_before: None, last_free: 0, returned: 0, last_faults: 0 });

/// Measurements of the heap. All sizes are in bytes.
#[derive(Debug)]
struct Heap {
    /// The next measurement may not start before.
    not_before: Option<Instant>,
    /// Free memory at the last measurement.
    last_free: usize,
    /// Free memory that the last trim has returned, and that has not been used since.
    returned: usize,
    /// Number of page faults of the process until the last measurement.
    last_faults: u64,
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
    /// There is at most one per second, and fewer if they would take more than 1 % of the CPU time of a core: call this
    /// periodically.
    #[inline]
    pub fn update(&self, count: usize) -> bool {
        if !self.is_due(count) {
            return false;
        }
        if self.not_before.get().is_some_and(|not_before| Instant::now() < not_before) {
            return false;
        }
        self.peak.set(count);
        let ((), duration) = with_duration(trim);
        self.not_before.set(Some(next_time(duration)));
        true
    }

    /// Measures the memory of the heap that is free. If at least 16 MiB, and a quarter of the used memory, have been free
    /// since the last measurement and have not been returned yet, returns them to the operating system, like
    /// [`update`](Self::update), and returns `true`.
    ///
    /// There is at most one measurement per second in the process, and fewer if they, and the page faults of programs that
    /// use returned memory again, would take more than 1 % of the CPU time of a core: call this periodically, and for two
    /// seconds after the last object has been freed.
    ///
    /// ```
    /// use anello::server::HeapTrim;
    ///
    /// assert!(!HeapTrim::return_free_memory(), "this process has used little memory");
    /// ```
    pub fn return_free_memory() -> bool {
        // If the lock is held, another thread is measuring.
        let Ok(mut heap) = HEAP.try_lock() else { return false };
        if heap.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return false;
        }
        heap.return_if_due()
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
    /// Measures the heap, and returns its free memory if that is due. Returns whether it was.
    fn return_if_due(&mut self) -> bool {
        let faults = page_faults();
        let new_faults = faults.saturating_sub(mem::replace(&mut self.last_faults, faults));
        let faulted = usize::try_from(new_faults).unwrap_or(usize::MAX).saturating_mul(PAGE_BYTES);
        let pages_used_again = self.returned.min(faulted) / PAGE_BYTES;
        let (is_due, duration) = with_duration(|| {
            let Some((used, free)) = heap_bytes() else { return false };
            let is_due = self.is_due(used, free, faulted);
            if is_due {
                trim();
                self.returned = heap_bytes().map_or(0, |(_, free)| free);
            }
            is_due
        });
        self.not_before = Some(next_time(duration + FAULT_TIME * pages_used_again as u32));
        is_due
    }

    /// `faulted` is the memory that the kernel has provided since the last measurement. It includes returned memory that
    /// has been used and freed in the meantime.
    fn is_due(&mut self, used: usize, free: usize, faulted: usize) -> bool {
        self.returned = self.returned.saturating_sub(faulted).min(free);
        // Memory that is free only for a moment is needed again.
        let lasting = free.min(mem::replace(&mut self.last_free, free));
        lasting.saturating_sub(self.returned) >= MIN_FREE_BYTES.max(used / 4)
    }
}

/// Calls `action`, and returns its CPU time: that for which the thread was not running, on a busy machine, does not count.
fn with_duration<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let start = thread_time();
    let output = action();
    (output, thread_time().saturating_sub(start))
}

/// Returns the earliest time of the next action after one that took this CPU time.
fn next_time(duration: Duration) -> Instant {
    Instant::now() + MIN_INTERVAL.max(duration * TIME_PARTS)
}

/// Returns the CPU time of this thread.
fn thread_time() -> Duration {
    if cfg!(miri) {
        return Duration::ZERO;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
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

/// Returns the number of pages that the kernel has provided to this process, or 0 if the system call is denied.
fn page_faults() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid. Zeros are a valid value, which remains if the call fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
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
        let mut heap = Heap { not_before: None, last_free: 0, returned: 0, last_faults: 0 };
        let is_due = |heap: &mut Heap, used, free| heap.is_due(used * MIB, free * MIB, 0);
        assert!(!is_due(&mut heap, 1, 15) && !is_due(&mut heap, 1, 15), "a small amount");
        assert!(!is_due(&mut heap, 1, 300) && !is_due(&mut heap, 300, 1), "free only for a moment");
        assert!(!is_due(&mut heap, 1, 300) && is_due(&mut heap, 1, 300));
        // The allocator still counts returned memory as free.
        heap.returned = 300 * MIB;
        assert!(!is_due(&mut heap, 1, 310) && !is_due(&mut heap, 1, 310));
        // It is used and freed again.
        assert!(!is_due(&mut heap, 290, 10) && !is_due(&mut heap, 1, 300) && is_due(&mut heap, 1, 300));
        heap.returned = 0;
        assert!(!is_due(&mut heap, 1000, 240) && !is_due(&mut heap, 1000, 240), "less than a quarter");
        assert!(is_due(&mut heap, 900, 240));
        // It is used and freed again between two measurements.
        heap.returned = 240 * MIB;
        assert!(!heap.is_due(MIB, 240 * MIB, 15 * MIB) && heap.is_due(MIB, 240 * MIB, MIB));
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
