//! Points in time on the clock of the runtime.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::sync::OnceLock;
use std::time::Duration;

use crate::driver::Clock;
use crate::executor::{Shared, with_current};

/// A point in time on the clock of the current runtime.
///
/// The clock is monotonic. On io_uring and epoll it is the clock of [`std::time::Instant`] (`clock_gettime(2)`), so that
/// instants of different workers and threads can be compared. On the simulated driver it is virtual: instants of
/// different simulated runtimes must not be compared. Outside a runtime, [`now`](Self::now) reads the clock of
/// [`std::time::Instant`].
///
/// # Differences from std and tokio
///
/// Arithmetic never panics and does not lose precision: `Instant::now() + Duration::MAX` is a deadline that is never
/// reached, and an instant before the start of the clock is valid. [`checked_add`](Self::checked_add) and
/// [`checked_sub`](Self::checked_sub) return `None` only after about 10^10 additions of `Duration::MAX`.
///
/// ```
/// # anello::example! {
/// use anello::time::{Instant, sleep_until};
/// use std::time::Duration;
///
/// let start = Instant::now();
/// sleep_until(start + Duration::from_millis(2)).await;
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// assert!(start + Duration::MAX > Instant::now());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    /// Nanoseconds since the process's reference instant, or on the virtual clock.
    ns: i128,
}

/// Limit for conversions to std's type, which has a smaller range: about 100 years.
const FAR_FUTURE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the instant to which the real-time clocks of all runtimes relate, so that their instants are comparable.
fn reference() -> std::time::Instant {
    static REFERENCE: OnceLock<std::time::Instant> = OnceLock::new();
    *REFERENCE.get_or_init(std::time::Instant::now)
}

impl Instant {
    /// Returns the current time of the runtime that is running on this thread.
    ///
    /// ```
    /// let before = anello::time::Instant::now();
    /// assert!(anello::time::Instant::now() >= before);
    /// ```
    #[must_use]
    pub fn now() -> Self {
        with_current(|shared| match shared.clock() {
            Clock::Monotonic(_) => None,
            Clock::Virtual(_) => Some(Self { ns: shared.now_ns().into() }),
        })
        .flatten()
        .unwrap_or_else(|| Self::from_std(std::time::Instant::now()))
    }

    /// Converts an instant of the standard library. On the simulated driver, the result is not related to the virtual
    /// clock, except that it is the inverse of [`into_std`](Self::into_std).
    ///
    /// ```
    /// # use anello::time::Instant;
    /// let instant = std::time::Instant::now();
    /// assert_eq!(Instant::from_std(instant).into_std(), instant);
    /// ```
    #[must_use]
    pub fn from_std(instant: std::time::Instant) -> Self {
        let reference = reference();
        let after = signed_ns(instant.saturating_duration_since(reference));
        Self { ns: after - signed_ns(reference.saturating_duration_since(instant)) }
    }

    /// Converts the instant to one of the standard library. An instant beyond the range of that type becomes one that is
    /// about 100 years after the start of the process.
    ///
    /// ```
    /// use anello::time::Instant;
    ///
    /// let start = std::time::Instant::now();
    /// assert!(Instant::now().into_std() >= start);
    /// ```
    #[must_use]
    pub fn into_std(self) -> std::time::Instant {
        let distance = duration(self.ns.unsigned_abs());
        let converted = match self.ns < 0 {
            true => reference().checked_sub(distance),
            false => reference().checked_add(distance),
        };
        converted.unwrap_or_else(|| reference() + FAR_FUTURE)
    }

    /// Returns the time from `earlier` to this instant, or zero if `earlier` is later.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::time::Instant;
    ///
    /// let start = Instant::now();
    /// let deadline = start + Duration::from_secs(1);
    /// assert_eq!(deadline.duration_since(start), Duration::from_secs(1));
    /// assert_eq!(start.duration_since(deadline), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Returns the time from `earlier` to this instant, or `None` if `earlier` is later.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::time::Instant;
    ///
    /// let start = Instant::now();
    /// let deadline = start + Duration::from_secs(1);
    /// assert_eq!(deadline.checked_duration_since(start), Some(Duration::from_secs(1)));
    /// assert_eq!(start.checked_duration_since(deadline), None);
    /// ```
    #[must_use]
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        u128::try_from(self.ns.saturating_sub(earlier.ns)).ok().map(duration)
    }

    /// Returns the time from `earlier` to this instant, or zero if `earlier` is later.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::time::Instant;
    ///
    /// let start = Instant::now();
    /// let deadline = start + Duration::from_secs(1);
    /// assert_eq!(deadline.saturating_duration_since(start), Duration::from_secs(1));
    /// assert_eq!(start.saturating_duration_since(deadline), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.checked_duration_since(earlier).unwrap_or_default()
    }

    /// Returns the time since this instant, or zero if the instant is in the future.
    ///
    /// ```
    /// # use anello::time::Instant;
    /// # use std::time::Duration;
    /// assert_eq!((Instant::now() + Duration::from_secs(60)).elapsed(), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// Returns the instant `duration` later, or `None` if it cannot be represented.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::time::Instant;
    ///
    /// let start = Instant::now();
    /// assert_eq!(start.checked_add(Duration::from_secs(1)), Some(start + Duration::from_secs(1)));
    /// ```
    #[must_use]
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.ns.checked_add(signed_ns(duration)).map(|ns| Self { ns })
    }

    /// Returns the instant `duration` earlier, or `None` if it cannot be represented.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::time::Instant;
    ///
    /// let start = Instant::now();
    /// assert_eq!(start.checked_sub(Duration::from_secs(1)), Some(start - Duration::from_secs(1)));
    /// ```
    #[must_use]
    pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
        self.ns.checked_sub(signed_ns(duration)).map(|ns| Self { ns })
    }

    /// Returns the instant of a time on the runtime's clock.
    pub(super) fn at(shared: &Shared, ns: u64) -> Self {
        Self { ns: start_ns(shared.clock()) + i128::from(ns) }
    }

    /// Returns the time on the runtime's clock, limited to the range of the clock: 584 years.
    pub(super) fn on_clock_of(self, shared: &Shared) -> u64 {
        let ns = self.ns.saturating_sub(start_ns(shared.clock())).max(0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Returns the instant, in nanoseconds, at which the clock shows zero.
fn start_ns(clock: &Clock) -> i128 {
    match clock {
        Clock::Monotonic(started) => Instant::from_std(*started).ns,
        Clock::Virtual(_) => 0,
    }
}

/// The largest duration has less than 2^95 nanoseconds.
fn signed_ns(duration: Duration) -> i128 {
    duration.as_nanos() as i128
}

fn duration(ns: u128) -> Duration {
    const NS_PER_SECOND: u128 = 1_000_000_000;
    u64::try_from(ns / NS_PER_SECOND)
        .map_or(Duration::MAX, |seconds| Duration::new(seconds, (ns % NS_PER_SECOND) as u32))
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self { ns: self.ns.saturating_add(signed_ns(duration)) }
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self { ns: self.ns.saturating_sub(signed_ns(duration)) }
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl From<std::time::Instant> for Instant {
    fn from(instant: std::time::Instant) -> Self {
        Self::from_std(instant)
    }
}

impl From<Instant> for std::time::Instant {
    fn from(instant: Instant) -> Self {
        instant.into_std()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_at_extremes_saturates_and_is_exact() {
        let now = Instant::now();
        assert_eq!((now + Duration::MAX) - now, Duration::MAX);
        assert_eq!(now - (now - Duration::MAX), Duration::MAX);
        assert_eq!((now + Duration::MAX) - Duration::MAX, now);
        assert_eq!(((now + Duration::MAX) + Duration::MAX) - now, Duration::MAX, "limited to its range");
        assert_eq!(now - (now + Duration::from_nanos(1)), Duration::ZERO);
        assert_eq!(now.checked_duration_since(now + Duration::from_nanos(1)), None);
        let last = Instant { ns: i128::MAX };
        assert_eq!((last.checked_add(Duration::from_nanos(1)), last + Duration::MAX), (None, last));
        let first = Instant { ns: i128::MIN };
        assert_eq!((first.checked_sub(Duration::from_nanos(1)), first - Duration::MAX), (None, first));
        assert_eq!((last - first, first - last), (Duration::MAX, Duration::ZERO));
        let _ = (first.into_std(), last.into_std(), first.elapsed());
    }

    #[test]
    fn std_instants_round_trip() {
        let hour = Duration::from_secs(3600);
        let now = std::time::Instant::now();
        for instant in [now, now + hour, now.checked_sub(hour).unwrap_or(now)] {
            assert_eq!(Instant::from(instant).into_std(), instant);
        }
        assert_eq!(Instant::from_std(now + hour) - Instant::from_std(now), hour);
        assert!((Instant::from_std(now) + Duration::MAX).into_std() > now + hour);
    }
}
