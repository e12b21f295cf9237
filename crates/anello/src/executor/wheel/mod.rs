//! Hierarchical timer wheel.
//!
//! The wheel does not read a clock or make system calls. Insertion, cancellation and look-up are O(1). Each timer moves
//! at most `LEVELS - 1` times between insertion and expiry.
//!
//! # Layout
//!
//! Time is counted in ticks of 2^17 ns (131 us). A tick number consists of base-64 digits, one per level. A timer
//! is stored on the level of the highest digit in which its tick differs from the wheel's current tick
//! (`elapsed_tick`), in the slot with the index of that digit:
//!
//! ```text
//!  tick    | digit 7 | digit 6 | ...  | digit 2 | digit 1 | digit 0 |
//!               |         |               |         |         |
//!  level        7         6               2         1         0
//!  slot spans   18 y      104 d           537 ms    8.4 ms    131 us
//!  level spans  all       18 y            34 s      537 ms    8.4 ms
//!
//!  one level:   occupied  0 0 0 0 0 1 0 0 1 ... 0      u64, one bit per slot
//!                             ^     |     |
//!                  elapsed_tick     v     v            never before elapsed_tick
//!                                 slot   slot          head, tail, earliest_tick
//!                                   |
//!                                   v
//!               entries   [ e7 ] <-> [ e2 ] <-> [ e9 ] indices into one table, FIFO order
//! ```
//!
//! Eight digits represent every tick of a `u64` nanosecond clock (584 years), so the wheel needs no overflow list. On a
//! virtual clock, whose timers fire exactly at their deadlines, a tick is a nanosecond and has eleven digits.
//!
//! # Tick length
//!
//! Deadlines are rounded up to a tick, so the tick length bounds how late a timer fires. A tick of 131 us is of the
//! same order of magnitude as the kernel's default timer slack (50 us); a shorter tick would merge fewer timers into
//! one wake-up. Because the tick length is a power of two, the division becomes a shift.
//!
//! # Invariants
//!
//! 1. Every timer is in the slot that `slot_of` computes from its tick and the current `elapsed_tick`. When
//!    `elapsed_tick` enters an occupied slot of an upper level, the timers of that slot must move to lower levels.
//! 2. Therefore no occupied slot is before `elapsed_tick`, all timers of a level are due before the timers of the
//!    levels above, and the lowest bit set on the lowest occupied level identifies the earliest slot.
//! 3. Timers with the same tick fire in the order of insertion: a slot is a FIFO queue, and its timers move only to
//!    empty levels, before a timer can be inserted there directly.
//! 4. A slot's `earliest_tick` is not later than the tick of any of its timers, and not before the start of the slot.
//!    After a cancellation, it can be too early, but never too late.
//! 5. The table contains exactly the pending timers, so that a stale key never refers to a later timer.

#![forbid(unsafe_code)]

use crate::driver::{Key, Packed, Table};

/// log2 of the tick's length in nanoseconds on a real clock.
const TICK_SHIFT: u32 = 17;
/// Number of bits of the tick number that select the slot on each level.
const LEVEL_BITS: u32 = 6;
const SLOTS_PER_LEVEL: usize = 1 << LEVEL_BITS;
/// Sufficient for the largest tick number, which has 64 bits on a virtual clock.
const LEVELS: usize = 11;
/// Index that marks the end of a list. No entry has it: a table of 2^32 entries would need 160 GiB.
const NONE: u32 = u32::MAX;

/// A timer wheel. Each timer has a value of type `T`, usually a waker, which is returned when the timer is due. The
/// memory of fired timers is reused, so that a wheel does not allocate in steady state.
pub(crate) struct Wheel<T> {
    /// Latest time passed to the wheel, in whole ticks.
    elapsed_tick: u64,
    /// log2 of the tick's length in nanoseconds.
    tick_shift: u32,
    /// Bit set of non-empty slots for each level.
    occupied: [u64; LEVELS],
    /// The slots of all levels, lowest level first.
    slots: Box<[Slot; LEVELS * SLOTS_PER_LEVEL]>,
    entries: Table<Entry<T>, Packed>,
}

/// Identifies a timer. The key is stale once the timer has fired or been cancelled.
pub(crate) type TimerKey = Key;

#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
    /// Lower bound of the ticks in this slot. Undefined while the slot is empty.
    earliest_tick: u64,
}

struct Entry<T> {
    tick: u64,
    previous: u32,
    next: u32,
    value: T,
}

impl<T> std::fmt::Debug for Wheel<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Wheel").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Wheel<T> {
    /// Memory of a pending timer.
    pub(crate) const TIMER_BYTES: usize = Table::<Entry<T>, Packed>::SLOT_BYTES;

    /// Creates an empty wheel at the time `now_ns`. All later times must come from the same clock.
    pub(crate) fn new(now_ns: u64, is_virtual: bool) -> Self {
        let empty = Slot { head: NONE, tail: NONE, earliest_tick: 0 };
        let tick_shift = if is_virtual { 0 } else { TICK_SHIFT };
        Self {
            elapsed_tick: completed_tick(now_ns, tick_shift),
            tick_shift,
            occupied: [0; LEVELS],
            slots: Box::new([empty; LEVELS * SLOTS_PER_LEVEL]),
            entries: Table::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a timer that is due at `deadline_ns`, rounded up to a tick.
    ///
    /// A timer with a deadline in the past fires in the next call to [`expire`](Self::expire), as if it were due at the
    /// current tick.
    pub(crate) fn insert(&mut self, deadline_ns: u64, value: T) -> TimerKey {
        let tick = deadline_ns.div_ceil(1 << self.tick_shift).max(self.elapsed_tick);
        let key = self.entries.insert(Entry { tick, previous: NONE, next: NONE, value });
        self.link(key.index, tick);
        key
    }

    /// Returns the value of a pending timer, or `None` if the key is stale.
    pub(crate) fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Removes a pending timer and returns its value, or `None` if the key is stale.
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.remove(key)?;
        self.unlink(&entry);
        Some(entry.value)
    }

    /// Returns the time at which [`expire`](Self::expire) must be called next, or `None` if no timer is pending.
    ///
    /// The returned time is never later than the deadline of the earliest timer. It can be earlier if a timer in the
    /// same slot of an upper level has been cancelled. `expire` then fires no timer, but moves the timers of the slot
    /// to lower levels, after which the time is exact: a cancelled timer costs at most one unnecessary wake-up.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let slot = self.earliest_slot()?;
        Some(self.slots[slot].earliest_tick.saturating_mul(1 << self.tick_shift))
    }

    /// Appends the values of all timers that are due at `now_ns` to `fired`, ordered by tick and, within a tick, by
    /// insertion.
    ///
    /// The cost depends on the number of timers and occupied slots in the elapsed period, not on its length. If
    /// `now_ns` is earlier than in a previous call, the latest time is used: the wheel never goes backwards.
    pub(crate) fn expire(&mut self, now_ns: u64, fired: &mut Vec<T>) {
        let now_tick = completed_tick(now_ns, self.tick_shift).max(self.elapsed_tick);
        while let Some(slot) = self.earliest_slot() {
            if self.slot_start(slot) > now_tick {
                break;
            }
            // No timer is due before the slot's earliest tick, so the wheel advances directly to it. A timer that is
            // alone in its slot then moves only once, whatever its level.
            self.elapsed_tick = self.slots[slot].earliest_tick.min(now_tick);
            self.occupied[slot / SLOTS_PER_LEVEL] &= !(1 << (slot % SLOTS_PER_LEVEL));
            self.slots[slot].tail = NONE;
            let mut index = std::mem::replace(&mut self.slots[slot].head, NONE);
            while let Some((_, &mut Entry { tick, next, .. })) = self.entries.occupant(index) {
                match slot < SLOTS_PER_LEVEL {
                    // All timers in a slot on the lowest level have the same tick.
                    true => fired.extend(self.entries.remove_occupant(index).map(|entry| entry.value)),
                    // `elapsed_tick` has entered the slot, so this moves the timer to a lower level.
                    false => {
                        debug_assert!(
                            self.slot_of(tick) / SLOTS_PER_LEVEL < slot / SLOTS_PER_LEVEL,
                            "timer wheel: a timer stays on its level, so that `expire` does not end"
                        );
                        self.link(index, tick);
                    }
                }
                index = next;
            }
        }
        self.elapsed_tick = now_tick;
    }

    /// Returns the slot whose timers are due first.
    fn earliest_slot(&self) -> Option<usize> {
        let level = self.occupied.iter().position(|&occupied| occupied != 0)?;
        Some(level * SLOTS_PER_LEVEL + self.occupied[level].trailing_zeros() as usize)
    }

    /// Returns the first tick of an occupied `slot`. It consists of the digits of `elapsed_tick` above the slot's
    /// level, the index of the slot, and zeros.
    fn slot_start(&self, slot: usize) -> u64 {
        let shift = (slot / SLOTS_PER_LEVEL) as u32 * LEVEL_BITS;
        // No digits are above the highest level.
        let above = u64::MAX.checked_shl(shift + LEVEL_BITS).unwrap_or(0);
        (self.elapsed_tick & above) | (((slot % SLOTS_PER_LEVEL) as u64) << shift)
    }

    /// Returns the slot of a timer that is due at `tick`, which must not be before `elapsed_tick`.
    fn slot_of(&self, tick: u64) -> usize {
        debug_assert!(tick >= self.elapsed_tick, "timer wheel: the slot of a timer has passed");
        let differing = (tick ^ self.elapsed_tick) | 1;
        let level = differing.ilog2() / LEVEL_BITS;
        let digit = (tick >> (level * LEVEL_BITS)) as usize % SLOTS_PER_LEVEL;
        level as usize * SLOTS_PER_LEVEL + digit
    }

    /// Appends the entry at `index` to the slot of its `tick`.
    fn link(&mut self, index: u32, tick: u64) {
        let slot = self.slot_of(tick);
        let list = &mut self.slots[slot];
        let previous = std::mem::replace(&mut list.tail, index);
        if let Some((_, previous)) = self.entries.occupant(previous) {
            list.earliest_tick = list.earliest_tick.min(tick);
            previous.next = index;
        } else {
            debug_assert!(
                previous == NONE && list.head == NONE,
                "timer wheel: slot {slot} has no timers but is not empty"
            );
            list.head = index;
            list.earliest_tick = tick;
            self.occupied[slot / SLOTS_PER_LEVEL] |= 1 << (slot % SLOTS_PER_LEVEL);
        }
        if let Some((_, entry)) = self.entries.occupant(index) {
            entry.previous = previous;
            entry.next = NONE;
        }
    }

    /// Checks the lists of all slots, and that they contain each timer once.
    #[cfg(debug_assertions)]
    pub(crate) fn check(&mut self) {
        self.entries.check();
        let mut linked = 0;
        // Only occupied slots, because the check follows each turn: a timer in another slot would be missing at the end.
        let mut occupied = self.occupied;
        while let Some(level) = occupied.iter().position(|bits| *bits != 0) {
            let slot = level * SLOTS_PER_LEVEL + occupied[level].trailing_zeros() as usize;
            occupied[level] &= occupied[level] - 1;
            let Slot { head, tail, earliest_tick } = self.slots[slot];
            assert_ne!(head, NONE, "timer wheel: bit of slot {slot} is wrong");
            let (mut previous, mut index) = (NONE, head);
            while let Some((_, entry)) = self.entries.occupant(index) {
                let (tick, next) = (entry.tick, entry.next);
                assert_eq!(entry.previous, previous, "timer wheel: a timer has another predecessor");
                assert_eq!(self.slot_of(tick), slot, "timer wheel: a timer is in the wrong slot");
                assert!(
                    (self.slot_start(slot)..=tick).contains(&earliest_tick),
                    "timer wheel: earliest tick of slot {slot} is {earliest_tick}"
                );
                linked += 1;
                assert!(linked <= self.entries.len(), "timer wheel: the list of slot {slot} has a cycle");
                (previous, index) = (index, next);
            }
            assert_eq!(index, NONE, "timer wheel: slot {slot} contains a timer that was removed");
            assert_eq!(previous, tail, "timer wheel: the last timer of slot {slot} is another one");
        }
        assert_eq!(linked, self.entries.len(), "timer wheel: a pending timer is in no slot");
    }

    /// Closes the gap that a removed entry leaves in its slot.
    fn unlink(&mut self, removed: &Entry<T>) {
        let &Entry { tick, previous, next, .. } = removed;
        let slot = self.slot_of(tick);
        match self.entries.occupant(previous) {
            Some((_, previous)) => previous.next = next,
            None => self.slots[slot].head = next,
        }
        match self.entries.occupant(next) {
            Some((_, next)) => next.previous = previous,
            None => self.slots[slot].tail = previous,
        }
        if previous == NONE && next == NONE {
            self.occupied[slot / SLOTS_PER_LEVEL] &= !(1 << (slot % SLOTS_PER_LEVEL));
        }
    }
}

/// Returns the last tick that has been reached at `now_ns`. `u64::MAX` belongs to the tick to which the latest possible
/// deadlines are rounded up, so that these also fire when a virtual clock jumps to [`Wheel::next_deadline_ns`].
fn completed_tick(now_ns: u64, tick_shift: u32) -> u64 {
    (now_ns >> tick_shift).saturating_add(u64::from(now_ns == u64::MAX))
}

#[cfg(test)]
mod tests;
