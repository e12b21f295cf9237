//! The waker that `h2` receives.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use anello::wake_all;

/// Wakes the task of a connection, unless that task is polling `h2` anyway.
///
/// A response wakes the task, so that it polls `h2`, which then sends the response. Most responses are created in the
/// poll of that task itself, which continues with `h2` afterwards. Without this waker, the task would be polled twice
/// per request.
pub(super) struct PollWaker {
    state: AtomicU8,
    task: Mutex<Waker>,
}

const IDLE: u8 = 0;
const POLLING: u8 = 1;
/// Woken since the last call of [`PollWaker::start`].
const WOKEN: u8 = 2;

impl PollWaker {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(IDLE), task: Mutex::new(Waker::noop().clone()) })
    }

    /// Sets the waker of the task that is polling.
    pub fn set_task(&self, waker: &Waker) {
        if self.task().will_wake(waker) {
            return;
        }
        // Cloning and dropping a waker can run arbitrary code, so neither happens while the lock is held.
        let clone = waker.clone();
        let replaced = std::mem::replace(&mut *self.task(), clone);
        drop(replaced);
    }

    fn task(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called before each poll of `h2`: wake-ups so far have been caused by what this poll will process.
    pub fn start(&self) {
        self.state.store(POLLING, Ordering::Relaxed);
    }

    /// Called when the task has finished polling. Returns whether it was woken since the last poll of `h2`.
    pub fn finish(&self) -> bool {
        self.state.swap(IDLE, Ordering::Acquire) == WOKEN
    }
}

impl Wake for PollWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let woken = self.state.compare_exchange(POLLING, WOKEN, Ordering::Release, Ordering::Relaxed);
        if woken == Err(IDLE) {
            // The waker is called without the lock. Only the task replaces it, and it is not polling.
            let task = self.task().clone();
            wake_all([task]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CountWakes(AtomicU8);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn task_is_woken_only_if_it_does_not_poll_again_anyway() {
        let task = Arc::new(CountWakes(AtomicU8::new(0)));
        let wakes = || task.0.load(Ordering::Relaxed);
        let poll_waker = PollWaker::new();
        let waker = Waker::from(Arc::clone(&poll_waker));
        poll_waker.set_task(&Waker::from(Arc::clone(&task)));

        waker.wake_by_ref();
        assert_eq!(wakes(), 1, "the task is not polling");
        poll_waker.start();
        waker.wake_by_ref();
        poll_waker.start();
        assert!(!poll_waker.finish(), "the second poll has followed the wake-up");
        poll_waker.start();
        waker.wake_by_ref();
        assert!(poll_waker.finish());
        assert!(!poll_waker.finish());
        assert_eq!(wakes(), 1);
        waker.wake();
        assert_eq!(wakes(), 2);
    }
}
