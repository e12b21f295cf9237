use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TICK_NS: u64 = 1 << TICK_SHIFT;
const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const YEAR_NS: u64 = 365 * 24 * HOUR_NS;

fn expired<T>(wheel: &mut Wheel<T>, now_ns: u64) -> Vec<T> {
    let mut fired = Vec::new();
    wheel.expire(now_ns, &mut fired);
    fired
}

/// Returns the time at which a timer is due, computed independently of the wheel.
fn due_ns(deadline_ns: u64) -> u64 {
    deadline_ns.checked_next_multiple_of(TICK_NS).unwrap_or(u64::MAX)
}

#[test]
fn timer_of_virtual_clock_fires_at_its_deadline() {
    for deadline_ns in [1, 2, 63, 64, TICK_NS + 1, YEAR_NS + 7, u64::MAX - 1, u64::MAX] {
        let mut wheel = Wheel::new(0, true);
        wheel.insert(deadline_ns, 'x');
        assert_eq!(wheel.next_deadline_ns(), Some(deadline_ns));
        assert_eq!(expired(&mut wheel, deadline_ns - 1), []);
        assert_eq!(expired(&mut wheel, deadline_ns), ['x']);
    }
}

#[test]
fn timer_fires_at_tick_after_deadline_and_never_before() {
    for start_ns in [0, 1, TICK_NS - 1, 63 * TICK_NS, YEAR_NS + 12_345] {
        for delay_ns in [1, TICK_NS - 1, TICK_NS, TICK_NS + 1, 64 * TICK_NS, HOUR_NS, 30 * YEAR_NS] {
            let deadline_ns = start_ns + delay_ns;
            let mut wheel = Wheel::new(start_ns, false);
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
fn stopped_or_backward_clock_fires_only_overdue_timers() {
    let mut wheel = Wheel::new(HOUR_NS, false);
    wheel.insert(HOUR_NS + SECOND_NS, 'x');
    wheel.insert(0, 'a');
    wheel.insert(HOUR_NS - TICK_NS, 'b');
    assert!(wheel.next_deadline_ns().is_some_and(|bound_ns| bound_ns <= HOUR_NS));
    assert_eq!(expired(&mut wheel, HOUR_NS), ['a', 'b']);
    assert_eq!(expired(&mut wheel, 0), []);
    assert_eq!(wheel.next_deadline_ns(), Some(due_ns(HOUR_NS + SECOND_NS)));
    wheel.insert(HOUR_NS - TICK_NS, 'c');
    assert_eq!(expired(&mut wheel, 0), ['c'], "due at the latest time passed to the wheel");
    assert_eq!(expired(&mut wheel, HOUR_NS + 2 * SECOND_NS), ['x']);
}

#[test]
fn expiry_orders_by_tick_and_then_by_insertion() {
    let mut wheel = Wheel::new(0, false);
    let ticks = [300_000, 5, 64, 4096, 5, 63, 4095, 300_000, 65, 64, 1 << 40, 1 << 30];
    let mut expected: Vec<(u64, usize)> = ticks.into_iter().zip(0..).collect();
    for timer in &expected {
        wheel.insert(timer.0 * TICK_NS, *timer);
    }
    assert_eq!(expired(&mut wheel, 4 * TICK_NS), []);
    // Adds timers with the same ticks as before, while some of the earlier timers are on an upper level.
    for timer in [(5, 100), (64, 101), (300_000, 102)] {
        wheel.insert(timer.0 * TICK_NS, timer);
        expected.push(timer);
    }
    expected.sort_unstable();
    assert_eq!(expired(&mut wheel, u64::MAX), expected);
}

#[test]
fn timers_at_end_of_clock_fire() {
    let mut wheel = Wheel::new(0, false);
    wheel.insert(u64::MAX, 'z');
    wheel.insert(u64::MAX - TICK_NS, 'y');
    assert_eq!(expired(&mut wheel, u64::MAX - 1), ['y']);
    assert_eq!(wheel.next_deadline_ns(), Some(u64::MAX));
    assert_eq!(expired(&mut wheel, u64::MAX), ['z']);
    wheel.insert(u64::MAX, 'w');
    assert_eq!(expired(&mut wheel, u64::MAX), ['w']);
}

#[test]
fn stale_keys_match_no_timer() {
    let mut wheel = Wheel::new(0, false);
    let cancelled = wheel.insert(SECOND_NS, 'a');
    assert_eq!(wheel.cancel(cancelled), Some('a'));
    let fired = wheel.insert(SECOND_NS, 'b');
    assert_eq!(cancelled.index, fired.index, "the entry is reused");
    assert!(wheel.get_mut(cancelled).is_none() && wheel.cancel(cancelled).is_none());
    assert_eq!(wheel.get_mut(fired).map(|value| std::mem::replace(value, 'c')), Some('b'));
    assert_eq!(expired(&mut wheel, 2 * SECOND_NS), ['c']);
    assert!(wheel.get_mut(fired).is_none() && wheel.cancel(fired).is_none());
    assert_eq!(wheel.cancel(TimerKey { index: 1000, generation: 0 }), None);
}

#[test]
fn cancelled_timer_costs_at_most_one_wake_up() {
    let mut wheel = Wheel::new(0, false);
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
    let mut wheel = Wheel::new(0, false);
    for round in 0..100u64 {
        let now_ns = round * SECOND_NS;
        let keys: Vec<_> = (0..100).map(|i| wheel.insert(now_ns + i * 10_000_000, i)).collect();
        assert!(keys.iter().all(|key| key.index < 100));
        keys.into_iter().step_by(2).for_each(|key| assert!(wheel.cancel(key).is_some()));
        assert_eq!(expired(&mut wheel, now_ns + SECOND_NS).len(), 50);
    }
}

/// A wheel, and a sorted map as its reference model.
struct Pair {
    wheel: Wheel<u64>,
    /// Values of the pending timers, by due time and serial number.
    model: BTreeMap<(u64, u64), u64>,
    /// All timers that were ever inserted, each with its key in the wheel and its key in the model. Keys can be stale.
    keys: Vec<(TimerKey, (u64, u64))>,
    latest_ns: u64,
    is_virtual: bool,
}

impl Pair {
    fn new(now_ns: u64, is_virtual: bool) -> Self {
        Self {
            is_virtual,
            wheel: Wheel::new(now_ns, is_virtual),
            model: BTreeMap::new(),
            keys: Vec::new(),
            latest_ns: now_ns,
        }
    }

    fn insert(&mut self, deadline_ns: u64) {
        let latest_ns = self.latest_ns;
        let is_exact = self.is_virtual || latest_ns == u64::MAX;
        let current_ns = if is_exact { latest_ns } else { latest_ns - latest_ns % TICK_NS };
        let due_ns = if self.is_virtual { deadline_ns } else { due_ns(deadline_ns) };
        let serial = self.keys.len() as u64;
        let model_key = (due_ns.max(current_ns), serial);
        self.keys.push((self.wheel.insert(deadline_ns, serial), model_key));
        self.model.insert(model_key, serial);
    }

    fn cancel(&mut self, nth: usize) {
        let (key, model_key) = self.keys[nth];
        assert_eq!(self.wheel.cancel(key), self.model.remove(&model_key));
    }

    fn replace(&mut self, nth: usize, new: u64) {
        let (key, model_key) = self.keys[nth];
        let replace = |value: &mut u64| std::mem::replace(value, new);
        assert_eq!(self.wheel.get_mut(key).map(replace), self.model.get_mut(&model_key).map(replace));
    }

    fn expire(&mut self, now_ns: u64) {
        self.latest_ns = self.latest_ns.max(now_ns);
        let mut expected = Vec::new();
        while self.model.first_key_value().is_some_and(|(&(due_ns, _), _)| due_ns <= self.latest_ns) {
            expected.extend(self.model.pop_first().map(|(_, value)| value));
        }
        assert!(expired(&mut self.wheel, now_ns) == expected, "out of order, lost or early at {now_ns} ns");
    }

    /// Advances to the next deadline, as a worker does. Returns `false` if no timer is pending.
    fn expire_at_bound(&mut self) -> bool {
        let Some(bound_ns) = self.wheel.next_deadline_ns() else { return false };
        self.expire(bound_ns);
        assert!(self.wheel.next_deadline_ns().is_none_or(|next_ns| next_ns > bound_ns), "no progress");
        true
    }

    /// Checks the module's invariants on the whole structure, and then the public functions.
    fn check(&mut self) {
        #[cfg(debug_assertions)]
        self.wheel.check();
        let wheel = &self.wheel;
        assert_eq!(wheel.len(), self.model.len());
        let bound_ns = wheel.next_deadline_ns();
        assert_eq!(bound_ns.is_none(), wheel.is_empty());
        assert!(self.model.keys().all(|&(due_ns, _)| bound_ns <= Some(due_ns)));
    }
}

#[test]
fn fault_16_million_timers_fire_in_order_and_never_early() {
    let count = if cfg!(miri) {
        1000
    } else if cfg!(debug_assertions) {
        200_000
    } else {
        1_000_000
    };
    let mut random = fastrand::Rng::with_seed(16);
    let start_ns = random.u64(..) >> 8;
    let mut pair = Pair::new(start_ns, false);
    for _ in 0..count {
        // Deadlines are distributed logarithmically, up to four years.
        let span_ns = (4 * YEAR_NS) >> random.u32(..40);
        pair.insert(start_ns + random.u64(..span_ns));
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

/// A logarithmically distributed duration, so that every level of the wheel is used.
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
    fn wheel_matches_sorted_map(
        start_ns in any_span_ns(),
        is_virtual in any::<bool>(),
        steps in prop::collection::vec((0..21, any_span_ns(), any::<usize>()), 0..200),
    ) {
        let mut pair = Pair::new(start_ns, is_virtual);
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
