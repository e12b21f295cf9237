//! Memory of small tasks: slots of one size in pages that are returned to the operating system when they are empty.
//!
//! ```text
//!   Pool (one per thread)        page
//!   vacant_pages[64 B]         +--------+--------+--------+-- ... --+--------+
//!   vacant_pages[128 B]  ----> | Header | slot 0 | slot 1 |         | slot n |
//!   ...                        +--------+--------+--------+-- ... --+--------+
//! ```
//!
//! Allocators add a header to each block, and leave unused gaps between blocks that are aligned to cache lines.
//!
//! # Invariants
//!
//! - A page is in `vacant_pages` of its pool exactly while it has vacant slots, at the index `position`. A page without
//!   occupied slots is freed.
//! - `vacant` and `position` of a page are accessed only under the lock of its size in the pool. `pool` is never changed.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::pages::{self, PAGE_BYTES};

/// Slots start at cache lines, and their sizes are multiples of this one.
const LINE_BYTES: usize = 64;

/// Maximum size of a slot. With larger slots, too much of a page would remain unused.
const MAX_SLOT_BYTES: usize = 512;

/// Set under tools that check every allocation.
const IS_PLAIN: bool = cfg!(any(miri, plain_memory));

thread_local! {
    static POOL: Arc<Pool> = Arc::default();
}

#[derive(Default)]
struct Pool {
    /// Pages with vacant slots, by size: multiples of a cache line.
    vacant_pages: [Mutex<Vec<VacantPage>>; MAX_SLOT_BYTES / LINE_BYTES],
}

struct VacantPage(NonNull<Header>);

// SAFETY: the page is accessed only under the lock of the list that contains it.
unsafe impl Send for VacantPage {}

struct Header {
    pool: Arc<Pool>,
    /// Bit set of the vacant slots.
    vacant: Cell<u64>,
    /// Index of the page in `vacant_pages`. Undefined while no slot is vacant.
    position: Cell<usize>,
}

const _: () = assert!(size_of::<Header>() <= LINE_BYTES && PAGE_BYTES / LINE_BYTES <= 64);

/// Returns whether blocks of this layout are slots of pages.
const fn is_paged(layout: Layout) -> bool {
    layout.size() <= MAX_SLOT_BYTES && layout.align() <= LINE_BYTES && !IS_PLAIN
}

/// Returns the layout of a block for a value of this layout. Blocks share no cache line.
pub(super) const fn padded(value: Layout) -> Layout {
    let alignment = if value.align() > LINE_BYTES { value.align() } else { LINE_BYTES };
    // The allocator's own header of 8 bytes would otherwise take a further line.
    let header = if value.size() <= MAX_SLOT_BYTES { 0 } else { 8 };
    match Layout::from_size_align((value.size() + header).next_multiple_of(LINE_BYTES) - header, alignment) {
        Ok(layout) => layout,
        Err(_) => panic!("value is larger than the address space"),
    }
}

/// Allocates a block. The block may be freed on another thread.
///
/// # Panics
/// Panics if the size of the layout is 0.
pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    assert_ne!(layout.size(), 0, "layout size must not be 0");
    if is_paged(layout) {
        // `try_with` fails during thread exit, once the pool has been released.
        let slot = POOL.try_with(|pool| pool.allocate(layout));
        return slot.unwrap_or_else(|_| Arc::new(Pool::default()).allocate(layout));
    }
    // SAFETY: the size of the layout is not 0.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Frees a block.
///
/// # Safety
/// The block must come from [`allocate`] with the same layout, and must not be used after this call.
pub(super) unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if is_paged(layout) {
        // SAFETY: the block is a slot, and the caller guarantees that it is not used any more.
        unsafe { free_slot(block, layout) }
    } else {
        // SAFETY: the caller guarantees that the block was allocated with this layout.
        unsafe { dealloc(block.as_ptr(), layout) }
    }
}

impl Pool {
    fn vacant_pages(&self, layout: Layout) -> MutexGuard<'_, Vec<VacantPage>> {
        let pages = &self.vacant_pages[layout.size().div_ceil(LINE_BYTES) - 1];
        pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a slot. The size of the layout must not be 0, and the layout must be that of a slot.
    fn allocate(self: &Arc<Self>, layout: Layout) -> NonNull<u8> {
        let mut vacant_pages = self.vacant_pages(layout);
        if vacant_pages.is_empty() {
            vacant_pages.push(self.new_page(layout));
        }
        let page = vacant_pages[vacant_pages.len() - 1].0;
        // SAFETY: the page is in the list, so that it has not been freed.
        let header = unsafe { page.as_ref() };
        let vacant = header.vacant.get();
        debug_assert_ne!(
            vacant, 0,
            "invariant 12: a page without vacant slots is listed, so a task would be overwritten"
        );
        header.vacant.set(vacant & (vacant - 1));
        if header.vacant.get() == 0 {
            vacant_pages.pop();
        }
        let offset = LINE_BYTES + vacant.trailing_zeros() as usize * slot_bytes(layout);
        // SAFETY: the slot is within the page.
        unsafe { page.cast::<u8>().add(offset) }
    }

    fn new_page(self: &Arc<Self>, layout: Layout) -> VacantPage {
        let page = pages::allocate().cast::<Header>();
        let header =
            Header { pool: Arc::clone(self), vacant: Cell::new(all_slots(layout)), position: Cell::new(0) };
        // SAFETY: the header is smaller than the page, and nothing else refers to the page.
        unsafe { page.write(header) };
        VacantPage(page)
    }
}

const fn slot_bytes(layout: Layout) -> usize {
    layout.size().next_multiple_of(LINE_BYTES)
}

/// Returns the bit set of all slots of a page.
const fn all_slots(layout: Layout) -> u64 {
    u64::MAX >> (64 - (PAGE_BYTES - LINE_BYTES) / slot_bytes(layout))
}

/// Frees a slot, and its page if no other slot is occupied.
///
/// # Safety
/// The slot must come from [`Pool::allocate`] with the same layout, and must not be used after this call.
unsafe fn free_slot(slot: NonNull<u8>, layout: Layout) {
    let offset = slot.addr().get() % PAGE_BYTES;
    // SAFETY: the page starts at a multiple of its size, with its header.
    let page = unsafe { slot.byte_sub(offset) }.cast::<Header>();
    // SAFETY: the page is not freed while one of its slots is occupied.
    let header = unsafe { page.as_ref() };
    // Keeps the lock alive when the page is freed.
    let pool = Arc::clone(&header.pool);
    let mut vacant_pages = pool.vacant_pages(layout);
    let was_full = header.vacant.get() == 0;
    debug_assert_eq!(
        header.vacant.get() >> ((offset - LINE_BYTES) / slot_bytes(layout)) & 1,
        0,
        "invariant 12: the memory of a task is freed twice"
    );
    header.vacant.set(header.vacant.get() | 1 << ((offset - LINE_BYTES) / slot_bytes(layout)));
    if header.vacant.get() == all_slots(layout) {
        if !was_full {
            let position = header.position.get();
            debug_assert!(
                vacant_pages.get(position).is_some_and(|listed| listed.0 == page),
                "invariant 12: a page is listed at another position, so that a page in use would be freed"
            );
            vacant_pages.swap_remove(position);
            if let Some(moved) = vacant_pages.get(position) {
                // SAFETY: the page is in the list, so that it has not been freed.
                unsafe { moved.0.as_ref() }.position.set(position);
            }
        }
        drop(vacant_pages);
        // SAFETY: all slots are vacant and the page is in no list, so that nothing else refers to it.
        unsafe {
            page.drop_in_place();
            pages::free(page.cast());
        }
    } else if was_full {
        header.position.set(vacant_pages.len());
        vacant_pages.push(VacantPage(page));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fastrand::Rng;

    use super::*;

    fn layout(bytes: usize) -> Layout {
        padded(Layout::from_size_align(bytes, 8).expect("alignment is a power of two"))
    }

    fn listed_pages(pool: &Pool) -> usize {
        pool.vacant_pages.iter().map(|pages| pages.lock().expect("no panic").len()).sum()
    }

    /// Allocates and frees slots of all sizes in random order. The slots that are occupied never overlap, and no page
    /// remains at the end.
    #[test]
    fn slots_do_not_overlap_and_empty_pages_are_freed() {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let pool = Arc::new(Pool::default());
        let mut occupied = BTreeSet::new();
        let rounds = if cfg!(miri) { 300 } else { 4000 };
        for round in 0..2 * rounds {
            // The first half of the rounds mostly allocates, the second half mostly frees.
            if random.usize(..rounds) > round / 2 {
                let layout = layout(random.usize(1..=MAX_SLOT_BYTES));
                let slot = pool.allocate(layout);
                // SAFETY: the slot has this size, and nothing else refers to it.
                unsafe { slot.write_bytes(round as u8, layout.size()) };
                assert_eq!(slot.addr().get() % LINE_BYTES, 0);
                occupied.insert((slot, layout.size(), round as u8));
                let after = occupied.range((slot, 0, 0)..).nth(1);
                assert!(after.is_none_or(|after| after.0.addr().get() - slot.addr().get() >= layout.size()));
            } else if !occupied.is_empty() {
                let chosen = occupied.iter().nth(random.usize(..occupied.len())).copied();
                check_and_free(chosen.expect("slot is occupied"), &mut occupied);
            }
        }
        while let Some(first) = occupied.first().copied() {
            check_and_free(first, &mut occupied);
        }
        assert_eq!((listed_pages(&pool), Arc::strong_count(&pool)), (0, 1));
    }

    fn check_and_free(slot: (NonNull<u8>, usize, u8), occupied: &mut BTreeSet<(NonNull<u8>, usize, u8)>) {
        let (address, bytes, value) = slot;
        // SAFETY: the slot has this size and has been written.
        let content = unsafe { std::slice::from_raw_parts(address.as_ptr(), bytes) };
        assert!(content.iter().all(|byte| *byte == value));
        // SAFETY: the slot was allocated with this layout and is not used after this call.
        unsafe { free_slot(address, layout(bytes)) };
        occupied.remove(&slot);
    }

    #[test]
    fn slot_can_be_freed_on_another_thread_after_its_pool() {
        let pool = Arc::new(Pool::default());
        let slots: Vec<_> =
            (0..50).map(|_| pool.allocate(layout(192)).as_ptr().expose_provenance()).collect();
        let free_all = |slots: &[usize]| {
            for slot in slots {
                let slot = NonNull::new(std::ptr::with_exposed_provenance_mut(*slot)).expect("not null");
                // SAFETY: the slot was allocated with this layout and is not used after this call.
                unsafe { free_slot(slot, layout(192)) };
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| free_all(&slots[..20]));
            free_all(&slots[20..40]);
        });
        let weak = Arc::downgrade(&pool);
        drop(pool);
        free_all(&slots[40..]);
        assert_eq!(weak.strong_count(), 0, "the last page releases the pool");
    }

    #[test]
    fn blocks_share_no_cache_line() {
        let padded = |bytes| layout(bytes).size();
        assert_eq!([1, 64, 184, 192, 193, 512].map(padded), [64, 64, 192, 192, 256, 512]);
        assert_eq!([513, 568, 569].map(padded), [568, 568, 632]);
        assert_eq!(super::padded(Layout::new::<Aligned>()), Layout::new::<Aligned>());
    }

    #[repr(align(128))]
    struct Aligned(#[expect(dead_code, reason = "only its layout matters")] u8);
}
