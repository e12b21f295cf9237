//! The wheel case by case, then beside a sorted map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const YEAR_NS: u64 = 365 * 24 * HOUR_NS;

fn expired<T>(wheel: &mut Wheel<T>, now_ns: u64) -> Vec<T> {
    let mut fired = Vec::new();
    wheel.expire(now_ns, &mut fired);
    fired
}

/// When a timer is due, computed otherwise than the wheel does it.
fn due_ns(deadline_ns: u64) -> u64 {
    deadline_ns.checked_next_multiple_of(TICK_NS).unwrap_or(u64::MAX)
}

#[test]
fn fires_at_the_tick_after_the_deadline_and_never_before() {
    for start_ns in [0, 1, TICK_NS - 1, 63 * TICK_NS, YEAR_NS + 12_345] {
        for delay_ns in [1, TICK_NS - 1, TICK_NS, TICK_NS + 1, 64 * TICK_NS, HOUR_NS, 30 * YEAR_NS] {
            let deadline_ns = start_ns + delay_ns;
            let mut wheel = Wheel::new(start_ns);
            wheel.insert(deadline_ns, 'x');
            assert_eq!(wheel.next_deadline_ns(), Some(due_ns(deadline_ns)));
            assert_eq!(expired(&mut wheel, due_ns(deadline_ns) - 1), []);
            assert_eq!(wheel.next_deadline_ns(), Some(due_ns(deadline_ns)));
            assert_eq!(expired(&mut wheel, due_ns(deadline_ns)), ['x']);
            assert!(wheel.is_empty() && wheel.next_deadline_ns().is_none());
        }
    }
}

#[test]
fn a_clock_that_stands_or_goes_backwards_fires_what_is_overdue_only() {
    let mut wheel = Wheel::new(HOUR_NS);
    wheel.insert(HOUR_NS + SECOND_NS, 'x');
    wheel.insert(0, 'a');
    wheel.insert(HOUR_NS - TICK_NS, 'b');
    assert!(wheel.next_deadline_ns().is_some_and(|bound_ns| bound_ns <= HOUR_NS));
    assert_eq!(expired(&mut wheel, HOUR_NS), ['a', 'b']);
    assert_eq!(expired(&mut wheel, 0), []);
    assert_eq!(wheel.next_deadline_ns(), Some(due_ns(HOUR_NS + SECOND_NS)));
    wheel.insert(HOUR_NS - TICK_NS, 'c');
    assert_eq!(expired(&mut wheel, 0), ['c'], "due by the latest time that was told");
    assert_eq!(expired(&mut wheel, HOUR_NS + 2 * SECOND_NS), ['x']);
}

#[test]
fn ticks_are_ordered_across_levels_and_insertions_within_a_tick() {
    let mut wheel = Wheel::new(0);
    let ticks = [300_000, 5, 64, 4096, 5, 63, 4095, 300_000, 65, 64, 1 << 40, 1 << 30];
    let mut expected: Vec<(u64, usize)> = ticks.into_iter().zip(0..).collect();
    for timer in &expected {
        wheel.insert(timer.0 * TICK_NS, *timer);
    }
    assert_eq!(expired(&mut wheel, 4 * TICK_NS), []);
    // Beside the same ticks inserted before, of which some were put on an upper level.
    for timer in [(5, 100), (64, 101), (300_000, 102)] {
        wheel.insert(timer.0 * TICK_NS, timer);
        expected.push(timer);
    }
    expected.sort_unstable();
    assert_eq!(expired(&mut wheel, u64::MAX), expected);
}

#[test]
fn the_end_of_the_clock_is_reached_and_not_waited_for_in_vain() {
    let mut wheel = Wheel::new(0);
    wheel.insert(u64::MAX, 'z');
    wheel.insert(u64::MAX - TICK_NS, 'y');
    assert_eq!(expired(&mut wheel, u64::MAX - 1), ['y']);
    assert_eq!(wheel.next_deadline_ns(), Some(u64::MAX));
    assert_eq!(expired(&mut wheel, u64::MAX), ['z']);
    wheel.insert(u64::MAX, 'w');
    assert_eq!(expired(&mut wheel, u64::MAX), ['w']);
}

#[test]
fn stale_keys_are_harmless() {
    let mut wheel = Wheel::new(0);
    let cancelled = wheel.insert(SECOND_NS, 'a');
    assert_eq!(wheel.cancel(cancelled), Some('a'));
    let fired = wheel.insert(SECOND_NS, 'b');
    assert_eq!(cancelled.index, fired.index, "the entry is reused");
    assert!(wheel.get_mut(cancelled).is_none() && wheel.cancel(cancelled).is_none());
    assert_eq!(wheel.get_mut(fired).map(|value| std::mem::replace(value, 'c')), Some('b'));
    assert_eq!(expired(&mut wheel, 2 * SECOND_NS), ['c']);
    assert!(wheel.get_mut(fired).is_none() && wheel.cancel(fired).is_none());
    assert_eq!(wheel.cancel(TimerKey { index: 1000, generation: 0 }), None);

    wheel.entries[0].generation = u32::MAX;
    let last = wheel.insert(SECOND_NS, 'd');
    assert_eq!(wheel.cancel(last), Some('d'));
    assert_eq!(wheel.insert(SECOND_NS, 'e').index, 1, "generations used up: the entry is retired");
    assert!(wheel.cancel(last).is_none() && wheel.cancel(cancelled).is_none() && wheel.len() == 1);
}

#[test]
fn a_bound_left_by_a_cancelled_timer_costs_one_wake() {
    let mut wheel = Wheel::new(0);
    let early = wheel.insert(YEAR_NS, 'a');
    wheel.insert(YEAR_NS + HOUR_NS, 'b');
    assert_eq!(wheel.cancel(early), Some('a'));
    assert_eq!(wheel.next_deadline_ns(), Some(due_ns(YEAR_NS)));
    assert_eq!(expired(&mut wheel, due_ns(YEAR_NS)), []);
    assert_eq!(wheel.next_deadline_ns(), Some(due_ns(YEAR_NS + HOUR_NS)));
    assert_eq!(expired(&mut wheel, due_ns(YEAR_NS + HOUR_NS)), ['b']);
}

#[test]
fn steady_state_does_not_grow() {
    let mut wheel = Wheel::new(0);
    for round in 0..100u64 {
        let now_ns = round * SECOND_NS;
        let keys: Vec<_> = (0..100).map(|i| wheel.insert(now_ns + i * 10_000_000, i)).collect();
        keys.into_iter().step_by(2).for_each(|key| assert!(wheel.cancel(key).is_some()));
        assert_eq!(expired(&mut wheel, now_ns + SECOND_NS).len(), 50);
        assert_eq!(wheel.entries.len(), 100);
    }
}

/// The wheel beside a sorted map that says what must be pending and in which order it fires.
struct Pair {
    wheel: Wheel<u64>,
    /// By due time and serial number: the timer's value.
    model: BTreeMap<(u64, u64), u64>,
    /// Every timer ever inserted, stale ones too: its key and its place in the model.
    keys: Vec<(TimerKey, (u64, u64))>,
    latest_ns: u64,
}

impl Pair {
    fn new(now_ns: u64) -> Self {
        Self { wheel: Wheel::new(now_ns), model: BTreeMap::new(), keys: Vec::new(), latest_ns: now_ns }
    }

    fn insert(&mut self, deadline_ns: u64) {
        let latest_ns = self.latest_ns;
        let present_ns = if latest_ns == u64::MAX { latest_ns } else { latest_ns - latest_ns % TICK_NS };
        let serial = self.keys.len() as u64;
        let place = (due_ns(deadline_ns).max(present_ns), serial);
        self.keys.push((self.wheel.insert(deadline_ns, serial), place));
        self.model.insert(place, serial);
    }

    fn cancel(&mut self, nth: usize) {
        let (key, place) = self.keys[nth];
        assert_eq!(self.wheel.cancel(key), self.model.remove(&place));
    }

    fn replace(&mut self, nth: usize, new: u64) {
        let (key, place) = self.keys[nth];
        let replace = |value: &mut u64| std::mem::replace(value, new);
        assert_eq!(self.wheel.get_mut(key).map(replace), self.model.get_mut(&place).map(replace));
    }

    fn expire(&mut self, now_ns: u64) {
        self.latest_ns = self.latest_ns.max(now_ns);
        let mut expected = Vec::new();
        while self.model.first_key_value().is_some_and(|(&(due_ns, _), _)| due_ns <= self.latest_ns) {
            expected.extend(self.model.pop_first().map(|(_, value)| value));
        }
        assert!(expired(&mut self.wheel, now_ns) == expected, "out of order, lost or early at {now_ns} ns");
    }

    /// Sleeps as a worker does. False if there is nothing to wait for.
    fn expire_at_bound(&mut self) -> bool {
        let Some(bound_ns) = self.wheel.next_deadline_ns() else { return false };
        self.expire(bound_ns);
        assert!(self.wheel.next_deadline_ns().is_none_or(|next_ns| next_ns > bound_ns), "no progress");
        true
    }

    /// Checks the header's invariants on the whole structure, then what shows of it.
    fn check(&self) {
        let wheel = &self.wheel;
        let mut linked = 0;
        for (slot, list) in wheel.slots.iter().enumerate() {
            let occupied = wheel.occupied[slot / SLOTS_PER_LEVEL] >> (slot % SLOTS_PER_LEVEL) & 1 == 1;
            assert_eq!(occupied, list.head != NONE, "slot {slot}: the bit and the list disagree");
            assert!(!occupied || list.earliest_tick >= wheel.slot_start(slot));
            let (mut previous, mut index) = (NONE, list.head);
            while index != NONE {
                let entry = &wheel.entries[index as usize];
                assert!(entry.value.is_some() && entry.tick >= wheel.elapsed_tick);
                assert_eq!((entry.previous, entry.slot as usize), (previous, slot));
                assert_eq!(wheel.slot_of(entry.tick), slot, "a timer stands in the wrong slot");
                assert!(list.earliest_tick <= entry.tick);
                linked += 1;
                (previous, index) = (index, entry.next);
            }
            assert_eq!(list.tail, previous);
        }
        assert_eq!((linked, wheel.len()), (self.model.len(), self.model.len()));
        let bound_ns = wheel.next_deadline_ns();
        assert_eq!(bound_ns.is_none(), wheel.is_empty());
        assert!(self.model.keys().all(|&(due_ns, _)| bound_ns <= Some(due_ns)));
    }
}

#[test]
fn fault_16_million_timers_ordered_none_lost_none_early() {
    let count = if cfg!(miri) { 1000 } else { 1_000_000 };
    let mut state: u64 = 0x16_16_16_16_16_16_16_16;
    let mut random = move || {
        // xorshift64 from a fixed seed
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let start_ns = random() >> 8;
    let mut pair = Pair::new(start_ns);
    for _ in 0..count {
        // As many timers within each power of two, up to four years.
        let span_ns = (4 * YEAR_NS) >> (random() % 40);
        pair.insert(start_ns + random() % span_ns);
    }
    (0..count).step_by(5).for_each(|nth| pair.cancel(nth));
    pair.check();
    for jump_ns in [1, TICK_NS, SECOND_NS, 60 * SECOND_NS, HOUR_NS, 30 * HOUR_NS, YEAR_NS, 4 * YEAR_NS] {
        pair.expire(pair.latest_ns + jump_ns);
        for _ in 0..count / 100 {
            pair.expire_at_bound();
        }
        pair.check();
    }
    assert!(pair.wheel.is_empty());
}

/// As likely within each power of two, so that every level of the wheel is met.
fn any_span_ns() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(random, shift)| random >> shift)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn behaves_like_a_sorted_map(
        start_ns in any_span_ns(),
        steps in prop::collection::vec((0..21, any_span_ns(), any::<usize>()), 0..200),
    ) {
        let mut pair = Pair::new(start_ns);
        pair.insert(start_ns);
        for (action, span_ns, nth) in steps {
            let (now_ns, nth) = (pair.latest_ns, nth % pair.keys.len());
            match action {
                0..6 => pair.insert(now_ns.saturating_add(span_ns)),
                6..9 => pair.insert(now_ns.saturating_add(span_ns % (200 * TICK_NS))),
                9 => pair.insert(now_ns.saturating_sub(span_ns)),
                10..13 => pair.cancel(nth),
                13 => pair.replace(nth, span_ns),
                14..16 => pair.expire(now_ns.saturating_add(span_ns >> 12)),
                16 => pair.expire(now_ns.saturating_add(span_ns)),
                17 => pair.expire(now_ns.saturating_sub(span_ns)),
                _ => _ = pair.expire_at_bound(),
            }
            pair.check();
        }
        while pair.expire_at_bound() {
            pair.check();
        }
    }
}
