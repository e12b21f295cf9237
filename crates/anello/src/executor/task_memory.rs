//! Memory of tasks. Connections come and go, and their tasks are all of a few sizes, aligned to cache lines, which
//! allocators are slow at: what one task gives back serves the next one, still in the cache.
//!
//! Where there is too much of it, sizes that were asked for or given back longest ago make room.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// Most bytes that a thread keeps. None where a tool watches each allocation.
const MAX_CACHED_BYTES: usize = if cfg!(any(miri, plain_memory)) { 0 } else { 256 * 1024 };

/// Most sizes of which any are kept.
const MAX_SIZES: usize = 8;

thread_local! {
    static TASK_CACHE: RefCell<TaskCache> = const { RefCell::new(TaskCache::new(MAX_CACHED_BYTES)) };
}

/// What a thread keeps.
struct TaskCache {
    /// The one that was used last comes first.
    sizes: Vec<Blocks>,
    bytes: usize,
    max_bytes: usize,
}

struct Blocks {
    layout: Layout,
    /// Nobody else's, each allocated with the layout.
    free: Vec<NonNull<u8>>,
}

/// A block of this layout, which is of some size. It may be freed on another thread.
pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    // A thread at its end keeps nothing any more.
    if let Ok(Some(block)) = TASK_CACHE.try_with(|cache| cache.borrow_mut().take(layout)) {
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
    if TASK_CACHE.try_with(|cache| cache.borrow_mut().keep(block, layout)) != Ok(true) {
        // SAFETY: as the caller promises; it was not kept.
        unsafe { dealloc(block.as_ptr(), layout) }
    }
}

impl TaskCache {
    const fn new(max_bytes: usize) -> Self {
        Self { sizes: Vec::new(), bytes: 0, max_bytes }
    }

    /// Has this size come first; whether it is known.
    fn touch_size(&mut self, layout: Layout) -> bool {
        let known = self.sizes.iter().position(|blocks| blocks.layout == layout);
        if let Some(place @ 1..) = known {
            self.sizes[..=place].rotate_right(1);
        }
        known.is_some()
    }

    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        if !self.touch_size(layout) {
            return None;
        }
        let block = self.sizes[0].free.pop()?;
        self.bytes -= layout.size();
        Some(block)
    }

    /// Whether it was kept.
    fn keep(&mut self, block: NonNull<u8>, layout: Layout) -> bool {
        if layout.size() > self.max_bytes {
            return false;
        }
        if !self.touch_size(layout) {
            if self.sizes.len() == MAX_SIZES {
                self.evict_lru_size();
            }
            self.sizes.insert(0, Blocks { layout, free: Vec::new() });
        }
        while self.bytes + layout.size() > self.max_bytes {
            // As much as there may be is of this size.
            let [_, .., last] = &mut self.sizes[..] else { return false };
            match last.free_one() {
                true => self.bytes -= last.layout.size(),
                false => self.evict_lru_size(),
            }
        }
        self.sizes[0].free.push(block);
        self.bytes += layout.size();
        true
    }

    fn evict_lru_size(&mut self) {
        if let Some(last) = self.sizes.pop() {
            self.bytes -= last.free.len() * last.layout.size();
        }
    }
}

impl Blocks {
    /// Gives one to the allocator, if there is any.
    fn free_one(&mut self) -> bool {
        let block = self.free.pop();
        if let Some(block) = block {
            // SAFETY: allocated with this layout, and nobody else's.
            unsafe { dealloc(block.as_ptr(), self.layout) }
        }
        block.is_some()
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        while self.free_one() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached_bytes() -> usize {
        TASK_CACHE.with(|cache| cache.borrow().bytes)
    }

    #[test]
    fn what_is_given_back_serves_the_next_of_its_size_and_is_bounded() {
        let [small, large] =
            [128, 4096].map(|bytes| Layout::from_size_align(bytes, 64).expect("a layout of a power of two"));
        let first = allocate(small);
        assert_eq!((first.addr().get() % 64, cached_bytes()), (0, 0));
        // SAFETY: allocated so, and not used any more; the same below.
        unsafe { free(first, small) };
        let (of_another_size, second) = (allocate(large), allocate(small));
        assert_eq!((second == first, cached_bytes()), (MAX_CACHED_BYTES > 0, 0));
        // SAFETY: as above.
        unsafe { free(second, small) };
        let many: Vec<_> = std::iter::repeat_with(|| allocate(large)).take(100).collect();
        for block in many.into_iter().chain([of_another_size]) {
            // SAFETY: as above.
            unsafe { free(block, large) };
            assert!(cached_bytes() <= MAX_CACHED_BYTES);
        }
    }

    /// What a thread keeps, where tools watch, too.
    fn cache() -> TaskCache {
        TaskCache::new(256 * 1024)
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64).expect("a layout of a power of two")
    }

    /// As [`allocate`] does; whether it was a kept one.
    fn allocate_of(cache: &mut TaskCache, layout: Layout) -> (NonNull<u8>, bool) {
        let taken = cache.take(layout);
        // SAFETY: the layout is not of size zero.
        let block = taken.unwrap_or_else(|| NonNull::new(unsafe { alloc(layout) }).expect("memory"));
        // Where it is not this one's any more, tools see it.
        // SAFETY: a block of so many bytes that is nobody else's.
        unsafe { block.write_bytes(7, layout.size()) };
        (block, taken.is_some())
    }

    /// As [`free`] does; whether it was kept.
    fn free_of(cache: &mut TaskCache, block: NonNull<u8>, layout: Layout) -> bool {
        let is_cached = cache.keep(block, layout);
        if !is_cached {
            // SAFETY: allocated with this layout, and not kept.
            unsafe { dealloc(block.as_ptr(), layout) };
        }
        is_cached
    }

    /// Uses so many tasks of a size at a time, and ends them.
    fn use_many(cache: &mut TaskCache, layout: Layout, count: usize) {
        let blocks: Vec<_> = std::iter::repeat_with(|| allocate_of(cache, layout).0).take(count).collect();
        for block in blocks {
            free_of(cache, block, layout);
            let counted: usize = cache.sizes.iter().map(|size| size.free.len() * size.layout.size()).sum();
            assert_eq!(cache.bytes, counted);
            assert!(cache.bytes <= cache.max_bytes && cache.sizes.len() <= MAX_SIZES);
        }
    }

    #[test]
    fn sizes_of_long_ago_make_room_for_others() {
        let mut cache = cache();
        for size in 1..=MAX_SIZES {
            use_many(&mut cache, layout(size * 64), 1);
        }
        let late = layout(4096);
        use_many(&mut cache, late, 1);
        assert!(cache.take(layout(64)).is_none(), "the size of longest ago");
        let (block, is_cached) = allocate_of(&mut cache, late);
        assert!(is_cached && free_of(&mut cache, block, late));
        assert!(!cache.sizes.iter().any(|blocks| blocks.layout == layout(64)));
    }

    #[test]
    fn blocks_that_nobody_asks_for_make_room_for_others() {
        let mut cache = cache();
        use_many(&mut cache, layout(1024), 300);
        assert_eq!(cache.bytes, cache.max_bytes);
        use_many(&mut cache, layout(2048), 100);
        assert_eq!(cache.sizes[0].free.len(), 100);
        let (block, _) = allocate_of(&mut cache, layout(512 * 1024));
        assert!(!free_of(&mut cache, block, layout(512 * 1024)), "more than is kept of all");
        assert_eq!(cache.bytes, cache.max_bytes);
        // A size that takes all of it.
        use_many(&mut cache, layout(256 * 1024), 2);
        assert_eq!((cache.sizes.len(), cache.sizes[0].free.len()), (1, 1));
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
