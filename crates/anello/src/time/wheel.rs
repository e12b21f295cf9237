//! Hierarchical timer wheel: which timers are due, and how long may the worker sleep until the next one?
//!
//! A pure data structure. It reads no clock and makes no system call: the worker tells it the time with every
//! [`Wheel::expire`] and hands [`Wheel::next_deadline_ns`] to the driver as the timeout of its wait. Insert,
//! cancel and look-up are O(1); each timer moves at most `LEVELS - 1` times between insertion and expiry.
//!
//! # Layout
//!
//! Time is counted in ticks of 2^17 ns (131 us). A tick number is read as eight digits to the base 64, one
//! digit a level. A timer lives on the level of the highest digit in which its tick differs from the wheel's
//! own tick (`elapsed_tick`), in the slot that this digit names:
//!
//! ```text
//!  tick    | digit 7 | digit 6 | ...  | digit 2 | digit 1 | digit 0 |
//!               |         |               |         |         |
//!  level        7         6               2         1         0
//!  slot spans   18 y      104 d           537 ms    8.4 ms    131 us
//!  level spans  all       18 y            34 s      537 ms    8.4 ms
//!
//!  one level:   occupied  0 0 0 0 0 1 0 0 1 ... 0      u64, one bit a slot
//!                             ^     |     |
//!                  elapsed_tick     v     v            never left of elapsed_tick
//!                                 slot   slot          head, tail, earliest_tick
//!                                   |
//!                                   v
//!               entries   [ e7 ] <-> [ e2 ] <-> [ e9 ] indices into one slab, oldest first
//! ```
//!
//! Eight digits hold every tick of a `u64` nanosecond clock (584 years), so there is no overflow list and no
//! timer is too far away to be placed.
//!
//! # Why 131 us
//!
//! The tick bounds how late a timer may be told, and timers are rounded up, never down. With 1 ms a sleep of
//! 1 ms could take 2 ms; 131 us is of the order of the kernel's default timer slack (50 us). A finer tick
//! would merge fewer timers into one wake-up. A power of two makes it a shift.
//!
//! # Invariants
//!
//! 1. Every timer is in the slot that `slot_of` computes from its tick and the present `elapsed_tick`. Moving
//!    `elapsed_tick` forward keeps this true as long as it does not enter an occupied slot of an upper level
//!    without spreading that slot over the levels below (`cascade`).
//! 2. So an occupied slot never lies behind `elapsed_tick`, all timers of a level are due before any on the
//!    level above it, and the first bit of the first occupied level finds the earliest slot.
//! 3. Timers of one tick fire in the order of their insertion: a slot is a queue, and a slot cascades onto
//!    levels that are empty, before any timer can be inserted there directly.
//! 4. A slot's `earliest_tick` is at most the tick of each of its timers and not before the slot's own start.
//!    A cancelled timer may leave it too early, never too late.
//! 5. An entry holds a value exactly while its timer is pending; its generation changes when it is released,
//!    and an entry whose generations are used up is retired, so a stale key never meets a later timer.

#![forbid(unsafe_code)]

/// log2 of the tick's length in nanoseconds.
const TICK_SHIFT: u32 = 17;
/// Length of a tick: how late, at most, rounding makes a timer.
const TICK_NS: u64 = 1 << TICK_SHIFT;
/// Bits of a tick number that one level decides.
const LEVEL_BITS: u32 = 6;
/// Slots of one level, one bit each in its `occupied` word.
const SLOTS_PER_LEVEL: usize = 1 << LEVEL_BITS;
/// Enough for the 48 bits of the largest tick number, `u64::MAX` nanoseconds rounded up.
const LEVELS: usize = 8;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// Pending timers, each with a value of type `T` (a waker, usually) that is handed back when it is due.
///
/// Memory follows the largest number of timers that were pending at once and is kept: a wheel in steady state
/// does not allocate.
pub(crate) struct Wheel<T> {
    /// The latest time the wheel was told, in whole ticks.
    elapsed_tick: u64,
    /// Per level, the bit set of slots that hold timers.
    occupied: [u64; LEVELS],
    /// All slots, level after level.
    slots: Box<[Slot; LEVELS * SLOTS_PER_LEVEL]>,
    /// Slab of timers; released entries are chained through `next` from `free_head`.
    entries: Vec<Entry<T>>,
    free_head: u32,
    len: usize,
}

/// Names one timer. A key whose timer fired or was cancelled is stale and finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerKey {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
    /// Lower bound of the ticks in this slot; meaningless while it is empty.
    earliest_tick: u64,
}

struct Entry<T> {
    tick: u64,
    previous: u32,
    next: u32,
    generation: u32,
    /// Index into `Wheel::slots`.
    slot: u16,
    value: Option<T>,
}

impl<T> std::fmt::Debug for Wheel<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Wheel").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at `now_ns`. All times given to it later are on the same clock.
    pub(crate) fn new(now_ns: u64) -> Self {
        let empty = Slot { head: NONE, tail: NONE, earliest_tick: 0 };
        Self {
            elapsed_tick: completed_tick(now_ns),
            occupied: [0; LEVELS],
            slots: Box::new([empty; LEVELS * SLOTS_PER_LEVEL]),
            entries: Vec::new(),
            free_head: NONE,
            len: 0,
        }
    }

    /// Number of pending timers.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a timer that is due at `deadline_ns`, rounded up to the tick.
    ///
    /// A deadline in the past is due at the next [`expire`](Self::expire), in the order of insertion among
    /// others of the wheel's present tick.
    pub(crate) fn insert(&mut self, deadline_ns: u64, value: T) -> TimerKey {
        let tick = deadline_ns.div_ceil(TICK_NS).max(self.elapsed_tick);
        let index = self.acquire(tick, value);
        self.link(index);
        self.len += 1;
        TimerKey { index, generation: self.entries[index as usize].generation }
    }

    /// The value of a pending timer, to be replaced in place; `None` if the key is stale.
    pub(crate) fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        entry.value.as_mut()
    }

    /// Takes a timer out before it fires and returns its value; `None` if the key is stale.
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.get_mut(key)?;
        self.unlink(key.index);
        self.release(key.index)
    }

    /// When to call [`expire`](Self::expire) next; `None` if no timer is pending.
    ///
    /// Never later than the earliest timer is due, and exact unless a timer before it was cancelled in the
    /// same slot of an upper level. Then `expire` at this time fires nothing but moves that slot's timers
    /// down, after which the answer is exact for them: a cancelled timer costs at most one idle wake-up.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let slot = self.earliest_slot()?;
        Some(self.slots[slot].earliest_tick.saturating_mul(TICK_NS))
    }

    /// Appends to `fired` the values of all timers that are due at `now_ns`, ordered by tick and within a
    /// tick by insertion.
    ///
    /// The cost follows the timers and occupied slots that are passed, not the time that went by. A `now_ns`
    /// before the latest one is taken for the latest one: the wheel does not turn back.
    pub(crate) fn expire(&mut self, now_ns: u64, fired: &mut Vec<T>) {
        let now_tick = completed_tick(now_ns).max(self.elapsed_tick);
        while let Some(slot) = self.earliest_slot() {
            if self.slot_start(slot) > now_tick {
                break;
            }
            // No timer is due before the slot's earliest, so the wheel may go straight there: a lone timer
            // then takes one step down, whatever level it stood on.
            self.elapsed_tick = self.slots[slot].earliest_tick.min(now_tick);
            if slot < SLOTS_PER_LEVEL {
                self.fire(slot, fired);
            } else {
                self.cascade(slot);
            }
        }
        self.elapsed_tick = now_tick;
    }

    /// The slot whose timers are due before those of all others.
    fn earliest_slot(&self) -> Option<usize> {
        let level = self.occupied.iter().position(|&occupied| occupied != 0)?;
        Some(level * SLOTS_PER_LEVEL + self.occupied[level].trailing_zeros() as usize)
    }

    /// The first tick that belongs to an occupied `slot`: the wheel's own digits above the slot's level, the
    /// slot's number, then zeros.
    fn slot_start(&self, slot: usize) -> u64 {
        let shift = (slot / SLOTS_PER_LEVEL) as u32 * LEVEL_BITS;
        let above = shift + LEVEL_BITS;
        ((self.elapsed_tick >> above) << above) | (((slot % SLOTS_PER_LEVEL) as u64) << shift)
    }

    /// The slot of a timer due at `tick`, which is not before `elapsed_tick`.
    fn slot_of(&self, tick: u64) -> usize {
        let differing = (tick ^ self.elapsed_tick) | 1;
        let level = differing.ilog2() / LEVEL_BITS;
        let digit = (tick >> (level * LEVEL_BITS)) as usize % SLOTS_PER_LEVEL;
        level as usize * SLOTS_PER_LEVEL + digit
    }

    /// Releases all timers of a slot of the lowest level, which are due at one tick.
    fn fire(&mut self, slot: usize, fired: &mut Vec<T>) {
        let mut index = self.detach(slot);
        while index != NONE {
            let next = self.entries[index as usize].next;
            fired.extend(self.release(index));
            index = next;
        }
    }

    /// Spreads the timers of a slot that `elapsed_tick` has entered over the levels below.
    fn cascade(&mut self, slot: usize) {
        let mut index = self.detach(slot);
        while index != NONE {
            let next = self.entries[index as usize].next;
            self.link(index);
            index = next;
        }
    }

    /// Empties a slot and returns the head of the list that it held.
    fn detach(&mut self, slot: usize) -> u32 {
        self.occupied[slot / SLOTS_PER_LEVEL] &= !(1 << (slot % SLOTS_PER_LEVEL));
        let list = &mut self.slots[slot];
        list.tail = NONE;
        std::mem::replace(&mut list.head, NONE)
    }

    /// Appends an entry to the slot that its tick asks for.
    fn link(&mut self, index: u32) {
        let tick = self.entries[index as usize].tick;
        let slot = self.slot_of(tick);
        let list = &mut self.slots[slot];
        let previous = std::mem::replace(&mut list.tail, index);
        if previous == NONE {
            list.head = index;
            list.earliest_tick = tick;
            self.occupied[slot / SLOTS_PER_LEVEL] |= 1 << (slot % SLOTS_PER_LEVEL);
        } else {
            list.earliest_tick = list.earliest_tick.min(tick);
            self.entries[previous as usize].next = index;
        }
        let entry = &mut self.entries[index as usize];
        entry.slot = slot as u16;
        entry.previous = previous;
        entry.next = NONE;
    }

    /// Takes an entry out of its slot.
    fn unlink(&mut self, index: u32) {
        let Entry { previous, next, slot, .. } = self.entries[index as usize];
        let slot = slot as usize;
        match previous {
            NONE => self.slots[slot].head = next,
            _ => self.entries[previous as usize].next = next,
        }
        match next {
            NONE => self.slots[slot].tail = previous,
            _ => self.entries[next as usize].previous = previous,
        }
        if previous == NONE && next == NONE {
            self.occupied[slot / SLOTS_PER_LEVEL] &= !(1 << (slot % SLOTS_PER_LEVEL));
        }
    }

    /// An unlinked entry, reused if one is free.
    fn acquire(&mut self, tick: u64, value: T) -> u32 {
        if self.free_head == NONE {
            // 2^32 entries are more than 100 GiB of timers: memory ends first.
            let index = u32::try_from(self.entries.len()).ok().filter(|&index| index != NONE);
            let index = index.expect("a timer wheel holds fewer than 2^32 - 1 timers");
            let value = Some(value);
            self.entries.push(Entry { tick, previous: NONE, next: NONE, generation: 0, slot: 0, value });
            return index;
        }
        let index = self.free_head;
        let entry = &mut self.entries[index as usize];
        self.free_head = entry.next;
        entry.tick = tick;
        entry.value = Some(value);
        index
    }

    /// Ends an unlinked entry's timer and returns its value.
    fn release(&mut self, index: u32) -> Option<T> {
        self.len -= 1;
        let entry = &mut self.entries[index as usize];
        // After 2^32 timers an entry is given up: a key from its first round would name the next timer.
        if let Some(generation) = entry.generation.checked_add(1) {
            entry.generation = generation;
            entry.next = std::mem::replace(&mut self.free_head, index);
        }
        entry.value.take()
    }
}

/// The last tick that has been reached at `now_ns`.
///
/// The clock's very last nanosecond counts as the tick that deadlines next to it are rounded up to, so that
/// even they fire when a virtual clock jumps to [`Wheel::next_deadline_ns`].
fn completed_tick(now_ns: u64) -> u64 {
    (now_ns >> TICK_SHIFT) + u64::from(now_ns == u64::MAX)
}

#[cfg(test)]
mod tests;
