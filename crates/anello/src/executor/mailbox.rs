//! What other threads hand to a worker: a queue with a doorbell that is rung only when the worker sleeps.
//!
//! ```text
//!            push: swap(RUNG)                     the pusher that replaced
//!   AWAKE ───────────────────────> RUNG <──────── SLEEPING: it alone notifies
//!     ^  ^                          │                 ^
//!     │  └──────── take: swap ──────┘                 │
//!     └── woke ──────────────────────── prepare_to_sleep: fails when RUNG
//! ```
//!
//! Invariant: an item is in the queue before the state says `RUNG`, and the owner sleeps only after it has replaced
//! `AWAKE` by `SLEEPING` in one step. So either the owner sees `RUNG` and does not sleep, or the pusher sees
//! `SLEEPING` and ends the sleep: no wake is lost. Every interleaving is tried by the loom model at the foot.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, Ordering},
};

const AWAKE: u8 = 0;
const SLEEPING: u8 = 1;
const RUNG: u8 = 2;

/// The queue of one worker.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    state: AtomicU8,
    /// `None` once closed.
    queue: Mutex<Option<Vec<T>>>,
}

/// Whether the sender has to end the owner's sleep.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    Awake,
    Sleeping,
}

impl<T> Mailbox<T> {
    pub fn new() -> Self {
        Self { state: AtomicU8::new(AWAKE), queue: Mutex::new(Some(Vec::new())) }
    }

    /// Adds an item, or gives it back when the mailbox is closed. From any thread.
    pub fn push(&self, item: T) -> Result<Ring, T> {
        match self.lock().as_mut() {
            Some(queue) => queue.push(item),
            None => return Err(item),
        }
        Ok(self.ring())
    }

    /// Rings without an item. From any thread.
    pub fn ring(&self) -> Ring {
        match self.state.swap(RUNG, Ordering::SeqCst) {
            SLEEPING => Ring::Sleeping,
            _ => Ring::Awake,
        }
    }

    /// Whether there may be items. By the owner, cheap.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RUNG
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
    pub fn woke(&self) {
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
        assert_eq!(mailbox.push(1), Ok(Ring::Awake));
        assert!(!mailbox.prepare_to_sleep(), "there is mail");
        assert_eq!(mailbox.take(), [1]);
        assert!(mailbox.prepare_to_sleep());
        assert_eq!(mailbox.push(2), Ok(Ring::Sleeping));
        assert_eq!(mailbox.push(3), Ok(Ring::Awake));
        mailbox.woke();
        assert!(mailbox.is_rung());
        assert_eq!(mailbox.take(), [2, 3]);
        assert_eq!(mailbox.close(), []);
        assert_eq!(mailbox.push(4), Err(4));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
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
                        if mailbox.push(item) == Ok(Ring::Sleeping) {
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
                    mailbox.woke();
                }
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
            received.sort_unstable();
            assert_eq!(received, [0, 1]);
        });
    }
}
