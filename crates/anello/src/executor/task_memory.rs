//! Memory of tasks. Connections come and go, and their tasks are all of a few sizes, aligned to cache lines, which
//! allocators are slow at: what one task gives back serves the next one, still in the cache.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// Most bytes that a thread keeps. None where a tool watches each allocation.
const KEPT_BYTES: usize = if cfg!(any(miri, plain_memory)) { 0 } else { 256 * 1024 };

/// Most sizes of which any are kept.
const MOST_SIZES: usize = 8;

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { sizes: Vec::new(), bytes: 0 }) };
}

/// What a thread keeps.
struct Kept {
    sizes: Vec<Blocks>,
    bytes: usize,
}

struct Blocks {
    layout: Layout,
    /// Nobody else's, each allocated with the layout.
    free: Vec<NonNull<u8>>,
}

/// A block of this layout, which is of some size. It may be freed on another thread.
pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    // A thread at its end keeps nothing any more.
    if let Ok(Some(block)) = KEPT.try_with(|kept| kept.borrow_mut().take(layout)) {
        return block;
    }
    assert_ne!(layout.size(), 0, "a task has a header");
    // SAFETY: the layout is not of size zero.
    let block = unsafe { alloc(layout) };
    NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Gives a block back.
///
/// # Safety
/// It must come from [`allocate`] with the same layout, and not be used any more.
pub(super) unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if KEPT.try_with(|kept| kept.borrow_mut().keep(block, layout)) != Ok(true) {
        // SAFETY: as the caller promises; it was not kept.
        unsafe { dealloc(block.as_ptr(), layout) }
    }
}

impl Kept {
    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let blocks = self.sizes.iter_mut().find(|blocks| blocks.layout == layout)?;
        let block = blocks.free.pop()?;
        self.bytes -= layout.size();
        Some(block)
    }

    /// Whether it was kept.
    fn keep(&mut self, block: NonNull<u8>, layout: Layout) -> bool {
        if self.bytes + layout.size() > KEPT_BYTES {
            return false;
        }
        let known = self.sizes.iter().position(|blocks| blocks.layout == layout);
        let place = match known {
            Some(place) => place,
            None if self.sizes.len() == MOST_SIZES => return false,
            None => {
                self.sizes.push(Blocks { layout, free: Vec::new() });
                self.sizes.len() - 1
            }
        };
        self.sizes[place].free.push(block);
        self.bytes += layout.size();
        true
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for block in self.free.drain(..) {
            // SAFETY: allocated with this layout, and nobody else's.
            unsafe { dealloc(block.as_ptr(), self.layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_bytes() -> usize {
        KEPT.with(|kept| kept.borrow().bytes)
    }

    #[test]
    fn what_is_given_back_serves_the_next_of_its_size_and_is_bounded() {
        let [small, large] =
            [128, 4096].map(|bytes| Layout::from_size_align(bytes, 64).expect("a layout of a power of two"));
        let first = allocate(small);
        assert_eq!((first.addr().get() % 64, kept_bytes()), (0, 0));
        // SAFETY: allocated so, and not used any more; the same below.
        unsafe { free(first, small) };
        let (of_another_size, second) = (allocate(large), allocate(small));
        assert_eq!((second == first, kept_bytes()), (KEPT_BYTES > 0, 0));
        // SAFETY: as above.
        unsafe { free(second, small) };
        let many: Vec<_> = std::iter::repeat_with(|| allocate(large)).take(100).collect();
        for block in many.into_iter().chain([of_another_size]) {
            // SAFETY: as above.
            unsafe { free(block, large) };
            assert!(kept_bytes() <= KEPT_BYTES);
        }
    }

    #[test]
    fn blocks_may_be_freed_by_another_thread() {
        let layout = Layout::from_size_align(192, 64).expect("a layout of a power of two");
        let block = allocate(layout).as_ptr().expose_provenance();
        let thread = std::thread::spawn(move || {
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(block)).expect("not null");
            // SAFETY: allocated so, and not used any more.
            unsafe { free(block, layout) };
        });
        thread.join().expect("freed");
    }
}
