//! Timers, deadlines of operations, and the deadlines of streams that are closed but still sending.

use std::time::Duration;

use super::event::{Direction, Event, EventKind, Events, ObjectId, ObjectKind};
use crate::driver::{Driver, Key, Lingering, Wait, WakeQueue};
use crate::executor::{TimerKey, Wheel};

#[derive(Debug)]
pub(super) struct Timers {
    wheel: Wheel<Timer>,
    /// Reused list of timers that are due.
    fired: Vec<Timer>,
    /// Deadlines by [`ObjectKind`], slot and [`Direction`].
    deadlines: [Vec<[Option<TimerKey>; 2]>; 3],
    /// Number of pending deadlines.
    pub deadline_count: usize,
    /// Closed streams that may still be sending.
    lingering: Lingering,
}

#[derive(Clone, Copy, Debug)]
enum Timer {
    /// A timer of the application, which reports this event.
    User(usize),
    /// The fields of an [`ObjectId`], and the operation.
    Deadline { key: Key, token: usize, kind: ObjectKind, operation: Direction },
}

impl Timers {
    pub fn new(driver: &Driver) -> Self {
        Self {
            wheel: Wheel::new(driver.now_ns(), driver.is_simulated()),
            fired: Vec::new(),
            deadlines: Default::default(),
            deadline_count: 0,
            lingering: driver.lingering(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.wheel.is_empty() && self.lingering.is_empty()
    }

    pub fn add(&mut self, deadline_ns: u64, event: usize) -> TimerKey {
        self.wheel.insert(deadline_ns, Timer::User(event))
    }

    /// Returns `false` if the timer has fired or been cancelled.
    pub fn cancel(&mut self, key: TimerKey) -> bool {
        self.wheel.cancel(key).is_some()
    }

    pub fn set_deadline(&mut self, object: ObjectId, operation: Direction, deadline_ns: u64) {
        self.clear_deadline(object, operation);
        let (deadlines, index) = (&mut self.deadlines[object.kind as usize], object.key.index as usize);
        if deadlines.len() <= index {
            deadlines.resize(index + 1, [None; 2]);
        }
        let ObjectId { key, token, kind } = object;
        let timer = self.wheel.insert(deadline_ns, Timer::Deadline { key, token, kind, operation });
        deadlines[index][operation as usize] = Some(timer);
        self.deadline_count += 1;
    }

    /// Removes the deadline of an operation, if it has one.
    pub fn clear_deadline(&mut self, object: ObjectId, operation: Direction) {
        let slot = self.deadlines[object.kind as usize].get_mut(object.key.index as usize);
        if let Some(key) = slot.and_then(|deadlines| deadlines[operation as usize].take()) {
            self.wheel.cancel(key);
            self.deadline_count -= 1;
        }
    }

    /// Limits the time for which a closed stream continues to send without progress.
    pub fn linger(&mut self, driver: &Driver, key: Key) {
        self.lingering.push(key, driver, driver.now_ns());
    }

    /// Returns how long a turn can wait until the next timer is due.
    #[cold]
    pub fn limit_wait(&self, wait: Wait, now_ns: u64) -> Wait {
        let lingering = self.lingering.next_check_ns();
        let Some(deadline_ns) = self.wheel.next_deadline_ns().into_iter().chain(lingering).min() else {
            return wait;
        };
        match (wait, deadline_ns.saturating_sub(now_ns)) {
            (Wait::None, _) | (_, 0) => Wait::None,
            (Wait::For(nanoseconds), remaining_ns) => Wait::For(nanoseconds.min(remaining_ns)),
            (Wait::Forever, remaining_ns) => Wait::For(remaining_ns),
        }
    }

    /// Adds the events of timers and deadlines that are due, and aborts closed streams that make no progress.
    #[cold]
    pub fn fire(&mut self, driver: &mut Driver, events: &mut Events) {
        let now_ns = driver.now_ns();
        self.wheel.expire(now_ns, &mut self.fired);
        for timer in self.fired.drain(..) {
            match timer {
                Timer::User(event) => events.data.push(event),
                Timer::Deadline { key, token, kind, operation } => {
                    self.deadlines[kind as usize][key.index as usize][operation as usize] = None;
                    self.deadline_count -= 1;
                    // If the operation is no longer waiting, its own event is in the list.
                    if (ObjectId { key, token, kind }).stop_waiting(driver, operation) {
                        let kind = match operation {
                            Direction::Receive => EventKind::ReceiveDeadline,
                            Direction::Send => EventKind::SendDeadline,
                        };
                        events.data.push(Event::encode(token, kind));
                    }
                }
            }
        }
        // No call waits for a stream that has been closed.
        self.lingering.check(driver, now_ns, &mut WakeQueue::default());
    }
}

/// Returns the time `after` from `now_ns`, or the largest time if it overflows.
pub(super) fn deadline_ns(now_ns: u64, after: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
}
