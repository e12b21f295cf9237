//! Pages of memory for the objects of which a server has one per connection.
//!
//! When most connections of a burst have closed, the remaining objects are scattered. A general allocator returns only
//! long runs of free memory to the operating system. The memory of each page of this module is returned as soon as the
//! page is freed.
//!
//! # Design
//!
//! Pages are parts of regions, which are never unmapped: unmapping single pages would split the mappings of the process,
//! of which Linux allows 65,530 by default. Freed pages keep their addresses, and any thread can reuse them.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

pub(crate) const PAGE_BYTES: usize = 4096;

const PAGE: Layout = match Layout::from_size_align(PAGE_BYTES, PAGE_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("page size is not a power of two"),
};

/// Size of the regions that are mapped.
const REGION_BYTES: usize = 64 * PAGE_BYTES;

/// Set under tools that check every allocation: each page is then an allocation.
const IS_PLAIN: bool = cfg!(any(miri, plain_memory));

/// A page that nothing refers to.
struct FreePage(NonNull<u8>);

// SAFETY: nothing else refers to the page, and its memory does not belong to a thread.
unsafe impl Send for FreePage {}

static FREE_PAGES: Mutex<Vec<FreePage>> = Mutex::new(Vec::new());

fn free_pages() -> MutexGuard<'static, Vec<FreePage>> {
    FREE_PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates a page, which is aligned to its size. Its content is undefined.
pub(crate) fn allocate() -> NonNull<u8> {
    if IS_PLAIN {
        // SAFETY: the size is not 0.
        return NonNull::new(unsafe { alloc(PAGE) }).unwrap_or_else(|| handle_alloc_error(PAGE));
    }
    let mut free_pages = free_pages();
    if free_pages.is_empty() {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses an address that is not in use.
        let mapped = unsafe { mmap_anonymous(null_mut(), REGION_BYTES, protection, flags) };
        let region = mapped.ok().and_then(NonNull::new).unwrap_or_else(|| handle_alloc_error(PAGE));
        // A huge page would bring back memory that has been returned. Fails if the kernel has no huge pages.
        // SAFETY: the advice does not change the content of the region.
        unsafe { madvise(region.as_ptr(), REGION_BYTES, Advice::LinuxNoHugepage) }.ok();
        // The page with the lowest address is used first.
        let offsets = (0..REGION_BYTES).step_by(PAGE_BYTES).rev();
        // SAFETY: the offset is within the region.
        free_pages.extend(offsets.map(|offset| FreePage(unsafe { region.byte_add(offset) }.cast())));
    }
    free_pages.pop().map_or_else(|| handle_alloc_error(PAGE), |page| page.0)
}

/// Frees a page and returns its memory to the operating system.
///
/// # Safety
/// The page must come from [`allocate`], and must not be used after this call.
pub(crate) unsafe fn free(page: NonNull<u8>) {
    if IS_PLAIN {
        // SAFETY: the page was allocated with this layout, and the caller guarantees that it is not used any more.
        return unsafe { dealloc(page.as_ptr(), PAGE) };
    }
    // SAFETY: the caller guarantees that the content is not used any more.
    unsafe { discard(page) };
    free_pages().push(FreePage(page));
}

/// Returns the memory of a page to the operating system. The page stays mapped.
///
/// # Safety
/// The page must come from [`allocate`], and its content must not be used any more.
unsafe fn discard(page: NonNull<u8>) {
    // The kernel rounds the length up to its own page size, which can be larger on ARM. Such memory is only reused.
    if rustix::param::page_size() <= PAGE_BYTES {
        // Fails only if the memory is locked. It then stays resident, and is reused.
        // SAFETY: the caller guarantees that the content is not used any more.
        unsafe { madvise(page.as_ptr().cast(), PAGE_BYTES, Advice::LinuxDontNeed) }.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_disjoint() {
        let mut pages: Vec<_> = std::iter::repeat_with(allocate).take(200).collect();
        for page in &pages {
            // SAFETY: the page has this size, and nothing else refers to it. Tools detect the write if it has been freed.
            unsafe { page.write_bytes(7, PAGE_BYTES) };
        }
        pages.sort();
        assert!(pages.iter().all(|page| page.addr().get() % PAGE_BYTES == 0));
        assert!(pages.windows(2).all(|pair| pair[1].addr().get() - pair[0].addr().get() >= PAGE_BYTES));
        for page in pages {
            // SAFETY: the page was allocated above and is not used any more.
            unsafe { free(page) };
        }
    }

    #[test]
    #[cfg_attr(any(miri, plain_memory), ignore = "each page is an allocation")]
    fn memory_of_freed_page_is_returned() {
        let page = allocate();
        // SAFETY: the page has this size, and nothing else refers to it.
        unsafe { page.write_bytes(7, PAGE_BYTES) };
        // SAFETY: the content is not used any more.
        unsafe { discard(page) };
        // The kernel provides a new page, which contains zeros.
        // SAFETY: the page is still allocated, and nothing else refers to it.
        assert_eq!(unsafe { page.read() }, if rustix::param::page_size() <= PAGE_BYTES { 0 } else { 7 });
        // SAFETY: the page was allocated above and is not used any more.
        unsafe { free(page) };
    }
}
