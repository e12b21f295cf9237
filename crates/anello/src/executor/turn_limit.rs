//! Limit of the time for which tasks are polled before the driver gets a turn.
//!
//! The driver sends short messages in its turn. If polls take long, a turn ends before all ready tasks have been polled:
//! the first messages do not wait for the last polls, and the peers can process them in the meantime. The clock is read
//! only every few polls.

use std::cell::Cell;

/// A turn ends after this time if its polls are long and operations wait to be submitted.
const UNSUBMITTED_NS: u64 = 6_000;

/// Average duration from which polls are long. Shorter ones produce messages so fast that submitting them together saves
/// more than it delays.
const LONG_POLL_NS: u64 = 2_000;

/// The same for polls that make the system calls that receive.
const LONG_RECEIVING_POLL_NS: u64 = 10_000;

/// A turn with fewer measured polls continues until [`MAX_UNSUBMITTED_NS`]: messages that are submitted one by one wake
/// the peers more often.
const MIN_POLLS: u64 = 3;
const MAX_UNSUBMITTED_NS: u64 = 100_000;

/// A turn ends after this time in any case, when the clock is read next.
const MAX_TURN_NS: u64 = 1_000_000;

/// Time between two readings of the clock, unless messages are delayed, and the maximum number of polls between them.
const INTERVAL_NS: u64 = 64_000;
const MAX_INTERVAL: u64 = 32;

/// Number of polls after the first reading of a turn. Small, because the duration of the polls is not known yet.
const FIRST_POLLS: u64 = 4;

#[derive(Debug)]
pub(super) struct TurnLimit {
    long_poll_ns: u64,
    /// Number of polls until the clock is read.
    countdown: Cell<u64>,
    /// Number of polls between two readings, derived from the last measured polls.
    interval: Cell<u64>,
    /// Time of the first reading in this turn, or 0.
    started_ns: Cell<u64>,
    /// Number of polls from then to the next reading.
    polls: Cell<u64>,
}

impl TurnLimit {
    /// Creates a limit. It is never reached if `is_simulated` is set, because polls take no simulated time.
    pub fn new(is_simulated: bool, receives_in_polls: bool) -> Self {
        Self {
            long_poll_ns: if receives_in_polls { LONG_RECEIVING_POLL_NS } else { LONG_POLL_NS },
            countdown: Cell::new(if is_simulated { u64::MAX } else { FIRST_POLLS }),
            interval: Cell::new(MAX_INTERVAL),
            started_ns: Cell::new(0),
            polls: Cell::new(0),
        }
    }

    #[inline]
    pub fn start_turn(&self) {
        self.started_ns.set(0);
    }

    /// Called after each poll. Returns whether the turn must end. `remaining` is the number of tasks that are ready, and
    /// `has_unsubmitted` returns whether operations wait to be submitted.
    #[inline]
    pub fn is_reached(
        &self,
        remaining: usize,
        now_ns: impl FnOnce() -> u64,
        has_unsubmitted: impl FnOnce() -> bool,
    ) -> bool {
        debug_assert_ne!(self.countdown.get(), 0, "invariant 13: the clock is not read again in this turn");
        // Zero at most: `read_clock` sets it again.
        let countdown = self.countdown.get().saturating_sub(1);
        self.countdown.set(countdown);
        countdown == 0 && self.read_clock(remaining, now_ns(), has_unsubmitted)
    }

    #[inline(never)]
    fn read_clock(&self, remaining: usize, now_ns: u64, has_unsubmitted: impl FnOnce() -> bool) -> bool {
        let started_ns = self.started_ns.get();
        if started_ns == 0 {
            self.started_ns.set(now_ns);
            let mut interval = self.interval.get();
            // If turns have few polls, this is their only reading, which becomes rarer from turn to turn.
            self.interval.set((2 * interval).min(MAX_INTERVAL));
            if remaining as u64 >= FIRST_POLLS {
                interval = interval.min(FIRST_POLLS);
            }
            self.polls.set(interval);
            self.countdown.set(interval);
            return false;
        }
        debug_assert!(now_ns >= started_ns, "invariant 13: the clock goes backwards");
        debug_assert_ne!(self.polls.get(), 0, "invariant 13: time passed without a poll");
        let (elapsed_ns, polls) = (now_ns.saturating_sub(started_ns), self.polls.get());
        let average_ns = elapsed_ns / polls;
        let delays_messages = average_ns >= self.long_poll_ns && has_unsubmitted();
        let (interval, limit_ns) = if !delays_messages {
            (INTERVAL_NS / average_ns.max(1), MAX_TURN_NS)
        } else if polls < MIN_POLLS {
            (1, MAX_UNSUBMITTED_NS)
        } else {
            (1, UNSUBMITTED_NS)
        };
        let interval = interval.clamp(1, MAX_INTERVAL);
        self.interval.set(interval);
        self.countdown.set(interval);
        self.polls.set(polls + interval);
        elapsed_ns >= limit_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs turns in which `tasks` tasks are ready, each of whose polls takes `poll_ns` and submits an operation if
    /// `submits`. Returns the number of polls in each turn, and how often the clock was read.
    fn run(poll_ns: u64, tasks: usize, submits: bool) -> (Vec<usize>, usize) {
        let limit = TurnLimit::new(false, false);
        let (mut now_ns, mut readings) = (1, 0);
        let mut turn = || {
            limit.start_turn();
            for polls in 1..=tasks {
                now_ns += poll_ns;
                let read = || {
                    readings += 1;
                    now_ns
                };
                if limit.is_reached(tasks - polls, read, || submits) {
                    return polls;
                }
            }
            tasks
        };
        let turns = (0..1000).map(|_| turn()).collect();
        (turns, readings)
    }

    #[test]
    fn turn_of_long_polls_ends_early() {
        // The time before the first reading of a turn is not counted.
        for (poll_ns, max_polls) in [(2_000, 4), (3_000, 4), (7_000, 4), (40_000, 4), (100_000, 2)] {
            for tasks in [10, 100] {
                let (turns, _) = run(poll_ns, tasks, true);
                assert!(turns[0] <= 2 * FIRST_POLLS as usize, "{poll_ns} ns: {} polls", turns[0]);
                let max = turns[1..].iter().max();
                assert_eq!(max, Some(&max_polls), "{poll_ns} ns, {tasks} tasks");
            }
        }
    }

    #[test]
    fn turn_without_submissions_is_long() {
        let (turns, _) = run(7_000, 1000, false);
        assert!(turns[1..].iter().all(|polls| (143..170).contains(polls)), "{turns:?}");
    }

    #[test]
    fn turn_of_very_long_polls_ends_without_submissions() {
        let (turns, _) = run(1_000_000, 100, false);
        assert!(turns[1..].iter().all(|&polls| polls == 2), "{turns:?}");
    }

    #[test]
    fn turn_of_short_polls_is_long() {
        let (turns, readings) = run(1_000, 10_000, true);
        assert!(turns.iter().all(|polls| (1000..1080).contains(polls)), "{turns:?}");
        assert!(readings < turns.iter().sum::<usize>() / 14, "{readings} readings");
        for tasks in [1, 3, 50] {
            let (turns, readings) = run(1_000, tasks, true);
            assert!(turns.iter().all(|&polls| polls == tasks), "{tasks} tasks: {turns:?}");
            assert!(readings <= 1000 * tasks / 10, "{tasks} tasks: {readings} readings");
        }
    }

    #[test]
    fn chain_of_long_polls_ends_the_turn() {
        let limit = TurnLimit::new(false, false);
        let mut now_ns = 1;
        let mut next = || {
            now_ns += 1_000_000;
            limit.is_reached(0, || now_ns, || false)
        };
        // Each task wakes the next one.
        assert!((0..50).any(|_| next()));
    }

    #[test]
    fn simulated_turn_never_reads_the_clock() {
        let limit = TurnLimit::new(true, false);
        assert!((0..100_000).all(|_| !limit.is_reached(100, || unreachable!(), || true)));
    }

    #[test]
    fn clock_is_read_rarely_after_long_polls() {
        let limit = TurnLimit::new(false, false);
        let (mut now_ns, mut readings) = (1, 0);
        let mut poll = |poll_ns, remaining| {
            now_ns += poll_ns;
            let read = || {
                readings += 1;
                now_ns
            };
            limit.is_reached(remaining, read, || true);
            readings
        };
        (0..100).for_each(|_| _ = poll(10_000, 100));
        let before = poll(10_000, 100);
        for _ in 0..1000 {
            limit.start_turn();
            poll(10_000, 0);
        }
        assert!(poll(0, 0) - before < 50, "turns with one poll each");
    }
}
