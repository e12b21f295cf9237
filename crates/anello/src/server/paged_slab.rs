//! A slab that frees its pages.

/// A collection that assigns a key to each value, and whose memory is returned after a burst.
///
/// Like a slab, it inserts and removes in constant time and reuses keys. Unlike a vector of slots, it consists of pages of
/// 64 slots: growth moves no value, and a page without values is freed. Use it for the connections of a server, of which
/// there can be many for a short time.
///
/// ```
/// let mut names = anello::server::PagedSlab::new();
/// let (first, second) = (names.insert("Anna"), names.insert("Piero"));
/// assert_eq!(names.remove(first), Some("Anna"));
/// assert_eq!((names.get(first), names.get(second)), (None, Some(&"Piero")));
/// assert!(names.iter().eq([(second, &"Piero")]));
/// ```
#[derive(Debug)]
pub struct PagedSlab<T> {
    pages: Vec<Page<T>>,
    /// Indices of the pages with vacant slots. The last one is used first.
    vacant_pages: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Page<T> {
    /// Empty if the page has been freed.
    slots: Box<[Option<T>]>,
    /// Bit set of the occupied slots.
    occupied: u64,
}

const SLOTS: usize = u64::BITS as usize;

impl<T> PagedSlab<T> {
    /// Creates a slab without values. Does not allocate.
    pub const fn new() -> Self {
        Self { pages: Vec::new(), vacant_pages: Vec::new(), len: 0 }
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a number that is greater than every key in use, for loops during which the slab changes.
    ///
    /// ```
    /// let mut slab = anello::server::PagedSlab::new();
    /// assert_eq!(slab.key_bound(), 0);
    /// let key = slab.insert("value");
    /// assert!(key < slab.key_bound());
    /// ```
    pub const fn key_bound(&self) -> usize {
        self.pages.len() * SLOTS
    }

    /// Inserts a value and returns its key, which can be the key of a removed value.
    ///
    /// # Panics
    /// Panics if there are more than 2^38 values.
    pub fn insert(&mut self, value: T) -> usize {
        let index = match self.vacant_pages.last() {
            Some(index) => *index,
            None => {
                let index = u32::try_from(self.pages.len()).expect("fewer than 2^38 values");
                self.pages.push(Page { slots: Box::default(), occupied: 0 });
                self.vacant_pages.push(index);
                index
            }
        };
        let page = &mut self.pages[index as usize];
        if page.slots.is_empty() {
            page.slots = std::iter::repeat_with(|| None).take(SLOTS).collect();
        }
        let slot = page.occupied.trailing_ones() as usize;
        page.slots[slot] = Some(value);
        page.occupied |= 1 << slot;
        if page.occupied == u64::MAX {
            self.vacant_pages.pop();
        }
        self.len += 1;
        index as usize * SLOTS + slot
    }

    /// Returns the value with this key.
    pub fn get(&self, key: usize) -> Option<&T> {
        self.pages.get(key / SLOTS)?.slots.get(key % SLOTS)?.as_ref()
    }

    /// Returns the value with this key for changes.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.pages.get_mut(key / SLOTS)?.slots.get_mut(key % SLOTS)?.as_mut()
    }

    /// Removes the value with this key.
    pub fn remove(&mut self, key: usize) -> Option<T> {
        let index = key / SLOTS;
        let page = self.pages.get_mut(index)?;
        let value = page.slots.get_mut(key % SLOTS)?.take()?;
        if page.occupied == u64::MAX {
            self.vacant_pages.push(index as u32);
        }
        page.occupied &= !(1 << (key % SLOTS));
        // The page stays if no other one has vacant slots: the next value is often inserted soon.
        if page.occupied == 0 && self.vacant_pages.len() > 1 {
            page.slots = Box::default();
        }
        self.len -= 1;
        Some(value)
    }

    /// Returns the values and their keys, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.pages.iter().enumerate().flat_map(|(index, page)| {
            let slots = page.slots.iter().enumerate();
            slots.filter_map(move |(slot, value)| Some((index * SLOTS + slot, value.as_ref()?)))
        })
    }
}

impl<T> Default for PagedSlab<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use fastrand::Rng;

    use super::*;

    /// Returns the number of pages that have memory.
    fn allocated_pages<T>(slab: &PagedSlab<T>) -> usize {
        slab.pages.iter().filter(|page| !page.slots.is_empty()).count()
    }

    #[test]
    fn slab_equals_map_after_random_operations() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let (mut slab, mut map, mut random) = (PagedSlab::new(), BTreeMap::new(), Rng::with_seed(seed));
        for round in 0..40_000 {
            // Grows to several pages, and shrinks, in turn.
            let inserts = random.u32(..100) < if round / 2_000 % 2 == 0 { 70 } else { 30 };
            if inserts {
                let key = slab.insert(round);
                assert_eq!(map.insert(key, round), None, "round {round}: the key is in use");
                assert!(key < slab.key_bound());
            } else {
                let key = random.usize(..slab.key_bound() + 2);
                assert_eq!(slab.get_mut(key), map.get_mut(&key), "round {round}");
                assert_eq!(slab.remove(key), map.remove(&key), "round {round}");
                assert_eq!(slab.get(key), None);
            }
            assert_eq!(slab.len(), map.len());
            if round % 100 == 0 {
                let used: BTreeSet<_> = map.keys().map(|key| key / SLOTS).collect();
                assert!(allocated_pages(&slab) <= used.len() + 1, "round {round}: an empty page was kept");
            }
        }
        assert!(slab.iter().eq(map.iter().map(|(key, value)| (*key, value))));
        assert!(map.iter().all(|(key, value)| slab.get(*key) == Some(value)));
    }

    #[test]
    fn memory_is_freed_in_any_order_of_removal() {
        for is_reversed in [false, true] {
            let mut slab = PagedSlab::new();
            let mut keys: Vec<usize> = (0..100 * SLOTS).map(|number| slab.insert(number)).collect();
            assert_eq!(allocated_pages(&slab), 100);
            if is_reversed {
                keys.reverse();
            }
            let kept = keys.split_off(95 * SLOTS);
            keys.iter().for_each(|key| assert!(slab.remove(*key).is_some()));
            assert_eq!(allocated_pages(&slab), 6, "one empty page");
            assert_eq!(slab.len(), kept.len());
        }
    }
}
