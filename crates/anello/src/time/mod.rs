//! Sleeps, timeouts and intervals, on the runtime's timer wheel.
//!
//! Timers need no additional system call: the next deadline becomes the timeout of the driver's wait. They never fire
//! early. They can fire late: by up to one tick of the wheel (about 0.13 ms), by up to 1 ms more on epoll (whose
//! timeout is in milliseconds), and by as long as the worker is busy. On the simulated driver, timers use the virtual
//! clock.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::executor::{Shared, TimerKey, current};

/// Returns the current time on the runtime's clock, which all timers use.
///
/// The clock is monotonic (`clock_gettime(2)`). On the simulated driver, it is virtual and differs from every other
/// clock. Its starting point differs between runtimes.
///
/// # Panics
/// Panics if no runtime is running on this thread.
#[must_use]
pub fn monotonic_now() -> Duration {
    Duration::from_nanos(current().now_ns())
}

/// Waits until `duration` has elapsed. Cancel-safe.
///
/// # Panics
/// Panics if no runtime is running on this thread.
pub fn sleep(duration: Duration) -> Sleep {
    let shared = current();
    let deadline_ns = shared.now_ns().saturating_add(nanoseconds(duration));
    Sleep { shared, deadline_ns, timer: None, has_yielded: false }
}

/// Runs a future with a time limit. If `duration` elapses first, the future is dropped.
///
/// # Errors
/// Returns [`Elapsed`] if the future has not completed within `duration`.
///
/// # Panics
/// Panics if no runtime is running on this thread.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut sleep = sleep(duration);
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep).poll(context).map(|()| Err(Elapsed(())))
    })
    .await
}

/// Returns an interval that ticks every `period`. The first tick completes immediately.
///
/// # Panics
/// Panics if no runtime is running on this thread, or if `period` is zero.
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "interval period must not be zero");
    Interval { sleep: sleep(Duration::ZERO), period_ns: nanoseconds(period) }
}

/// Future returned by [`sleep`]. Dropping it removes the timer from the wheel.
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    shared: Rc<Shared>,
    deadline_ns: u64,
    /// Key of the timer in the wheel, once the future has been polled.
    timer: Option<TimerKey>,
    /// True if the sleep has yielded after its deadline because the task's budget was exhausted.
    has_yielded: bool,
}

impl Sleep {
    /// Restarts the sleep, so that it completes `duration` from now.
    pub fn reset(&mut self, duration: Duration) {
        self.reset_to(self.shared.now_ns().saturating_add(nanoseconds(duration)));
    }

    fn reset_to(&mut self, deadline_ns: u64) {
        self.cancel();
        self.deadline_ns = deadline_ns;
        self.has_yielded = false;
    }

    fn cancel(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.shared.cancel_timer(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = self.timer {
            // Timers never fire early, so the clock need not be read.
            if self.shared.wait_on(timer, context.waker()) {
                return Poll::Pending;
            }
            self.timer = None;
            return Poll::Ready(());
        }
        if self.shared.now_ns() >= self.deadline_ns {
            // Consumes budget like a socket operation: a task that is late for every tick of an interval must not starve
            // the others. Yields at most once, because other futures of the task can exhaust the budget in every poll.
            if !self.has_yielded && !self.shared.has_budget_or_yield(context) {
                self.has_yielded = true;
                return Poll::Pending;
            }
            self.shared.spend_budget(0);
            return Poll::Ready(());
        }
        let timer = self.shared.timers.borrow_mut().insert(self.deadline_ns, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
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

/// A timer with a fixed period; see [`interval`].
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period_ns: u64,
}

impl Interval {
    /// Waits for the next tick. Missed ticks are skipped: the next tick is at the next multiple of the period.
    /// Cancel-safe: no tick is lost if the future is dropped.
    pub async fn tick(&mut self) {
        Pin::new(&mut self.sleep).await;
        let now_ns = self.sleep.shared.now_ns();
        let missed = now_ns.saturating_sub(self.sleep.deadline_ns) / self.period_ns;
        let step_ns = self.period_ns.saturating_mul(missed.saturating_add(1));
        let deadline_ns = self.sleep.deadline_ns.saturating_add(step_ns);
        self.sleep.reset_to(deadline_ns);
    }
}

/// Error returned by [`timeout`] when the duration has elapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
