//! A slab whose keys carry a generation, so that a stale key never matches a later occupant of its slot.

use super::{GENERATION_MASK, Key};

/// `A` gives the alignment of the slots.
#[derive(Debug)]
pub(crate) struct Table<T, A = CacheLine> {
    slots: Vec<Slot<T, A>>,
    /// First vacant slot, or `NONE` if there is none.
    vacant: u32,
    occupied: usize,
}

/// Slots start at cache lines, so that the generation and the value's most frequently used fields share one.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CacheLine;

/// Slots are not aligned: for small values, of which a cache line holds several.
#[derive(Debug)]
pub(crate) struct Packed;

/// The generation precedes the value.
#[derive(Debug)]
#[repr(C)]
struct Slot<T, A> {
    alignment: [A; 0],
    generation: u32,
    /// Index of the next vacant slot. Valid while this slot is vacant.
    next_vacant: u32,
    value: Option<T>,
}

const NONE: u32 = u32::MAX;

impl<T, A> Table<T, A> {
    pub fn new() -> Self {
        Self { slots: Vec::new(), vacant: NONE, occupied: 0 }
    }

    pub fn insert(&mut self, value: T) -> Key {
        self.occupied += 1;
        if self.vacant == NONE {
            let index = self.slots.len() as u32;
            let slot = Slot { alignment: [], generation: 0, next_vacant: NONE, value: Some(value) };
            self.slots.push(slot);
            return Key { index, generation: 0 };
        }
        let index = self.vacant;
        let slot = &mut self.slots[index as usize];
        self.vacant = slot.next_vacant;
        slot.value = Some(value);
        Key { index, generation: slot.generation }
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// Returns the current occupant of a slot. Callers must verify by other means that it is the expected one.
    #[inline]
    pub fn occupant(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        Some((Key { index, generation: slot.generation }, slot.value.as_mut()?))
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        slot.value.as_ref()
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.next_vacant = self.vacant;
        self.vacant = key.index;
        self.occupied -= 1;
        Some(value)
    }

    pub fn len(&self) -> usize {
        self.occupied
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Returns the keys of all occupants, in slot order.
    pub fn keys(&self) -> Vec<Key> {
        let occupied = self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some());
        occupied.map(|(index, slot)| Key { index: index as u32, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
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
    fn slots_of_small_values_are_packed() {
        assert_eq!((size_of::<Slot<usize, CacheLine>>(), align_of::<Slot<usize, CacheLine>>()), (64, 64));
        assert_eq!(size_of::<Slot<std::ptr::NonNull<()>, Packed>>(), 16);
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
