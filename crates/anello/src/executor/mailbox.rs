//! What other threads hand to a worker: a queue with a doorbell that is rung only when the worker sleeps.
//!
//! ```text
//!          notify: swap(NOTIFIED)        who replaced SLEEPING or QUEUED
//!   AWAKE ───────────────────> NOTIFIED <─────────────────────┬──────────┐
//!     ^  ^                      │        notifies at once     │          │
//!     │  └───── take: swap ─────┴───────────────────────────< │ ─ QUEUED by a worker
//!     │                                                       │          ^
//!     └── finish_sleep ──────── prepare_to_sleep ───────> SLEEPING ──────┘
//!                               fails when NOTIFIED or QUEUED    queue_notify: that worker notifies later
//! ```
//!
//! A worker on io_uring does not notify another one at once: it queues a message that its next turn submits. Until then, any
//! other thread that rings must notify by itself; hence the state `QUEUED`, which names the worker.
//!
//! Invariant: an item is in the queue before the state says `NOTIFIED` or `QUEUED`, and the owner sleeps only after it has replaced
//! `AWAKE` by `SLEEPING` in one step. So either the owner sees that it was rung and does not sleep, or the pusher sees
//! `SLEEPING` or the mark of another worker, and ends the sleep: no wake is lost. Every interleaving is tried by the loom
//! models at the foot.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
const NOTIFIED: u32 = 2;
/// A worker has queued a notification and not yet submitted it: the rest of the state is its number.
const QUEUED: u32 = 1 << 31;

/// The queue of one worker.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    state: AtomicU32,
    /// `None` once closed.
    queue: Mutex<Option<Vec<T>>>,
}

/// What the sender has to do for the owner to take its mail.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyResult {
    /// Nothing: the owner is awake, or is being notified.
    Awake,
    /// End the owner's sleep, at once.
    Sleeping,
    /// Queue the notification that ends the owner's sleep.
    Queue,
}

impl<T> Mailbox<T> {
    pub fn new() -> Self {
        Self { state: AtomicU32::new(AWAKE), queue: Mutex::new(Some(Vec::new())) }
    }

    /// Adds an item, or gives it back when the mailbox is closed. From any thread, which then rings.
    pub fn push(&self, item: T) -> Result<(), T> {
        match self.lock().as_mut() {
            Some(queue) => {
                queue.push(item);
                Ok(())
            }
            None => Err(item),
        }
    }

    /// Rings, with or without an item. From any thread.
    pub fn notify(&self) -> NotifyResult {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            AWAKE | NOTIFIED => NotifyResult::Awake,
            // What another worker has queued may be submitted much later.
            _ => NotifyResult::Sleeping,
        }
    }

    /// Rings from a worker with this number, which can queue a notification.
    pub fn queue_notify(&self, worker: u32) -> NotifyResult {
        let queued = QUEUED | worker;
        match self.state.compare_exchange(SLEEPING, queued, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => NotifyResult::Queue,
            Err(state) if state == queued => NotifyResult::Awake,
            Err(_) => self.notify(),
        }
    }

    /// Whether there may be items. By the owner, cheap.
    #[inline]
    pub fn is_notified(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= NOTIFIED
    }

    /// Whether the owner sleeps, with a queued notification or without. From any thread.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        !matches!(self.state.load(Ordering::SeqCst), AWAKE | NOTIFIED)
    }

    /// Takes all items. By the owner.
    pub fn take(&self) -> Vec<T> {
        self.state.swap(AWAKE, Ordering::SeqCst);
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Announces a sleep; `false` when there is mail instead. By the owner.
    #[inline]
    pub fn prepare_to_sleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, SLEEPING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The sleep is over, whatever ended it. By the owner.
    #[inline]
    pub fn finish_sleep(&self) {
        // A failure means that it was rung meanwhile: that stays.
        self.state.compare_exchange(SLEEPING, AWAKE, Ordering::SeqCst, Ordering::SeqCst).ok();
    }

    /// Refuses items from now on, and returns those that were left.
    pub fn close(&self) -> Vec<T> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<T>>> {
        // A panic while the lock was held cannot leave the vector half-changed.
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_pusher_rings_a_sleeper() {
        let mailbox = Mailbox::new();
        let push = |item| mailbox.push(item).map(|()| mailbox.notify());
        assert_eq!(push(1), Ok(NotifyResult::Awake));
        assert!(!mailbox.prepare_to_sleep(), "there is mail");
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
    fn queued_notification_silences_only_its_worker() {
        let mailbox = Mailbox::<u32>::new();
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Awake, "the owner is awake");
        assert_eq!(mailbox.take(), []);
        assert!(mailbox.prepare_to_sleep());
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Queue);
        assert_eq!(mailbox.queue_notify(7), NotifyResult::Awake, "it is queued");
        assert_eq!(mailbox.queue_notify(8), NotifyResult::Sleeping, "another worker cannot rely on it");
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
    use super::super::scheduled::Scheduled;
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// The owner loops as the executor does; two threads push. It must get both items without ever sleeping through
    /// the last push: a sleep ends only when a pusher was told to end it.
    #[test]
    fn fault_14_no_wake_is_lost() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let (notify, notified) = loom::sync::mpsc::channel::<()>();
            let pushers: Vec<_> = (0..2)
                .map(|item| {
                    let (mailbox, notify) = (Arc::clone(&mailbox), notify.clone());
                    thread::spawn(move || {
                        mailbox.push(item).unwrap();
                        if mailbox.notify() == NotifyResult::Sleeping {
                            notify.send(()).unwrap();
                        }
                    })
                })
                .collect();
            let mut received = Vec::new();
            while received.len() < 2 {
                received.extend(mailbox.take());
                if received.len() < 2 && mailbox.prepare_to_sleep() {
                    // The blocking wait: loom reports a deadlock if nobody ends it.
                    notified.recv().unwrap();
                    mailbox.finish_sleep();
                }
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
            received.sort_unstable();
            assert_eq!(received, [0, 1]);
        });
    }

    /// A worker queues its notification and never submits it; another thread pushes, too. The owner must get the item of
    /// that thread all the same.
    #[test]
    fn fault_14_queued_notification_delays_no_other() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let (notify, notified) = loom::sync::mpsc::channel::<()>();
            let pushers = [true, false].map(|queues| {
                let (mailbox, notify) = (Arc::clone(&mailbox), notify.clone());
                thread::spawn(move || {
                    mailbox.push(queues).unwrap();
                    let result = if queues { mailbox.queue_notify(7) } else { mailbox.notify() };
                    if result == NotifyResult::Sleeping {
                        notify.send(()).unwrap();
                    }
                })
            });
            let mut received = Vec::new();
            while !received.contains(&false) {
                received.extend(mailbox.take());
                if !received.contains(&false) && mailbox.prepare_to_sleep() {
                    notified.recv().unwrap();
                    mailbox.finish_sleep();
                }
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
        });
    }

    /// Two threads wake one task. The first is a worker that queues its notification and never submits it: the task must be
    /// polled for the other one all the same, whenever its worker falls asleep.
    #[test]
    fn fault_14_second_waker_of_a_task_is_not_silenced() {
        let mut model = loom::model::Builder::new();
        // All interleavings would take hours.
        model.preemption_bound = Some(5);
        model.check(|| {
            let mailbox = Arc::new(Mailbox::new());
            let (scheduled, told) = (Arc::new(Scheduled::new()), Arc::new(AtomicBool::new(false)));
            scheduled.clear();
            let (notify, notified) = loom::sync::mpsc::channel::<()>();
            // As the wakers of tasks do.
            let wakers = [true, false].map(|queues| {
                let (mailbox, notify) = (Arc::clone(&mailbox), notify.clone());
                let (scheduled, told) = (Arc::clone(&scheduled), Arc::clone(&told));
                thread::spawn(move || {
                    if !queues {
                        told.store(true, Ordering::Relaxed);
                    }
                    let notify_mailbox = || if queues { mailbox.queue_notify(7) } else { mailbox.notify() };
                    let notifies = if scheduled.set() || scheduled.set_again() {
                        mailbox.push(()).unwrap();
                        let result = notify_mailbox();
                        result == NotifyResult::Sleeping
                            || result == NotifyResult::Queue && scheduled.is_woken_again()
                    } else {
                        mailbox.is_asleep() && notify_mailbox() == NotifyResult::Sleeping
                    };
                    if notifies {
                        notify.send(()).unwrap();
                    }
                })
            });
            let mut is_polled = false;
            while !is_polled {
                for () in mailbox.take() {
                    scheduled.clear();
                    is_polled |= told.load(Ordering::Relaxed);
                }
                if !is_polled && mailbox.prepare_to_sleep() {
                    notified.recv().unwrap();
                    mailbox.finish_sleep();
                }
            }
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }
}
