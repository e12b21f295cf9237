//! Number of bytes that the current thread has allocated and not freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Allocator that counts the bytes allocated by each thread.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

pub fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

fn count(bytes: isize) {
    // When a thread exits, its counter may already have been destroyed.
    LIVE_BYTES.try_with(|live| live.set(live.get() + bytes)).ok();
}

// SAFETY: every call is forwarded unchanged to the system allocator. Counting does not allocate, because the counter
// is initialised at compile time and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract, which is the same for the system allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
