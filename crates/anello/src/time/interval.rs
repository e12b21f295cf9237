//! Timers with a fixed period.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::instant::Instant;
use super::sleep::{Sleep, nanoseconds, sleep, sleep_until};

/// A tick counts as missed if it completes more than this time after its deadline. A smaller delay does not change the
/// schedule.
const MISSED_TICK_TOLERANCE_NS: u64 = 5_000_000;

/// Returns an interval that ticks every `period`. The first tick completes immediately.
///
/// # Panics
/// Panics if no runtime is running on this thread, or if `period` is zero.
///
/// ```
/// # anello::example! {
/// use anello::time::{Instant, interval};
/// use std::time::Duration;
///
/// let start = Instant::now();
/// let mut interval = interval(Duration::from_millis(1));
/// for _ in 0..3 {
///     interval.tick().await;
/// }
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// # }
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    new(sleep(Duration::ZERO), period)
}

/// Returns an interval whose first tick is at `start`, and which then ticks every `period`.
///
/// # Panics
/// Panics if no runtime is running on this thread, or if `period` is zero.
///
/// ```
/// # anello::example! {
/// use anello::time::{Instant, interval_at};
/// use std::time::Duration;
///
/// let first = Instant::now() + Duration::from_millis(2);
/// let mut interval = interval_at(first, Duration::from_secs(60));
/// assert_eq!(interval.tick().await, first);
/// # }
/// ```
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    new(sleep_until(start), period)
}

#[track_caller]
fn new(sleep: Sleep, period: Duration) -> Interval {
    assert!(!period.is_zero(), "interval period must not be zero");
    Interval { sleep, period, missed_tick_behavior: MissedTickBehavior::default() }
}

/// The schedule of an [`Interval`] after a missed tick.
///
/// A tick is missed if [`tick`](Interval::tick) completes more than 5 ms after the tick's deadline, for example because
/// the task was busy. With a period of 10 ms, if the tick that is due after 10 ms completes after 35 ms, the next ticks
/// are due after:
///
/// | behaviour | next ticks, in ms |
/// |---|---|
/// | `Burst` | 20, 30, 40, 50 (the first two complete immediately) |
/// | `Delay` | 45, 55, 65, 75 |
/// | `Skip` | 40, 50, 60, 70 |
///
/// ```
/// # anello::example! {
/// use std::time::Duration;
///
/// use anello::time::{MissedTickBehavior, interval};
///
/// let mut interval = interval(Duration::from_millis(10));
/// interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
/// let first = interval.tick().await;
/// // Blocks the worker, so that ticks are missed.
/// std::thread::sleep(Duration::from_millis(25));
/// assert_eq!(interval.tick().await, first + Duration::from_millis(10));
/// assert!(interval.tick().await >= first + Duration::from_millis(30));
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// Ticks without waiting until all missed ticks have been delivered. This is the default, as in tokio.
    #[default]
    Burst,
    /// The next tick is one period after the late one.
    Delay,
    /// The missed ticks are skipped: the next tick is at the next multiple of the period after the start.
    Skip,
}

impl MissedTickBehavior {
    /// Returns the deadline of the tick after the one that was due at `due_ns` and completed at `now_ns`.
    fn next_deadline_ns(self, due_ns: u64, now_ns: u64, period_ns: u64) -> u64 {
        let late_ns = now_ns.saturating_sub(due_ns);
        if late_ns <= MISSED_TICK_TOLERANCE_NS {
            return due_ns.saturating_add(period_ns);
        }
        match self {
            Self::Burst => due_ns.saturating_add(period_ns),
            Self::Delay => now_ns.saturating_add(period_ns),
            Self::Skip => now_ns.saturating_add(period_ns - late_ns % period_ns),
        }
    }
}

/// A timer with a fixed period; see [`interval`].
///
/// ```
/// # anello::example! {
/// use std::time::Duration;
///
/// let mut interval = anello::time::interval(Duration::from_millis(2));
/// let first = interval.tick().await;
/// assert_eq!(interval.tick().await - first, Duration::from_millis(2));
/// # }
/// ```
#[derive(Debug)]
pub struct Interval {
    /// The next tick.
    sleep: Sleep,
    period: Duration,
    missed_tick_behavior: MissedTickBehavior,
}

impl Interval {
    /// Waits for the next tick and returns its deadline.
    ///
    /// [`MissedTickBehavior`] describes what happens if ticks are missed. Cancel-safe: no tick is lost if the future is
    /// dropped.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// use anello::time::{Instant, interval};
    ///
    /// let mut interval = interval(Duration::from_millis(2));
    /// // The first tick completes immediately, the second after one period.
    /// let first = interval.tick().await;
    /// interval.tick().await;
    /// assert!(Instant::now() >= first + Duration::from_millis(2));
    /// # }
    /// ```
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick. Returns its deadline, or stores the waker of `context`.
    ///
    /// ```
    /// # anello::example! {
    /// let mut interval = anello::time::interval(std::time::Duration::from_millis(1));
    /// std::future::poll_fn(|context| interval.poll_tick(context)).await;
    /// # }
    /// ```
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(context));
        let (due_ns, now_ns) = (self.sleep.deadline_ns(), self.sleep.now_ns());
        let period_ns = nanoseconds(self.period);
        let due = self.sleep.deadline();
        self.sleep.reset_to(self.missed_tick_behavior.next_deadline_ns(due_ns, now_ns, period_ns));
        Poll::Ready(due)
    }

    /// Restarts the interval: the next tick is one period from now.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::time::{Instant, interval};
    /// use std::time::Duration;
    ///
    /// let mut interval = interval(Duration::from_millis(2));
    /// let start = Instant::now();
    /// interval.reset();
    /// assert!(interval.tick().await >= start + Duration::from_millis(2));
    /// # }
    /// ```
    pub fn reset(&mut self) {
        self.sleep.reset_after(self.period);
    }

    /// Restarts the interval: the next tick completes immediately.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// let mut interval = anello::time::interval(Duration::from_secs(3600));
    /// interval.tick().await;
    /// interval.reset_immediately();
    /// // Does not wait for an hour.
    /// let second = interval.tick().await;
    /// assert!(second <= anello::time::Instant::now());
    /// # }
    /// ```
    pub fn reset_immediately(&mut self) {
        self.sleep.reset_after(Duration::ZERO);
    }

    /// Restarts the interval: the next tick is `after` from now, and later ticks follow with the interval's period.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// use anello::time::{Instant, interval};
    ///
    /// let mut interval = interval(Duration::from_secs(3600));
    /// let start = Instant::now();
    /// interval.reset_after(Duration::from_millis(2));
    /// let next = interval.tick().await;
    /// assert!(next >= start + Duration::from_millis(2));
    /// assert!(next < start + Duration::from_secs(3600));
    /// # }
    /// ```
    pub fn reset_after(&mut self, after: Duration) {
        self.sleep.reset_after(after);
    }

    /// Restarts the interval: the next tick is at `deadline`, and later ticks follow with the interval's period. A
    /// deadline in the past completes immediately.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// use anello::time::{Instant, interval};
    ///
    /// let mut interval = interval(Duration::from_secs(3600));
    /// let deadline = Instant::now() + Duration::from_millis(2);
    /// interval.reset_at(deadline);
    /// assert_eq!(interval.tick().await, deadline);
    /// # }
    /// ```
    pub fn reset_at(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
    }

    /// Returns the period.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::Duration;
    ///
    /// let interval = anello::time::interval(Duration::from_secs(5));
    /// assert_eq!(interval.period(), Duration::from_secs(5));
    /// # async {}.await;
    /// # }
    /// ```
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Returns the schedule after a missed tick.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::time::{MissedTickBehavior, interval};
    ///
    /// let mut interval = interval(std::time::Duration::from_secs(5));
    /// assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Burst);
    /// interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    /// assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Delay);
    /// # async {}.await;
    /// # }
    /// ```
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed_tick_behavior
    }

    /// Sets the schedule after a missed tick. The default is [`MissedTickBehavior::Burst`].
    ///
    /// ```
    /// # anello::example! {
    /// use anello::time::{MissedTickBehavior, interval};
    ///
    /// let mut interval = interval(std::time::Duration::from_secs(1));
    /// interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    /// assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Skip);
    /// # }
    /// ```
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed_tick_behavior = behavior;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn late_tick_is_followed_by_scheduled_tick() {
        use MissedTickBehavior::{Burst, Delay, Skip};
        let next = |behavior: MissedTickBehavior, now_ms| {
            behavior.next_deadline_ns(10 * MS, now_ms * MS, 10 * MS) as f64 / MS as f64
        };
        assert_eq!([Burst, Delay, Skip].map(|behavior| next(behavior, 35)), [20.0, 45.0, 40.0]);
        assert_eq!([Burst, Delay, Skip].map(|behavior| next(behavior, 40)), [20.0, 50.0, 50.0]);
        assert_eq!([Burst, Delay, Skip].map(|behavior| next(behavior, 15)), [20.0; 3], "tolerated");
        assert_eq!([Burst, Delay, Skip].map(|behavior| next(behavior, 16)), [20.0, 26.0, 20.0]);
    }

    #[test]
    fn schedule_at_end_of_clock_saturates() {
        for behavior in [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
            assert_eq!(behavior.next_deadline_ns(u64::MAX, u64::MAX, 1), u64::MAX);
            assert_eq!(behavior.next_deadline_ns(0, u64::MAX, u64::MAX), u64::MAX);
            assert_eq!(behavior.next_deadline_ns(0, 1, u64::MAX), u64::MAX);
        }
    }
}
