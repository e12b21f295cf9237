//! Storage for the slots of one page of a table.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::pages::{self, PAGE_BYTES};

/// A vector of at most `MAX` elements. While it is short, its memory comes from the global allocator. A full-length
/// vector is in a page of its own, whose memory is returned to the operating system when the vector is dropped.
pub(super) struct Slots<T> {
    /// Dangling while the capacity is 0.
    start: NonNull<T>,
    length: u32,
    capacity: u32,
}

// SAFETY: a vector owns its elements.
unsafe impl<T: Send> Send for Slots<T> {}

// SAFETY: elements are only changed through exclusive references.
unsafe impl<T: Sync> Sync for Slots<T> {}

impl<T> Slots<T> {
    /// Vectors of other elements always use the global allocator: small ones would waste most of the page, and few
    /// large ones would fit.
    const IS_PAGED: bool = size_of::<T>() * 64 >= PAGE_BYTES && size_of::<T>() * 8 <= PAGE_BYTES;

    pub const MAX: usize = if Self::IS_PAGED { PAGE_BYTES / size_of::<T>() } else { 64 };

    pub const fn new() -> Self {
        Self { start: NonNull::dangling(), length: 0, capacity: 0 }
    }

    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Appends an element.
    ///
    /// # Panics
    /// Panics if there are `MAX` elements.
    pub fn push(&mut self, value: T) {
        if self.length == self.capacity {
            self.grow((2 * self.capacity()).clamp(4, Self::MAX));
        }
        // SAFETY: the index is less than the capacity.
        unsafe { self.start.add(self.len()).write(value) }
        self.length += 1;
    }

    /// Increases the capacity.
    ///
    /// # Panics
    /// Panics if the new capacity is not larger.
    #[cold]
    #[inline(never)]
    pub fn grow(&mut self, capacity: usize) {
        assert!(capacity > self.capacity() && capacity <= Self::MAX, "cannot hold {capacity} slots");
        let start = match Self::is_page(capacity) {
            true => pages::allocate().cast(),
            // SAFETY: neither the capacity nor the size of an element is 0.
            false => NonNull::new(unsafe { alloc(Self::layout(capacity)) }.cast())
                .unwrap_or_else(|| handle_alloc_error(Self::layout(capacity))),
        };
        // SAFETY: the new memory is large enough, and the elements are moved: only the memory is freed.
        unsafe {
            self.start.copy_to_nonoverlapping(start, self.len());
            self.free_memory();
        }
        (self.start, self.capacity) = (start, capacity as u32);
    }

    const fn is_page(capacity: usize) -> bool {
        Self::IS_PAGED && capacity == Self::MAX
    }

    const fn layout(capacity: usize) -> Layout {
        assert!(size_of::<T>() > 0, "elements have no size");
        match Layout::array::<T>(capacity) {
            Ok(layout) => layout,
            Err(_) => panic!("slots are larger than the address space"),
        }
    }

    /// # Safety
    /// The memory must not be used after this call.
    unsafe fn free_memory(&mut self) {
        // SAFETY: the memory was allocated in `grow` in the same way.
        unsafe {
            match self.capacity() {
                0 => {}
                capacity if Self::is_page(capacity) => pages::free(self.start.cast()),
                capacity => dealloc(self.start.as_ptr().cast(), Self::layout(capacity)),
            }
        }
    }
}

impl<T> Deref for Slots<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: elements up to the length have been written.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.length as usize).as_ref() }
    }
}

impl<T> DerefMut for Slots<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: elements up to the length have been written, and the vector is borrowed exclusively.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.length as usize).as_mut() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Slots<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        // SAFETY: neither the elements nor the memory is used after this call.
        unsafe {
            NonNull::slice_from_raw_parts(self.start, self.len()).drop_in_place();
            self.free_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// Fills a vector of elements of this size, and checks that growth moves them and that all of them are dropped.
    fn fill<const BYTES: usize>(expected_max: usize) {
        let shared = Rc::new(());
        let mut slots = Slots::new();
        assert_eq!(Slots::<(Rc<()>, usize, [u8; BYTES])>::MAX, expected_max);
        for index in 0..expected_max {
            slots.push((Rc::clone(&shared), index, [index as u8; BYTES]));
            assert_eq!((slots.len(), Rc::strong_count(&shared)), (index + 1, index + 2));
        }
        slots.swap(0, 1);
        assert!(slots.iter().map(|slot| slot.1).eq([1, 0].into_iter().chain(2..expected_max)));
        assert!(slots.iter().all(|slot| slot.2.iter().all(|byte| *byte == slot.1 as u8)));
        assert_eq!(slots.capacity(), expected_max);
        drop(slots);
        assert_eq!(Rc::strong_count(&shared), 1);
    }

    #[test]
    fn vector_holds_its_maximum_number_of_elements() {
        fill::<16>(64);
        fill::<48>(64);
        fill::<176>(21);
        fill::<240>(16);
        fill::<496>(8);
        fill::<504>(64);
    }

    #[test]
    #[should_panic(expected = "cannot hold")]
    fn push_beyond_maximum_panics() {
        let mut slots = Slots::new();
        (0..=Slots::<[u64; 32]>::MAX).for_each(|index| slots.push([index as u64; 32]));
    }

    #[test]
    fn only_full_length_vectors_of_suitable_elements_are_pages() {
        assert!(Slots::<[u64; 32]>::is_page(16) && !Slots::<[u64; 32]>::is_page(8));
        assert!(!Slots::<u8>::is_page(64) && !Slots::<[u64; 65]>::is_page(64));
    }

    #[test]
    fn capacity_doubles() {
        let mut slots = Slots::new();
        let capacities = (0..64).map(|index| {
            slots.push(index);
            slots.capacity()
        });
        assert!(capacities.eq((1..=64_usize).map(|length| length.next_power_of_two().max(4))));
    }
}
