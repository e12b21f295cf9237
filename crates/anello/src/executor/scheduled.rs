//! Scheduling state of a task: whether it is in a queue, and whether another thread has woken it since it was queued.
//!
//! When an io_uring worker wakes a task of another worker, it only queues the notification, which may be submitted much
//! later. A second thread that wakes the task finds the task scheduled. That thread must wake the task's worker itself,
//! even if the worker only goes to sleep afterwards. Either the second thread sees the queued notification in the
//! mailbox, or the first thread sees the state `RESCHEDULED`, which the second one sets before it checks the mailbox. A
//! loom model in the mailbox module checks the interleavings.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const SCHEDULED: u8 = 1;
const RESCHEDULED: u8 = 2;

/// Scheduling state of one task. The thread that changes it from `IDLE` pushes the task into a queue.
#[derive(Debug)]
pub(super) struct Scheduled(AtomicU8);

impl Scheduled {
    /// Returns the state for a task that is in a queue.
    pub fn new() -> Self {
        Self(AtomicU8::new(SCHEDULED))
    }

    /// Marks the task as scheduled. Returns whether it was idle.
    #[inline]
    pub fn set(&self) -> bool {
        self.0.swap(SCHEDULED, Ordering::AcqRel) == IDLE
    }

    /// Marks the task as woken while in a queue. Called before the thread checks whether the worker is asleep. Returns
    /// whether the task was idle after all.
    pub fn set_rescheduled(&self) -> bool {
        self.0.swap(RESCHEDULED, Ordering::AcqRel) == IDLE
    }

    /// Returns whether another thread has woken the task since it was scheduled. Called by the thread that has queued a
    /// notification.
    pub fn is_rescheduled(&self) -> bool {
        // This write does not change the value. It orders the queued notification before a later `set_rescheduled` on
        // another thread.
        self.0.fetch_or(IDLE, Ordering::AcqRel) == RESCHEDULED
    }

    /// Marks the task as idle. Called when the worker has removed it from its queue. The poll that follows sees all
    /// writes that preceded the wake-ups.
    #[inline]
    pub fn clear(&self) {
        self.0.swap(IDLE, Ordering::AcqRel);
    }
}
