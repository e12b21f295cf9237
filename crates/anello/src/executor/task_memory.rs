//! Per-thread cache for task memory.
//!
//! Servers spawn a task for each connection. Tasks come in only a few sizes. The memory of finished tasks, which is still
//! in the CPU cache, is therefore reused. When the size limit is reached, the blocks of the least recently used size are
//! freed first.

use std::alloc::Layout;
use std::cell::RefCell;
use std::ptr::NonNull;

use super::task_pages;

/// Maximum size of each thread's cache. Zero under tools that check every allocation.
const MAX_CACHED_BYTES: usize = if cfg!(any(miri, plain_memory)) { 0 } else { 256 * 1024 };

const MAX_SIZES: usize = 8;

thread_local! {
    static TASK_CACHE: RefCell<TaskCache> = const { RefCell::new(TaskCache::new(MAX_CACHED_BYTES)) };
}

struct TaskCache {
    /// Free blocks by size, most recently used first.
    sizes: Vec<Blocks>,
    bytes: usize,
    max_bytes: usize,
}

struct Blocks {
    layout: Layout,
    /// Each block was allocated with `layout` and is owned by this list.
    free: Vec<NonNull<u8>>,
}

/// Allocates a block. The block may be freed on another thread.
///
/// # Panics
/// Panics if the size of the layout is 0.
pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    // `try_with` fails during thread exit, once the cache has been destroyed.
    if let Ok(Some(block)) = TASK_CACHE.try_with(|cache| cache.borrow_mut().take(layout)) {
        return block;
    }
    task_pages::allocate(layout)
}

/// Frees a block, or keeps it in the cache.
///
/// # Safety
/// The block must come from [`allocate`] with the same layout, and must not be used after this call.
pub(super) unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if TASK_CACHE.try_with(|cache| cache.borrow_mut().keep(block, layout)) != Ok(true) {
        // SAFETY: the caller guarantees that the block was allocated with this layout, and the cache did not keep it.
        unsafe { task_pages::free(block, layout) }
    }
}

/// Frees all blocks in the cache.
pub(super) fn clear() {
    // Without a borrow during the deallocation, which is the application's code if it has its own allocator.
    let sizes = TASK_CACHE.try_with(|cache| cache.replace(TaskCache::new(MAX_CACHED_BYTES)));
    drop(sizes);
}

impl TaskCache {
    const fn new(max_bytes: usize) -> Self {
        Self { sizes: Vec::new(), bytes: 0, max_bytes }
    }

    /// Marks a size as the most recently used. Returns `false` if the cache does not contain it.
    fn touch_size(&mut self, layout: Layout) -> bool {
        let position = self.sizes.iter().position(|blocks| blocks.layout == layout);
        if let Some(index @ 1..) = position {
            self.sizes[..=index].rotate_right(1);
        }
        position.is_some()
    }

    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        if !self.touch_size(layout) {
            return None;
        }
        let block = self.sizes[0].free.pop()?;
        self.bytes -= layout.size();
        Some(block)
    }

    /// Adds a block to the cache. Returns `false` if the cache does not keep it.
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
            // Blocks of this size already fill the cache.
            let [_, .., last] = &mut self.sizes[..] else { return false };
            match last.free_one() {
                true => self.bytes -= last.layout.size(),
                false => self.evict_lru_size(),
            }
        }
        debug_assert!(
            !self.sizes[0].free.iter().rev().take(16).any(|other| *other == block),
            "invariant 12: the memory of a task is freed twice"
        );
        self.sizes[0].free.push(block);
        self.bytes += layout.size();
        debug_assert!(self.bytes <= self.max_bytes, "the cache of task memory exceeds its limit");
        true
    }

    /// Frees all blocks of the least recently used size.
    fn evict_lru_size(&mut self) {
        if let Some(last) = self.sizes.pop() {
            self.bytes -= last.free.len() * last.layout.size();
        }
    }
}

impl Blocks {
    /// Frees one block. Returns `false` if there is none.
    fn free_one(&mut self) -> bool {
        let block = self.free.pop();
        if let Some(block) = block {
            // SAFETY: the block was allocated with this layout, and nothing else refers to it.
            unsafe { task_pages::free(block, self.layout) }
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
    fn freed_blocks_are_reused_within_byte_limit() {
        let [small, large] = [128, 4096].map(layout);
        let first = allocate(small);
        assert_eq!((first.addr().get() % 64, cached_bytes()), (0, 0));
        // SAFETY: the block was allocated with this layout and is not used after this call.
        unsafe { free(first, small) };
        let (other_size, second) = (allocate(large), allocate(small));
        assert_eq!((second == first, cached_bytes()), (MAX_CACHED_BYTES > 0, 0));
        // SAFETY: the block was allocated with this layout and is not used after this call.
        unsafe { free(second, small) };
        let many: Vec<_> = std::iter::repeat_with(|| allocate(large)).take(100).collect();
        for block in many.into_iter().chain([other_size]) {
            // SAFETY: the block was allocated with this layout and is not used after this call.
            unsafe { free(block, large) };
            assert!(cached_bytes() <= MAX_CACHED_BYTES);
        }
    }

    /// Returns a cache with the usual limit, even under tools that check every allocation.
    fn cache() -> TaskCache {
        TaskCache::new(256 * 1024)
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64).expect("alignment is a power of two")
    }

    /// Allocates a block like [`allocate`]. Also returns whether the block came from the cache.
    fn allocate_of(cache: &mut TaskCache, layout: Layout) -> (NonNull<u8>, bool) {
        let taken = cache.take(layout);
        let block = taken.unwrap_or_else(|| task_pages::allocate(layout));
        // Tools detect this write if the block is already in use.
        // SAFETY: the block has this size, and nothing else refers to it.
        unsafe { block.write_bytes(7, layout.size()) };
        (block, taken.is_some())
    }

    /// Frees a block like [`free`]. Returns whether the cache kept the block.
    fn free_of(cache: &mut TaskCache, block: NonNull<u8>, layout: Layout) -> bool {
        let is_cached = cache.keep(block, layout);
        if !is_cached {
            // SAFETY: the block was allocated with this layout, and the cache did not keep it.
            unsafe { task_pages::free(block, layout) };
        }
        is_cached
    }

    /// Allocates `count` blocks of one size, then frees them and checks the accounting of the cache.
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
    fn least_recently_used_size_is_evicted() {
        let mut cache = cache();
        for size in 1..=MAX_SIZES {
            use_many(&mut cache, layout(size * 64), 1);
        }
        let late = layout(4096);
        use_many(&mut cache, late, 1);
        assert!(cache.take(layout(64)).is_none(), "the least recently used size is evicted");
        let (block, is_cached) = allocate_of(&mut cache, late);
        assert!(is_cached && free_of(&mut cache, block, late));
        assert!(!cache.sizes.iter().any(|blocks| blocks.layout == layout(64)));
    }

    #[test]
    fn full_cache_evicts_blocks_of_other_sizes() {
        let mut cache = cache();
        use_many(&mut cache, layout(1024), 300);
        assert_eq!(cache.bytes, cache.max_bytes);
        use_many(&mut cache, layout(2048), 100);
        assert_eq!(cache.sizes[0].free.len(), 100);
        let (block, _) = allocate_of(&mut cache, layout(512 * 1024));
        assert!(!free_of(&mut cache, block, layout(512 * 1024)), "the block is larger than the cache");
        assert_eq!(cache.bytes, cache.max_bytes);
        // A single block of this size fills the cache.
        use_many(&mut cache, layout(256 * 1024), 2);
        assert_eq!((cache.sizes.len(), cache.sizes[0].free.len()), (1, 1));
    }

    #[test]
    fn block_can_be_freed_on_another_thread() {
        let layout = layout(192);
        let block = allocate(layout).as_ptr().expose_provenance();
        let thread = std::thread::spawn(move || {
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(block)).expect("not null");
            // SAFETY: the block was allocated with this layout and is not used after this call.
            unsafe { free(block, layout) };
        });
        thread.join().expect("freed");
    }
}
