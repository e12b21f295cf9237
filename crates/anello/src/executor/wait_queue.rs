//! Futures that wait for the same socket.
//!
//! The driver stores the waker of one future per socket and direction. If several futures wait, it stores a waker that
//! wakes all of them: any of them may have been forgotten, or may not be polled any longer, and would not use the
//! wake-up.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::driver::wake_all;

/// The waiting futures. Either the driver stores the waker of the only one, or one that wakes all of them, or they have
/// been woken and will poll again.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    waiting: Arc<Waiting>,
    next_number: Cell<u64>,
}

/// Wakers of the waiting futures, numbered in order of arrival. As a waker, wakes all of them.
#[derive(Debug, Default)]
struct Waiting(Mutex<BTreeMap<u64, Waker>>);

/// One future that may wait. It enters the queue at its first pending poll.
pub(crate) struct WaitTicket<'a> {
    wait_queue: &'a WaitQueue,
    number: Option<u64>,
}

impl WaitQueue {
    pub fn ticket(&self) -> WaitTicket<'_> {
        WaitTicket { wait_queue: self, number: None }
    }
}

impl Waiting {
    /// Nothing panics while the lock is held, and wakers are called and dropped after it has been released, because both
    /// can run arbitrary code.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Those that still wait when they poll again enter again.
        let woken = take(&mut *self.lock());
        wake_all(woken.into_values());
    }
}

impl WaitTicket<'_> {
    /// Calls `poll` with a context whose waker wakes all waiting futures, and enters or leaves the queue depending on the
    /// result.
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let polled = if self.is_alone() {
            let polled = poll(context);
            if polled.is_pending() {
                self.enter(context.waker());
            }
            polled
        } else {
            // Before the poll, which may already call the waker.
            self.enter(context.waker());
            let waker = Waker::from(Arc::clone(&self.wait_queue.waiting));
            poll(&mut Context::from_waker(&waker))
        };
        if polled.is_ready() {
            self.leave();
        }
        polled
    }

    fn is_alone(&self) -> bool {
        let waiting = self.wait_queue.waiting.lock();
        waiting.keys().all(|number| Some(*number) == self.number)
    }

    fn enter(&mut self, waker: &Waker) {
        let WaitQueue { waiting, next_number } = self.wait_queue;
        let number = *self.number.get_or_insert_with(|| next_number.replace(next_number.get() + 1));
        let replaced = waiting.lock().insert(number, waker.clone());
        drop(replaced);
    }

    fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        let own = self.wait_queue.waiting.lock().remove(&number);
        drop(own);
    }
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Three futures, and the waker that the driver stores.
    #[derive(Default)]
    struct Driver {
        calls: [Arc<Calls>; 3],
        stored: Option<Waker>,
    }

    impl Driver {
        fn poll(&mut self, ticket: &mut WaitTicket<'_>, future: usize, result: Poll<()>) {
            let waker = Waker::from(Arc::clone(&self.calls[future]));
            let polled = ticket.poll(&mut Context::from_waker(&waker), |context| {
                self.stored = Some(context.waker().clone());
                result
            });
            assert_eq!(polled, result);
        }

        /// Calls the stored waker, and returns how often each future has been woken so far.
        fn wake(&mut self) -> [usize; 3] {
            self.stored.take().expect("a waker").wake();
            self.calls.each_ref().map(|calls| calls.0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn every_waiting_future_is_woken_once() {
        let (mut driver, queue) = (Driver::default(), WaitQueue::default());
        let (mut first, mut second, mut third) = (queue.ticket(), queue.ticket(), queue.ticket());
        driver.poll(&mut first, 0, Poll::Pending);
        assert_eq!(driver.wake(), [1, 0, 0]);
        driver.poll(&mut first, 0, Poll::Pending);
        driver.poll(&mut second, 1, Poll::Pending);
        driver.poll(&mut third, 2, Poll::Pending);
        assert_eq!(driver.wake(), [2, 1, 1]);
        // The other two do not poll again.
        driver.poll(&mut third, 2, Poll::Pending);
        assert_eq!(driver.wake(), [2, 1, 2]);
    }

    #[test]
    fn forgotten_future_does_not_take_the_wake_up_of_others() {
        let (mut driver, queue) = (Driver::default(), WaitQueue::default());
        let (mut first, mut second) = (queue.ticket(), queue.ticket());
        driver.poll(&mut first, 0, Poll::Pending);
        std::mem::forget(first);
        driver.poll(&mut second, 1, Poll::Pending);
        assert_eq!(driver.wake(), [1, 1, 0]);
    }

    #[test]
    fn future_that_leaves_wakes_nobody_and_is_not_woken() {
        let (mut driver, queue) = (Driver::default(), WaitQueue::default());
        let (mut first, mut second, mut third) = (queue.ticket(), queue.ticket(), queue.ticket());
        driver.poll(&mut first, 0, Poll::Pending);
        driver.poll(&mut second, 1, Poll::Pending);
        drop(second);
        // It stores a waker for the first one, which waits.
        driver.poll(&mut third, 2, Poll::Ready(()));
        assert_eq!(driver.wake(), [1, 0, 0]);
    }

    #[test]
    fn waker_called_during_the_first_poll_wakes_the_polled_future() {
        let (mut driver, queue) = (Driver::default(), WaitQueue::default());
        let (mut first, mut second) = (queue.ticket(), queue.ticket());
        driver.poll(&mut first, 0, Poll::Pending);
        let waker = Waker::from(Arc::clone(&driver.calls[1]));
        let polled = second.poll(&mut Context::from_waker(&waker), |context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!(driver.calls[1].0.load(Ordering::Relaxed), 1);
    }
}
