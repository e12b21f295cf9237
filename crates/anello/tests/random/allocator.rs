//! Allocator that counts the allocations on each thread, and the allocated bytes that the thread has not freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// Returns the number of allocations of this thread.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Returns the number of bytes that this thread has allocated and not freed. Memory that another thread frees makes the
/// other thread's number negative.
pub fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

fn count(allocated: usize, freed: usize) {
    // When a thread exits, its counters may already have been destroyed.
    ALLOCATIONS.try_with(|count| count.set(count.get() + u64::from(allocated > 0))).ok();
    LIVE_BYTES.try_with(|bytes| bytes.set(bytes.get() + allocated as isize - freed as isize)).ok();
}

// SAFETY: every call is forwarded unchanged to the system allocator. Counting does not allocate, because the counters
// are initialised at compile time and have no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size, layout.size());
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
