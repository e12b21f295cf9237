//! Queue of futures waiting for the same socket.
//!
//! The driver stores only the waker of the future that polled it last. A future that completes or is dropped wakes the
//! next one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use crate::driver::wake_all;

/// Wakers of the waiting futures, numbered in order of arrival. Either the driver stores the waker of one of these
/// futures, or one of them has been woken and will poll again.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    waiting: RefCell<BTreeMap<u64, Waker>>,
    next_number: Cell<u64>,
}

/// Position of one future in the queue. The future enters the queue at its first pending poll.
pub(crate) struct WaitTicket<'a> {
    wait_queue: &'a WaitQueue,
    number: Option<u64>,
}

impl WaitQueue {
    pub fn ticket(&self) -> WaitTicket<'_> {
        WaitTicket { wait_queue: self, number: None }
    }
}

impl WaitTicket<'_> {
    /// Calls `poll`, and enters or leaves the queue depending on the result.
    pub fn poll<T>(&mut self, context: &Context<'_>, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        let polled = poll();
        match polled.is_pending() {
            true => self.wait(context.waker()),
            false => self.leave(),
        }
        polled
    }

    fn wait(&mut self, waker: &Waker) {
        let WaitQueue { waiting, next_number } = self.wait_queue;
        let number = *self.number.get_or_insert_with(|| next_number.replace(next_number.get() + 1));
        // Dropping a waker can run arbitrary code, so the queue must not be borrowed.
        let replaced = waiting.borrow_mut().insert(number, waker.clone());
        drop(replaced);
    }

    fn leave(&mut self) {
        let mut waiting = self.wait_queue.waiting.borrow_mut();
        let number = self.number.take();
        let own = number.and_then(|number| waiting.remove(&number));
        debug_assert_eq!(
            own.is_some(),
            number.is_some(),
            "a future that waits for a socket is not in the queue"
        );
        // Futures that complete without having waited also wake the next one, because their poll replaced the waker
        // stored by the driver.
        let next = waiting.first_key_value().map(|(_, waker)| waker.clone());
        drop(waiting);
        drop(own);
        wake_all(next);
    }
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        if self.number.is_some() {
            self.leave();
        }
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

    #[test]
    fn future_that_leaves_wakes_the_one_that_waits_longest() {
        let calls: [Arc<Calls>; 3] = Default::default();
        let counts = || calls.each_ref().map(|calls| calls.0.load(Ordering::Relaxed));
        let wakers = calls.each_ref().map(|calls| Waker::from(Arc::clone(calls)));
        let poll = |ticket: &mut WaitTicket<'_>, waker: usize, result: Poll<()>| {
            assert_eq!(ticket.poll(&Context::from_waker(&wakers[waker]), || result), result);
        };
        let queue = WaitQueue::default();
        let (mut first, mut second, mut third) = (queue.ticket(), queue.ticket(), queue.ticket());
        poll(&mut first, 0, Poll::Pending);
        poll(&mut second, 1, Poll::Pending);
        poll(&mut third, 2, Poll::Pending);
        poll(&mut first, 0, Poll::Pending);
        assert_eq!(counts(), [0, 0, 0]);
        poll(&mut second, 1, Poll::Ready(()));
        assert_eq!(counts(), [1, 0, 0]);
        // It has left the queue, so that dropping its ticket changes nothing.
        drop(second);
        assert_eq!(counts(), [1, 0, 0]);
        drop(first);
        assert_eq!(counts(), [1, 0, 1]);
        drop(queue.ticket());
        assert_eq!(counts(), [1, 0, 1]);
        poll(&mut third, 2, Poll::Ready(()));
        assert_eq!(counts(), [1, 0, 1]);
    }
}
