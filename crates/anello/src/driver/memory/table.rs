//! A slab whose keys carry a generation, so that a stale key never matches a later occupant of its slot.
//!
//! ```text
//!   vacant_pages   0 0 1 0 1 ...     one bit per page
//!                      |   |
//!   pages          [] [] [] [ ] []    at most 64 slots each; the fourth has been freed
//!                      |
//!   vacant         1 0 0 1 ...       one bit per slot
//!   slots          -  a  b  -
//! ```
//!
//! The lowest vacant slot is occupied first, so that the upper pages of a table become empty after a burst. Empty pages
//! are freed, except one. Growth moves no entry.

use super::key::{GENERATION_MASK, Key};
use super::slots::Slots;

/// `A` gives the alignment of the slots.
#[derive(Debug)]
pub(crate) struct Table<T, A = CacheLine> {
    pages: Vec<Page<T, A>>,
    /// Bit set of the pages that have vacant slots. Without words until there is a second page.
    vacant_pages: Vec<u64>,
    /// All words of `vacant_pages` before this index are zero.
    first_word: usize,
    /// A page without occupants whose memory is kept, or `NONE`.
    empty_page: usize,
    occupied: usize,
}

/// Slots start at cache lines, so that the generation and the value's most frequently used fields share one.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CacheLine;

/// Slots are not aligned: for small values, of which a cache line holds several.
#[derive(Debug)]
pub(crate) struct Packed;

#[derive(Debug)]
struct Page<T, A> {
    /// Empty if the page has been freed. Otherwise, at least the slots that have been occupied since.
    slots: Slots<Slot<T, A>>,
    /// Bit set of the vacant slots, including slots that `slots` does not contain yet.
    vacant: u64,
    /// Generation of the slots that `slots` does not contain. No earlier occupant had it.
    next_generation: u32,
}

/// The generation precedes the value.
#[derive(Debug)]
#[repr(C)]
struct Slot<T, A> {
    alignment: [A; 0],
    generation: u32,
    value: Option<T>,
}

const NONE: usize = usize::MAX;

impl<T, A> Table<T, A> {
    const PAGE_SLOTS: usize = Slots::<Slot<T, A>>::MAX;

    /// Distance between the indices of the first slots of two pages. A power of two, so that no look-up divides.
    const PAGE_STRIDE: usize = Self::PAGE_SLOTS.next_power_of_two();

    /// Bit set of all slots of a page.
    const ALL_SLOTS: u64 = u64::MAX >> (64 - Self::PAGE_SLOTS);

    fn split(index: u32) -> (usize, usize) {
        (index as usize / Self::PAGE_STRIDE, index as usize % Self::PAGE_STRIDE)
    }

    /// Memory of an entry.
    pub const SLOT_BYTES: usize = size_of::<Slot<T, A>>();

    pub const fn new() -> Self {
        Self { pages: Vec::new(), vacant_pages: Vec::new(), first_word: 0, empty_page: NONE, occupied: 0 }
    }

    pub fn insert(&mut self, value: T) -> Key {
        let page_index = match self.pages.first() {
            Some(first) if first.vacant != 0 => 0,
            _ => self.vacant_page(),
        };
        let page = &mut self.pages[page_index];
        let slot_index = page.vacant.trailing_zeros();
        page.vacant &= page.vacant - 1;
        let value = Some(value);
        let generation = match page.slots.get_mut(slot_index as usize) {
            Some(slot) => {
                debug_assert!(slot.value.is_none(), "invariant 7: a vacant slot of a table has an occupant");
                slot.value = value;
                slot.generation
            }
            None => {
                debug_assert_eq!(
                    page.slots.len(),
                    slot_index as usize,
                    "invariant 7: a slot of a table is missing"
                );
                let generation = page.next_generation;
                page.slots.push(Slot { alignment: [], generation, value });
                generation
            }
        };
        if page.vacant == 0
            && let Some(word) = self.vacant_pages.get_mut(page_index / 64)
        {
            *word &= !(1 << (page_index % 64));
        }
        if page_index == self.empty_page {
            self.empty_page = NONE;
        }
        self.occupied += 1;
        Key { index: (page_index * Self::PAGE_STRIDE) as u32 + slot_index, generation }
    }

    /// Returns the first page that has a vacant slot, other than the first page of all. Adds one if there is none.
    #[inline(never)]
    fn vacant_page(&mut self) -> usize {
        let mut words = self.vacant_pages.iter().enumerate().skip(self.first_word);
        let found = words.find(|(_, word)| **word != 0);
        let page_index = match found {
            Some((word_index, word)) => {
                self.first_word = word_index;
                word_index * 64 + word.trailing_zeros() as usize
            }
            None => {
                self.pages.push(Page { slots: Slots::new(), vacant: Self::ALL_SLOTS, next_generation: 0 });
                let page_index = self.pages.len() - 1;
                self.mark_vacant(page_index);
                page_index
            }
        };
        let slots = &mut self.pages[page_index].slots;
        // The first page grows with the number of its entries, because many tables are small.
        if slots.capacity() == 0 && page_index > 0 {
            slots.grow(Self::PAGE_SLOTS);
        }
        page_index
    }

    /// Notes that a page has vacant slots. Until there is a second page, `insert` only looks at the first one.
    fn mark_vacant(&mut self, page_index: usize) {
        let word_index = page_index / 64;
        if page_index > 0 && word_index >= self.vacant_pages.len() {
            self.vacant_pages.resize(word_index + 1, 0);
        }
        if let Some(word) = self.vacant_pages.get_mut(word_index) {
            *word |= 1 << (page_index % 64);
            self.first_word = self.first_word.min(word_index);
        }
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T, A>> {
        let (page, slot) = Self::split(index);
        self.pages.get_mut(page)?.slots.get_mut(slot)
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slot_mut(key.index)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// Returns the current occupant of a slot. Callers must verify by other means that it is the expected one.
    #[inline]
    pub fn occupant(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let slot = self.slot_mut(index)?;
        Some((Key { index, generation: slot.generation }, slot.value.as_mut()?))
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let (page, slot) = Self::split(key.index);
        let slot = self.pages.get(page)?.slots.get(slot).filter(|slot| slot.generation == key.generation)?;
        slot.value.as_ref()
    }

    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        self.remove_occupant(key.index)
    }

    /// Removes the current occupant of a slot.
    pub fn remove_occupant(&mut self, index: u32) -> Option<T> {
        let (page_index, slot_index) = Self::split(index);
        let page = self.pages.get_mut(page_index)?;
        let slot = page.slots.get_mut(slot_index)?;
        let value = slot.value.take()?;
        debug_assert_eq!(
            page.vacant >> slot_index & 1,
            0,
            "invariant 7: an occupied slot of a table is vacant"
        );
        debug_assert_ne!(self.occupied, 0, "invariant 7: more entries removed from a table than inserted");
        self.occupied -= 1;
        // A slot is not reused after 2^28 occupants, because its generation would wrap: a stale key could then match.
        if slot.generation < GENERATION_MASK {
            slot.generation += 1;
            let was_full = page.vacant == 0;
            page.vacant |= 1 << slot_index;
            if page.vacant == Self::ALL_SLOTS {
                self.on_empty_page(page_index);
            }
            if was_full {
                self.mark_vacant(page_index);
            }
        }
        Some(value)
    }

    /// Frees a page without occupants, unless it is the only such page.
    #[inline(never)]
    fn on_empty_page(&mut self, page_index: usize) {
        let (kept, freed) = match self.empty_page {
            NONE => (page_index, None),
            other => (page_index.min(other), Some(page_index.max(other))),
        };
        self.empty_page = kept;
        if let Some(page) = freed.and_then(|index| self.pages.get_mut(index)) {
            debug_assert_eq!(
                page.vacant,
                Self::ALL_SLOTS,
                "invariant 7: a page of a table is freed with occupants"
            );
            let generations = page.slots.iter().map(|slot| slot.generation);
            // A page that is freed has slots, but an earlier generation must not be reused in any case.
            let next_generation = generations.max().unwrap_or(page.next_generation);
            debug_assert!(
                next_generation > page.next_generation,
                "invariant 7: a generation of a freed page is reused"
            );
            page.next_generation = next_generation;
            page.slots = Slots::new();
        }
    }

    pub fn len(&self) -> usize {
        self.occupied
    }

    /// Returns `true` if the key is that of an earlier occupant of its slot.
    pub fn is_earlier(&self, key: Key) -> bool {
        let (page, slot) = Self::split(key.index);
        let Some(page) = self.pages.get(page) else { return false };
        match page.slots.get(slot) {
            // After its last occupant, a slot keeps the generation.
            Some(slot) if slot.value.is_none() => {
                slot.generation > key.generation || slot.generation == GENERATION_MASK
            }
            Some(slot) => slot.generation > key.generation,
            None => page.next_generation > key.generation,
        }
    }

    /// Checks the bit sets, the generations and the number of entries.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        let mut occupied = 0;
        for (page_index, page) in self.pages.iter().enumerate() {
            assert_eq!(
                page.vacant & !Self::ALL_SLOTS,
                0,
                "invariant 7: a slot beyond the end of a page is vacant"
            );
            for (slot_index, slot) in page.slots.iter().enumerate() {
                let is_vacant = page.vacant >> slot_index & 1 != 0;
                let is_retired = slot.value.is_none() && slot.generation == GENERATION_MASK;
                assert!(
                    is_vacant == slot.value.is_none() || is_retired,
                    "invariant 7: vacant bit of slot {slot_index} of page {page_index} is wrong"
                );
                assert!(
                    (page.next_generation..=GENERATION_MASK).contains(&slot.generation),
                    "invariant 7: generation of slot {slot_index} of page {page_index} is out of range"
                );
                occupied += usize::from(slot.value.is_some());
            }
            let missing = Self::ALL_SLOTS & u64::MAX.checked_shl(page.slots.len() as u32).unwrap_or(0);
            assert_eq!(page.vacant & missing, missing, "invariant 7: a slot that does not exist is occupied");
            if let Some(word) = self.vacant_pages.get(page_index / 64) {
                let is_listed = word >> (page_index % 64) & 1 != 0;
                assert_eq!(is_listed, page.vacant != 0, "invariant 7: bit of page {page_index} is wrong");
            }
            let is_kept = page.vacant == Self::ALL_SLOTS && page.slots.capacity() > 0;
            assert_eq!(
                is_kept,
                page_index == self.empty_page,
                "invariant 7: page {page_index} without occupants is neither kept nor freed"
            );
        }
        let words = self.vacant_pages.iter().take(self.first_word);
        assert!(words.copied().all(|word| word == 0), "invariant 7: a page before the first word is vacant");
        assert_eq!(occupied, self.occupied, "invariant 7: the number of entries of a table is wrong");
    }

    fn slots(&self) -> impl Iterator<Item = (u32, &Slot<T, A>)> {
        let pages = (0..).step_by(Self::PAGE_STRIDE).zip(&self.pages);
        pages.flat_map(|(first, page)| (first..).zip(page.slots.iter()))
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots().filter_map(|(_, slot)| slot.value.as_ref())
    }

    /// Returns all occupants and their keys, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots().filter_map(|(index, slot)| {
            Some((Key { index, generation: slot.generation }, slot.value.as_ref()?))
        })
    }

    /// Returns the keys of all occupants, in slot order.
    pub fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stale_key_matches_no_entry() {
        let mut table: Table<_> = Table::new();
        let first = table.insert("first");
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_eq!(first.index, second.index, "the slot is reused");
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(second), Some(&mut "second"));
        assert_eq!((table.len(), table.keys()), (1, vec![second]));
    }

    #[test]
    fn is_earlier_holds_only_for_removed_entries() {
        let mut table: Table<_> = Table::new();
        let keys: Vec<_> = (0..3 * Table::<usize>::PAGE_SLOTS).map(|n| table.insert(n)).collect();
        let (first, last) = (keys[0], keys[keys.len() - 1]);
        let next = |key: Key| Key { generation: key.generation + 1, ..key };
        let is_earlier = |table: &Table<_>, key| (table.is_earlier(key), table.is_earlier(next(key)));
        assert_eq!((is_earlier(&table, first), is_earlier(&table, last)), ((false, false), (false, false)));
        // The last page is freed.
        keys.iter().for_each(|key| assert!(table.remove(*key).is_some()));
        assert_eq!(table.pages[2].slots.capacity(), 0);
        assert_eq!((is_earlier(&table, first), is_earlier(&table, last)), ((true, false), (true, false)));
        assert!(!table.is_earlier(Key { index: u32::MAX, generation: 0 }));
        // A slot is not reused after its last generation.
        table.slot_mut(first.index).unwrap().generation = GENERATION_MASK;
        let retired = table.insert(0);
        assert_eq!(retired, Key { index: first.index, generation: GENERATION_MASK });
        assert!(!table.is_earlier(retired));
        assert_eq!((table.remove(retired), table.is_earlier(retired)), (Some(0), true));
    }

    #[test]
    fn only_first_page_grows_with_its_entries() {
        let mut table: Table<_> = Table::new();
        table.insert(0);
        assert!(table.pages[0].slots.capacity() < Table::<usize>::PAGE_SLOTS);
        for n in 0..Table::<usize>::PAGE_SLOTS {
            table.insert(n);
        }
        assert_eq!(table.pages[1].slots.capacity(), Table::<usize>::PAGE_SLOTS);
    }

    #[test]
    fn vacant_slots_of_all_pages_are_reused() {
        // The set of pages with vacant slots has two words.
        let (page_slots, page_count) = (Table::<usize>::PAGE_SLOTS, 66);
        let mut table: Table<_> = Table::new();
        let keys: Vec<_> = (0..page_count * page_slots).map(|n| table.insert(n)).collect();
        assert!(table.values().copied().eq(0..page_count * page_slots));
        for page in [65, 64, 1, 0] {
            assert!(table.remove(keys[page * page_slots]).is_some());
        }
        for n in 0..4 {
            table.insert(n);
        }
        assert_eq!(table.pages.len(), page_count);
        #[cfg(debug_assertions)]
        table.check();
    }

    #[test]
    fn slots_of_small_values_are_packed() {
        assert_eq!((size_of::<Slot<usize, CacheLine>>(), align_of::<Slot<usize, CacheLine>>()), (64, 64));
        assert_eq!(size_of::<Slot<std::ptr::NonNull<()>, Packed>>(), 16);
    }

    #[test]
    fn memory_of_a_burst_is_freed() {
        check_burst::<Packed>();
        check_burst::<CacheLine>();
    }

    fn check_burst<A>() {
        let page_slots = Table::<usize, A>::PAGE_SLOTS;
        // Miri takes minutes for more.
        const PAGES: usize = if cfg!(miri) { 20 } else { 200 };
        const ENTRIES: usize = PAGES * 64;
        for survivors in [0..1, 0..ENTRIES / 20, ENTRIES - ENTRIES / 20..ENTRIES] {
            let mut table: Table<_, A> = Table::new();
            let burst: Vec<_> = (0..ENTRIES).map(|n| table.insert(n)).collect();
            let closed = |n: &usize| !survivors.contains(n);
            assert!((0..ENTRIES).filter(closed).all(|n| table.remove(burst[n]) == Some(n)));
            let slots: usize = table.pages.iter().map(|page| page.slots.capacity()).sum();
            assert!(slots <= survivors.len() + 2 * page_slots, "{slots} slots for {survivors:?}");
            // The entries of the next burst have other keys, and those of the survivors are still valid.
            let next: Vec<_> = (0..ENTRIES).filter(closed).map(|n| table.insert(n)).collect();
            assert!((0..ENTRIES).filter(closed).all(|n| table.get(burst[n]).is_none()));
            assert!(survivors.clone().all(|n| table.get(burst[n]) == Some(&n)));
            assert!((0..ENTRIES).filter(closed).zip(next).all(|(n, key)| table.get(key) == Some(&n)));
            assert_eq!((table.len(), table.pages.len()), (ENTRIES, PAGES));
        }
    }

    #[test]
    fn slot_is_not_reused_after_its_last_generation() {
        let mut table: Table<_> = Table::new();
        let first = table.insert('a');
        table.remove(first);
        table.pages[0].slots[0].generation = GENERATION_MASK;
        let last = table.insert('b');
        assert_eq!((last.index, table.remove(last)), (0, Some('b')));
        assert_eq!(table.insert('c').index, 1);
        assert!(table.get(last).is_none() && table.remove(last).is_none() && table.get(first).is_none());
    }

    proptest! {
        // A case inserts and removes thousands of entries.
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 1 } else { ProptestConfig::default().cases / 4 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Compares tables of several pages with a map.
        #[test]
        fn table_behaves_like_a_map(removals in proptest::collection::vec((0..400usize, 0..400usize), 0..40)) {
            compare_with_map::<_, Packed>(&removals, |count| count)?;
            // Pages of 21 slots.
            compare_with_map::<_, CacheLine>(&removals, |count| [count; 20])?;
        }
    }

    fn compare_with_map<T: Copy + PartialEq + std::fmt::Debug, A>(
        removals: &[(usize, usize)],
        value: fn(usize) -> T,
    ) -> Result<(), TestCaseError> {
        let mut table: Table<_, A> = Table::new();
        let (mut model, mut stale, mut count) = (BTreeMap::new(), Vec::new(), 0);
        for &(inserted, removed) in removals {
            for _ in 0..inserted {
                count += 1;
                prop_assert_eq!(model.insert(table.insert(value(count)), value(count)), None);
            }
            let keys: Vec<_> =
                model.keys().copied().cycle().skip(removed).take(removed.min(model.len())).collect();
            for key in keys {
                prop_assert_eq!(table.remove(key), model.remove(&key));
                stale.push(key);
            }
            #[cfg(debug_assertions)]
            table.check();
            prop_assert_eq!(table.keys(), model.keys().copied().collect::<Vec<_>>());
            prop_assert!(table.values().eq(model.values()));
        }
        prop_assert!(model.into_keys().all(|key| !table.is_earlier(key)));
        prop_assert!(stale.iter().all(|key| table.is_earlier(*key)));
        prop_assert!(stale.into_iter().all(|key| table.get(key).is_none() && table.remove(key).is_none()));
        Ok(())
    }

    #[test]
    fn occupant_returns_current_key_and_value() {
        let mut table: Table<_> = Table::new();
        let first = table.insert('a');
        assert_eq!(table.occupant(first.index), Some((first, &mut 'a')));
        table.remove(first);
        assert_eq!(table.occupant(first.index), None);
        let second = table.insert('b');
        assert_eq!(table.occupant(first.index), Some((second, &mut 'b')));
        assert_eq!(table.occupant(1), None);
    }

    #[test]
    fn vacant_slots_are_reused_before_table_grows() {
        let mut table: Table<_> = Table::new();
        let keys: Vec<_> = (0..10).map(|n| table.insert(n)).collect();
        keys.into_iter().for_each(|key| assert!(table.remove(key).is_some()));
        assert!((0..10).all(|n| table.insert(n).index < 10));
        assert_eq!(table.insert(10).index, 10);
    }
}
