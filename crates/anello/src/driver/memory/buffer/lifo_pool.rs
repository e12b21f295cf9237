//! Buffers that are not part of a ring.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// Buffer sizes of the pool in bytes. A stream switches to the next larger size when its reads fill the buffer, and to
/// the next smaller size when they use only part of it. A read that fills its buffer is followed by another read. The
/// third size is therefore twice the most common size of large sends, which is 64 KiB. The largest size receives longer
/// messages with fewer calls, and fits into the L2 cache of most processors.
pub(crate) const CLASS_BYTES: [usize; CLASSES] = [4 * 1024, 16 * 1024, 128 * 1024, 256 * 1024];

const CLASSES: usize = 4;

/// Maximum number of free buffers kept for reuse, by class. Any others are returned to the allocator.
const MAX_FREE_PER_CLASS: [usize; CLASSES] = [256, 64, 8, 8];

const PAGE_BYTES: usize = 4096;

/// Free buffers by class, reused in LIFO order.
#[derive(Debug, Default)]
pub(super) struct LifoPool {
    /// The buffer released last. If only one message is processed at a time, this is the only buffer in use.
    last: [Cell<Option<NonNull<u8>>>; CLASSES],
    free: [RefCell<Vec<NonNull<u8>>>; CLASSES],
}

impl LifoPool {
    #[inline]
    pub fn take(&self, class: usize) -> NonNull<u8> {
        match self.last[class].take() {
            Some(base) => base,
            None => self.take_more(class),
        }
    }

    #[cold]
    fn take_more(&self, class: usize) -> NonNull<u8> {
        let free = self.free[class].borrow_mut().pop();
        free.unwrap_or_else(|| allocate(layout(CLASS_BYTES[class])))
    }

    #[inline]
    pub fn release(&self, class: usize, base: NonNull<u8>) {
        if let Some(previous) = self.last[class].replace(Some(base)) {
            debug_assert_ne!(previous, base, "invariant 5: a buffer is released twice");
            self.release_slow(class, previous);
        }
    }

    #[cold]
    fn release_slow(&self, class: usize, base: NonNull<u8>) {
        let mut free = self.free[class].borrow_mut();
        debug_assert!(!free.contains(&base), "invariant 5: a buffer is released twice");
        if free.len() < MAX_FREE_PER_CLASS[class] {
            free.push(base);
        } else {
            // SAFETY: every buffer of a class was allocated with this layout, and its only lease has ended.
            unsafe { dealloc(base.as_ptr(), layout(CLASS_BYTES[class])) }
        }
    }
}

impl Drop for LifoPool {
    fn drop(&mut self) {
        for (class, free) in self.free.iter().enumerate() {
            for base in free.borrow_mut().drain(..).chain(self.last[class].take()) {
                // SAFETY: as in `release_slow`.
                unsafe { dealloc(base.as_ptr(), layout(CLASS_BYTES[class])) }
            }
        }
    }
}

pub(super) fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), PAGE_BYTES).expect("buffer size is below isize::MAX")
}

pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    try_allocate(layout).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Allocates zeroed memory. Untouched pages of a large allocation use no physical memory.
pub(super) fn try_allocate(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: the size of the layout is greater than zero.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}
