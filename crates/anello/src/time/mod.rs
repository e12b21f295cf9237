//! Time: sleeping, deadlines and ticks, on the timer wheel of the runtime's thread.
//!
//! Timers cost no system call: the next deadline is the timeout of the driver's wait. They never fire early; they
//! fire late by up to the wheel's tick (about 0.13 ms; on epoll, whose wait counts milliseconds, up to 1 ms more) and by
//! what the worker is busy with. On the simulated driver they run on the virtual clock.

pub(crate) mod wheel;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::executor::{Shared, current};
use wheel::TimerKey;

/// The time by the clock that sleeps go by, since a moment that is another for each runtime: monotonic
/// (`clock_gettime(2)`), and virtual on the simulated driver.
///
/// For what measures time beside sleeps: by another clock, both would not agree on a simulated driver.
///
/// # Panics
/// When no runtime runs on this thread.
#[must_use]
pub fn monotonic_now() -> Duration {
    Duration::from_nanos(current().now_ns())
}

/// Waits until `duration` has passed.
///
/// # Panics
/// When no runtime runs on this thread.
pub fn sleep(duration: Duration) -> Sleep {
    let shared = current();
    let deadline_ns = shared.now_ns().saturating_add(nanoseconds(duration));
    Sleep { shared, deadline_ns, timer: None, put_off: false }
}

/// Waits for a future, at most for `duration`; the future is dropped then.
///
/// # Errors
/// [`Elapsed`] when the time was over first.
///
/// # Panics
/// When no runtime runs on this thread.
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

/// Ticks every `period`, the first time at once.
///
/// # Panics
/// When no runtime runs on this thread, or when `period` is zero.
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period above zero");
    Interval { sleep: sleep(Duration::ZERO), period_ns: nanoseconds(period) }
}

/// The future of [`sleep`]. Dropping it takes the timer out of the wheel.
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    shared: Rc<Shared>,
    deadline_ns: u64,
    /// In the wheel once polled.
    timer: Option<TimerKey>,
    /// It was over at once, for a task that had to let others run first.
    put_off: bool,
}

impl Sleep {
    /// Starts anew: ends `duration` from now.
    pub fn reset(&mut self, duration: Duration) {
        self.reset_to(self.shared.now_ns().saturating_add(nanoseconds(duration)));
    }

    fn reset_to(&mut self, deadline_ns: u64) {
        self.cancel();
        self.deadline_ns = deadline_ns;
        self.put_off = false;
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
            // Still in the wheel, which never fires early: no need to look at the clock.
            if self.shared.wait_on(timer, context.waker()) {
                return Poll::Pending;
            }
            self.timer = None;
            return Poll::Ready(());
        }
        if self.shared.now_ns() >= self.deadline_ns {
            // Counts as bytes do that are there: who is late for every tick must not keep the others waiting. Once only,
            // because what runs beside it may have spent the budget, and may do so each time.
            if !self.put_off && !self.shared.has_budget_or_yield(context) {
                self.put_off = true;
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

/// Ticks at a fixed period; see [`interval`].
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period_ns: u64,
}

impl Interval {
    /// Waits for the next tick. Ticks that were missed are not made up for: the next one comes at the next multiple
    /// of the period. Cancel-safe.
    pub async fn tick(&mut self) {
        Pin::new(&mut self.sleep).await;
        let now_ns = self.sleep.shared.now_ns();
        let missed = now_ns.saturating_sub(self.sleep.deadline_ns) / self.period_ns;
        let step_ns = self.period_ns.saturating_mul(missed.saturating_add(1));
        let deadline_ns = self.sleep.deadline_ns.saturating_add(step_ns);
        self.sleep.reset_to(deadline_ns);
    }
}

/// The time given to [`timeout`] was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the time allowed for this was over")
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
