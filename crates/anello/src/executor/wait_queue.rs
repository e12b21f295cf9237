//! Futures that wait for the same socket.
//!
//! The driver stores the waker of one future per socket and direction. If several futures wait, it stores a waker that
//! wakes all of them: any of them may have been forgotten, or may not be polled any longer, and would not use the
//! wake-up.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::driver::{Place, WakerSet};

/// The waiting futures. Either the driver stores the waker of the only one, or one that wakes all of them, or they have
/// been woken and will poll again.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue(Arc<WakerSet>);

/// One future that may wait. It enters the queue at its first pending poll.
pub(crate) struct WaitTicket<'a> {
    all: &'a Arc<WakerSet>,
    place: Place<'a>,
}

impl WaitQueue {
    pub fn ticket(&self) -> WaitTicket<'_> {
        WaitTicket { all: &self.0, place: self.0.place() }
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
        let polled = if self.place.is_alone() {
            let polled = poll(context);
            if polled.is_pending() {
                self.place.enter(context.waker());
            }
            polled
        } else {
            // Before the poll, which may already call the waker.
            self.place.enter(context.waker());
            let waker = Waker::from(Arc::clone(self.all));
            poll(&mut Context::from_waker(&waker))
        };
        if polled.is_ready() {
            self.place.leave();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
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
        // While it is alone, its own waker is stored, which costs nothing.
        let own = Waker::from(Arc::clone(&driver.calls[0]));
        assert!(driver.stored.as_ref().is_some_and(|stored| stored.will_wake(&own)));
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
