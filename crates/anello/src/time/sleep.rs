//! Timers that complete once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::instant::Instant;
use crate::executor::{Shared, TimerKey, Wheel, current};

/// Waits until `duration` has elapsed. Cancel-safe.
///
/// Durations beyond the range of the clock (584 years) never elapse.
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// # anello::example! {
/// anello::time::sleep(std::time::Duration::from_millis(1)).await;
/// # }
/// ```
#[track_caller]
pub fn sleep(duration: Duration) -> Sleep {
    let shared = current();
    let deadline_ns = shared.now_ns().saturating_add(nanoseconds(duration));
    Sleep { shared, deadline_ns, timer: NO_TIMER }
}

/// Waits until `deadline`. Completes immediately if the deadline is in the past. Cancel-safe.
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// # anello::example! {
/// use anello::time::{Instant, sleep_until};
///
/// let deadline = Instant::now() + std::time::Duration::from_millis(1);
/// sleep_until(deadline).await;
/// assert!(Instant::now() >= deadline);
/// # }
/// ```
#[track_caller]
pub fn sleep_until(deadline: Instant) -> Sleep {
    let shared = current();
    let deadline_ns = deadline.on_clock_of(&shared);
    Sleep { shared, deadline_ns, timer: NO_TIMER }
}

/// Future returned by [`sleep`] and [`sleep_until`]. Dropping it removes the timer from the wheel.
///
/// Unlike tokio's type, it is `Unpin`: a loop with a `select!` can poll `&mut sleep` without pinning it. It belongs to
/// the runtime on which it was created.
///
/// # Panics
/// Polling a sleep panics if its runtime has been dropped before the deadline. A task of another runtime that is waiting
/// for it then is woken.
///
/// ```
/// # anello::example! {
/// use anello::time::{Instant, sleep};
/// use std::time::Duration;
///
/// let mut sleep = sleep(Duration::MAX);
/// sleep.reset(Instant::now() + Duration::from_millis(1));
/// (&mut sleep).await;
/// assert!(sleep.is_elapsed());
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    shared: Rc<Shared>,
    deadline_ns: u64,
    /// Key of the timer in the wheel, `NO_TIMER` or `YIELDED`. Not an `Option`, which would be larger.
    timer: TimerKey,
}

/// The sleep has not been polled, or has completed.
const NO_TIMER: TimerKey = TimerKey { index: u32::MAX, generation: 0 };
/// The sleep has yielded after its deadline because the task's budget was exhausted. Like a fired timer, this key is in
/// no wheel.
const YIELDED: TimerKey = TimerKey { index: u32::MAX, generation: 1 };

const _: () = assert!(size_of::<Sleep>() + Wheel::<Waker>::TIMER_BYTES <= 64);

impl Sleep {
    /// Returns the time at which the sleep completes, limited to the range of the clock.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::time::{Instant, sleep_until};
    ///
    /// let deadline = Instant::now() + std::time::Duration::from_millis(2);
    /// let sleep = sleep_until(deadline);
    /// assert_eq!(sleep.deadline(), deadline);
    /// sleep.await;
    /// # }
    /// ```
    pub fn deadline(&self) -> Instant {
        Instant::at(&self.shared, self.deadline_ns)
    }

    /// Returns whether the deadline has passed. Reads the clock; the sleep need not have been polled.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// let mut sleep = anello::time::sleep(Duration::from_millis(2));
    /// assert!(!anello::time::sleep(Duration::from_secs(3600)).is_elapsed());
    /// (&mut sleep).await;
    /// assert!(sleep.is_elapsed());
    /// # }
    /// ```
    pub fn is_elapsed(&self) -> bool {
        self.now_ns() >= self.deadline_ns
    }

    /// Changes the deadline, whether or not the sleep has completed. The task that polled the sleep last is not woken: it
    /// must poll the sleep again.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// use anello::time::{Instant, sleep};
    ///
    /// // The client gets more time whenever it sends something.
    /// let mut timeout = sleep(Duration::from_secs(30));
    /// let later = Instant::now() + Duration::from_secs(60);
    /// timeout.reset(later);
    /// assert_eq!(timeout.deadline(), later);
    /// # async {}.await;
    /// # }
    /// ```
    pub fn reset(&mut self, deadline: Instant) {
        self.reset_to(deadline.on_clock_of(&self.shared));
    }

    /// Changes the deadline to `duration` from now. Equivalent to `reset(Instant::now() + duration)`.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// use anello::time::sleep;
    ///
    /// let mut timeout = sleep(Duration::from_secs(30));
    /// let first = timeout.deadline();
    /// timeout.reset_after(Duration::from_secs(60));
    /// assert!(timeout.deadline() > first);
    /// # async {}.await;
    /// # }
    /// ```
    pub fn reset_after(&mut self, duration: Duration) {
        self.reset_to(self.shared.now_ns().saturating_add(nanoseconds(duration)));
    }

    pub(super) fn reset_to(&mut self, deadline_ns: u64) {
        self.cancel();
        self.deadline_ns = deadline_ns;
    }

    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Completes at the deadline, or early if the runtime has been dropped.
    fn poll_until_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.timer != NO_TIMER {
            // Timers never fire early, so the clock need not be read.
            if self.shared.wait_on(self.timer, context.waker()) {
                return Poll::Pending;
            }
            self.timer = NO_TIMER;
            return Poll::Ready(());
        }
        if self.shared.now_ns() >= self.deadline_ns || self.shared.is_closed() {
            // Consumes budget like a socket operation: a task that is late for every tick of an interval must not starve
            // the others. Yields at most once, because other futures of the task can exhaust the budget in every poll.
            if !self.shared.has_budget_or_yield(context) {
                self.timer = YIELDED;
                return Poll::Pending;
            }
            self.shared.spend_budget(0);
            return Poll::Ready(());
        }
        let timer = self.shared.time.wheel.borrow_mut().insert(self.deadline_ns, context.waker().clone());
        self.timer = timer;
        Poll::Pending
    }

    fn cancel(&mut self) {
        let timer = std::mem::replace(&mut self.timer, NO_TIMER);
        if timer != NO_TIMER {
            self.shared.cancel_timer(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_until_closed(context));
        assert!(
            !self.shared.is_closed() || self.is_elapsed(),
            "the runtime of a timer was dropped before its deadline (create timers on the runtime that awaits them)"
        );
        Poll::Ready(())
    }
}

/// A wait of an operation that fails if the runtime is dropped. It then completes early.
#[derive(Debug)]
pub(crate) struct Pause(Sleep);

pub(crate) fn pause(duration: Duration) -> Pause {
    Pause(sleep(duration))
}

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_until_closed(context)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sleep").field("deadline_ns", &self.deadline_ns).finish_non_exhaustive()
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
