//! Whether a task is in a queue, and whether a second thread has woken it there.
//!
//! A worker on io_uring that wakes a task of another worker queues its notification, which may be submitted much later. A second
//! thread that wakes the task finds it scheduled, and must end the sleep of the task's worker by itself, even if that worker
//! falls asleep only afterwards. Either the second thread sees the queued notification in the mailbox, or the first one sees the
//! mark that the second one has left before it looked. A loom model beside those of the mailbox tries every interleaving.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const SCHEDULED: u8 = 1;
const WOKEN_AGAIN: u8 = 2;

/// The thread that finds a task idle puts it into a queue.
#[derive(Debug)]
pub(super) struct Scheduled(AtomicU8);

impl Scheduled {
    /// Of a task that is in a queue.
    pub fn new() -> Self {
        Self(AtomicU8::new(SCHEDULED))
    }

    /// Notes that the task is in a queue. Returns whether it was idle.
    #[inline]
    pub fn set(&self) -> bool {
        self.0.swap(SCHEDULED, Ordering::AcqRel) == IDLE
    }

    /// Notes that the task was woken while it was in a queue, before the thread looks whether the worker sleeps. Returns whether
    /// it was idle after all.
    pub fn set_again(&self) -> bool {
        self.0.swap(WOKEN_AGAIN, Ordering::AcqRel) == IDLE
    }

    /// Whether another thread has woken the task since it was scheduled. For the thread that has queued a notification.
    pub fn is_woken_again(&self) -> bool {
        // Changes nothing, but a thread that calls `set_again` afterwards sees the queued notification.
        self.0.fetch_or(IDLE, Ordering::AcqRel) == WOKEN_AGAIN
    }

    /// Notes that the worker has taken the task out of its queue. The poll that follows sees what the wakers did before.
    #[inline]
    pub fn clear(&self) {
        self.0.swap(IDLE, Ordering::AcqRel);
    }
}
