//! Mailbox of a worker: a queue of messages from other threads. A sender wakes the worker only if the worker is asleep.
//!
//! ```text
//!          notify: swap(NOTIFIED)        replaced SLEEPING or QUEUED:
//!   AWAKE ───────────────────> NOTIFIED <─────────────────────┬──────────┐
//!     ^  ^                      │        notify immediately   │          │
//!     │  └───── take: swap ─────┴───────────────────────────< │ ─ QUEUED by a worker
//!     │                                                       │          ^
//!     └── finish_sleep ──────── prepare_to_sleep ───────> SLEEPING ──────┘
//!                               fails if NOTIFIED or QUEUED      queue_notify: that worker notifies later
//! ```
//!
//! A worker on io_uring queues its notification to the target worker, and submits it immediately. If the kernel does not
//! take it, for example because completions must be read first, the next turn submits it. Until then, any other thread
//! that sends a message must notify the target worker itself. The state `QUEUED` therefore contains the number of the
//! worker that has queued the notification.
//!
//! # Invariants
//!
//! A sender pushes its item before it sets the state to `NOTIFIED` or `QUEUED`. The owner sleeps only after it has
//! atomically replaced `AWAKE` with `SLEEPING`. Therefore, either the owner sees the notification and does not sleep, or
//! the sender sees `SLEEPING` or the number of another worker and wakes the owner. The loom models at the end of this
//! file check all interleavings, and those of `task.rs` check [`Scheduled`] with the wakers of tasks.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU16, AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU16, AtomicU64, Ordering},
};

/// Number of items for which the queue has memory when it is empty.
const CAPACITY: usize = 16;

const AWAKE: u64 = 0;
const SLEEPING: u64 = 1;
const NOTIFIED: u64 = 2;
/// Flag: a worker has queued a notification but has not yet submitted it. The other bits are the number of that worker.
const QUEUED: u64 = 1 << 63;

/// A worker's mailbox. The worker is called the mailbox's owner.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    state: AtomicU64,
    /// `None` once the mailbox is closed. The owner allocates the memory. If a sender did, the owner would free it and use
    /// it for objects of its own, next to objects of the sender: two workers would write to the same cache lines. If a sender
    /// enlarges the queue, glibc uses the heap from which it was allocated.
    queue: Mutex<Option<Vec<T>>>,
}

/// The action that a sender must take to wake the owner.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyResult {
    /// Nothing: the owner is awake, or another thread is notifying it.
    Awake,
    /// Wake the owner immediately.
    Sleeping,
    /// Queue a notification that wakes the owner.
    Queue,
}

impl<T> Mailbox<T> {
    /// Creates an empty mailbox. Called by the owner.
    pub fn new() -> Self {
        Self { state: AtomicU64::new(AWAKE), queue: Mutex::new(Some(Vec::with_capacity(CAPACITY))) }
    }

    /// Adds an item, or returns it if the mailbox is closed. Can be called by any thread, which must then call
    /// [`notify`](Self::notify) or [`queue_notify`](Self::queue_notify).
    pub fn push(&self, item: T) -> Result<(), T> {
        match self.lock().as_mut() {
            Some(queue) => {
                queue.push(item);
                Ok(())
            }
            None => Err(item),
        }
    }

    /// Sets the state to `NOTIFIED`. Can be called by any thread, with or without a new item.
    pub fn notify(&self) -> NotifyResult {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            AWAKE | NOTIFIED => NotifyResult::Awake,
            // A worker that has queued a notification might take a long time to submit it.
            _ => NotifyResult::Sleeping,
        }
    }

    /// Like [`notify`](Self::notify), for a worker that can queue a notification. `worker` is the number of that
    /// worker.
    pub fn queue_notify(&self, worker: u64) -> NotifyResult {
        let queued = QUEUED | worker;
        match self.state.compare_exchange(SLEEPING, queued, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => NotifyResult::Queue,
            Err(state) if state == queued => NotifyResult::Awake,
            Err(_) => self.notify(),
        }
    }

    /// Returns whether there may be items. Called by the owner. Performs only one relaxed load.
    #[inline]
    pub fn is_notified(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= NOTIFIED
    }

    /// Returns whether the owner is asleep, even if a notification is queued. Can be called by any thread.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        !matches!(self.state.load(Ordering::SeqCst), AWAKE | NOTIFIED)
    }

    /// Takes all items. Called by the owner.
    pub fn take(&self) -> Vec<T> {
        let previous = self.state.swap(AWAKE, Ordering::SeqCst);
        debug_assert_ne!(previous, SLEEPING, "invariant 11: a worker takes its messages while it is asleep");
        match self.lock().as_mut() {
            Some(queue) if !queue.is_empty() => std::mem::replace(queue, Vec::with_capacity(CAPACITY)),
            _ => Vec::new(),
        }
    }

    /// Sets the state to `SLEEPING`. Returns `false` if the owner has been notified and must not sleep.
    #[inline]
    pub fn prepare_to_sleep(&self) -> bool {
        let exchanged = self.state.compare_exchange(AWAKE, SLEEPING, Ordering::SeqCst, Ordering::SeqCst);
        debug_assert_ne!(exchanged, Err(SLEEPING), "invariant 11: a worker falls asleep twice");
        exchanged.is_ok()
    }

    /// Checks that the owner is awake. Called by the owner.
    #[cfg(debug_assertions)]
    pub fn check_awake(&self) {
        let state = self.state.load(Ordering::Relaxed);
        assert_ne!(state, SLEEPING, "invariant 11: a worker runs while it is asleep");
    }

    #[inline]
    pub fn finish_sleep(&self) {
        // If the owner was notified while it was asleep, the exchange fails, which preserves the notification.
        self.state.compare_exchange(SLEEPING, AWAKE, Ordering::SeqCst, Ordering::SeqCst).ok();
    }

    /// Closes the mailbox and returns the remaining items. Later calls to `push` return their item.
    pub fn close(&self) -> Vec<T> {
        // A mailbox that is already closed has no items.
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<T>>> {
        // A panic while the lock is held cannot leave the vector in an inconsistent state.
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

const IDLE: u16 = 0;
const SCHEDULED: u16 = 1;
/// Set only together with `SCHEDULED`.
const RESCHEDULED: u16 = 2;

/// Records whether a task is in a queue, and whether another thread has woken it since it was queued. The thread that
/// changes the state from `IDLE` pushes the task into a queue.
///
/// The notification for the first wake-up may stay queued for a long time. A second thread that wakes the task must
/// therefore notify the task's worker itself, even if the worker does not go to sleep until later. Either the second
/// thread sees the queued notification in the mailbox, or the first thread sees `RESCHEDULED`, which the second one
/// sets before it checks the mailbox. Other wake-ups, also those by the worker itself, preserve `RESCHEDULED` until the
/// worker has removed the task from the queue.
///
/// x86-64 has a single instruction for setting a bit of 16 bits, but not of 8.
#[derive(Debug)]
pub(super) struct Scheduled(AtomicU16);

impl Scheduled {
    pub fn new() -> Self {
        Self(AtomicU16::new(SCHEDULED))
    }

    /// Schedules the task. Returns whether it was idle.
    #[inline]
    pub fn set(&self) -> bool {
        self.0.fetch_or(SCHEDULED, Ordering::AcqRel) & SCHEDULED == 0
    }

    /// Returns whether the task is in a queue.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != IDLE
    }

    /// Called by a thread before it checks whether the worker is asleep. Returns whether the task was idle after all.
    pub fn set_rescheduled(&self) -> bool {
        self.0.swap(SCHEDULED | RESCHEDULED, Ordering::AcqRel) == IDLE
    }

    /// Called by the thread that has queued a notification.
    pub fn is_rescheduled(&self) -> bool {
        // This write does not change the value. It orders the queued notification before a later `set_rescheduled` on
        // another thread.
        self.0.fetch_or(0, Ordering::AcqRel) & RESCHEDULED != 0
    }

    /// Called when the worker has removed the task from a queue. The poll that follows sees all writes that preceded the
    /// wake-ups.
    #[inline]
    pub fn clear(&self) {
        let previous = self.0.swap(IDLE, Ordering::AcqRel);
        debug_assert_ne!(
            previous, IDLE,
            "invariant 12: a task in a queue is not scheduled, so it can be queued twice"
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_first_sender_notifies_sleeping_owner() {
        let mailbox = Mailbox::new();
        let push = |item| mailbox.push(item).map(|()| mailbox.notify());
        assert_eq!(push(1), Ok(NotifyResult::Awake));
        assert!(!mailbox.prepare_to_sleep(), "an item is pending");
        assert_eq!(mailbox.take(), [1]);
        assert!(mailbox.prepare_to_sleep());
        assert_eq!(push(2), Ok(NotifyResult::Sleeping));
        assert_eq!(push(3), Ok(NotifyResult::Awake));
        mailbox.finish_sleep();
        assert!(mailbox.is_notified());
        assert_eq!(mailbox.take(), [2, 3]);
        assert_eq!(mailbox.close(), []);
        assert_eq!(push(4), Err(4));
    }

    #[test]
    fn sender_allocates_no_memory() {
        let mailbox = Mailbox::new();
        for round in 0..3 {
            let memory = mailbox.lock().as_ref().unwrap().as_ptr();
            std::thread::scope(|scope| scope.spawn(|| mailbox.push(round)).join().unwrap().unwrap());
            let items = mailbox.take();
            assert_eq!((items.as_ptr(), &items[..]), (memory, &[round][..]));
        }
    }

    #[test]
    fn owner_is_asleep_until_it_finishes_or_is_notified() {
        let mailbox = Mailbox::<u32>::new();
        assert!(!mailbox.is_asleep() && mailbox.prepare_to_sleep() && mailbox.is_asleep());
        mailbox.finish_sleep();
        assert!(!mailbox.is_asleep() && mailbox.prepare_to_sleep());
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Queue);
        assert!(mailbox.is_asleep(), "the notification can take a long time");
        assert_eq!(mailbox.notify(), NotifyResult::Sleeping);
        assert!(!mailbox.is_asleep());
    }

    #[test]
    fn task_is_scheduled_until_it_is_removed_from_its_queue() {
        let scheduled = Scheduled::new();
        assert!(scheduled.is_set() && !scheduled.set() && !scheduled.is_rescheduled());
        scheduled.clear();
        assert!(!scheduled.is_set());
        assert!(scheduled.set(), "first wake-up");
        assert!(!scheduled.set_rescheduled() && scheduled.is_rescheduled(), "second wake-up");
        assert!(!scheduled.set() && scheduled.is_rescheduled(), "a third wake-up preserves it");
        scheduled.clear();
        assert!(
            !scheduled.is_rescheduled() && scheduled.set_rescheduled() && scheduled.is_set(),
            "removed before the second wake-up"
        );
    }

    #[test]
    fn number_of_a_worker_is_no_other_state() {
        for worker in 0..3 {
            let mailbox = Mailbox::<u32>::new();
            assert!(mailbox.prepare_to_sleep());
            assert_eq!(mailbox.queue_notify(worker), NotifyResult::Queue);
            assert!(mailbox.is_asleep() && mailbox.is_notified());
            assert_eq!(mailbox.notify(), NotifyResult::Sleeping);
        }
    }

    #[test]
    fn queued_notification_suppresses_only_same_worker() {
        let mailbox = Mailbox::<u32>::new();
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Awake, "the owner is awake");
        assert_eq!(mailbox.take(), []);
        assert!(mailbox.prepare_to_sleep());
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Queue);
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Awake, "already queued");
        assert_eq!(
            mailbox.queue_notify(8),
            NotifyResult::Sleeping,
            "another worker must notify the owner itself"
        );
        assert_eq!(mailbox.queue_notify(9), NotifyResult::Awake, "the owner is being notified");
        mailbox.finish_sleep();
        assert!(mailbox.is_notified());
        assert_eq!(mailbox.take(), []);
        assert!(mailbox.prepare_to_sleep());
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Queue);
        mailbox.finish_sleep();
        assert!(mailbox.is_notified() && !mailbox.prepare_to_sleep());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Runs the executor's loop as the owner until `is_done` returns `true` for the received items, while each of two
    /// threads pushes one item. For each thread, `pushed` contains its item and whether it queues its notification. A
    /// queued notification is never submitted. A sleep ends only if the mailbox instructs one of the threads to wake
    /// the owner, so a lost wake-up causes a deadlock.
    fn receive(pushed: [(u32, bool); 2], is_done: fn(&[u32]) -> bool) {
        loom::model(move || {
            let mailbox = Arc::new(Mailbox::new());
            let (notify, notified) = loom::sync::mpsc::channel::<()>();
            let pushers = pushed.map(|(item, queues)| {
                let (mailbox, notify) = (Arc::clone(&mailbox), notify.clone());
                thread::spawn(move || {
                    mailbox.push(item).unwrap();
                    let result = if queues { mailbox.queue_notify(7) } else { mailbox.notify() };
                    if result == NotifyResult::Sleeping {
                        notify.send(()).unwrap();
                    }
                })
            });
            let mut received = Vec::new();
            while !is_done(&received) {
                received.extend(mailbox.take());
                if !is_done(&received) && mailbox.prepare_to_sleep() {
                    // The blocking wait. Loom reports a deadlock if no thread ends it.
                    notified.recv().unwrap();
                    mailbox.finish_sleep();
                }
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
        });
    }

    /// The owner must receive both items.
    #[test]
    fn fault_14_no_wake_up_is_lost() {
        receive([(0, false), (1, false)], |received| received.contains(&0) && received.contains(&1));
    }

    /// The owner must receive the item of the thread that does not queue its notification.
    #[test]
    fn fault_14_queued_notification_does_not_delay_other_threads() {
        receive([(0, true), (1, false)], |received| received.contains(&1));
    }
}
