//! Sleeps, timeouts and intervals, on the runtime's timer wheel.
//!
//! Timers need no additional system call: the next deadline becomes the timeout of the driver's wait. They never fire
//! early. They can fire late: by up to one tick of the wheel (about 0.13 ms), by up to 1 ms more on epoll before
//! Linux 5.11 (whose timeout is in milliseconds), and by as long as the worker is busy.
//!
//! # Tests with virtual time
//!
//! On the simulated driver, timers and [`Instant`] use a virtual clock, which corresponds to tokio's paused clock. When
//! no task is ready, the clock jumps to the next event, so that a sleep takes no real time. The clock is always paused
//! in this sense, so there are no functions `pause` and `resume`. [`advance`] moves the clock explicitly. Timers fire
//! exactly at their deadlines, and a test can compare durations for equality. Only many turns (more than 100) or reads of
//! the clock (more than 1000) at the same virtual time take time, so that a program that waits in a loop without a timer
//! proceeds.
//!
//! ```
//! use anello::time::{Instant, sleep};
//! use anello::sim::SimOptions;
//! use anello::{DriverKind, Runtime};
//! use std::time::Duration;
//!
//! let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::new(17))).build()?;
//! runtime.block_on(async {
//!     let start = Instant::now();
//!     sleep(Duration::from_secs(86_400)).await; // Returns immediately.
//!     assert!(start.elapsed() >= Duration::from_secs(86_400));
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod error;
mod instant;
mod interval;
mod sleep;

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use crate::driver::Clock;
use crate::executor::{current, with_current};

pub use error::Elapsed;
pub use instant::Instant;
pub use interval::{Interval, MissedTickBehavior, interval, interval_at};
pub(crate) use sleep::{Pause, pause};
pub use sleep::{Sleep, sleep, sleep_until};

/// Returns the current time on the runtime's clock, which all timers use, as a duration since the clock's start.
///
/// The clock is monotonic (`clock_gettime(2)`). On the simulated driver, it is virtual and differs from every other
/// clock. Its starting point differs between runtimes. [`Instant::now`] returns a time that is comparable between
/// workers.
///
/// ```
/// # anello::example! {
/// use anello::time::{monotonic_now, sleep};
///
/// let start = monotonic_now();
/// sleep(std::time::Duration::from_millis(2)).await;
/// assert!(monotonic_now() - start >= std::time::Duration::from_millis(2));
/// # }
/// ```
///
/// # Panics
/// Panics if no runtime is running on this thread.
#[must_use]
#[track_caller]
pub fn monotonic_now() -> Duration {
    Duration::from_nanos(current().now_ns())
}

/// Returns the wall-clock time: on the simulated driver that of the virtual clock, otherwise [`SystemTime::now`].
///
/// Programs that run on simulated hosts should use this function instead of [`SystemTime::now`], so that their
/// behaviour depends only on the seed. The virtual time starts at 2000-01-01 00:00 UTC, unless a simulation sets
/// another [start](crate::sim::SimulationBuilder::start_time), and advances with the virtual clock. A test can
/// [set](crate::sim::Control::set_system_time) it for each host. The timestamps of files are always real.
///
/// ```
/// use anello::time::{sleep, system_now};
/// use anello::sim::SimOptions;
/// use anello::{DriverKind, Runtime};
/// use std::time::{Duration, UNIX_EPOCH};
///
/// let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::new(17))).build()?;
/// runtime.block_on(async {
///     sleep(Duration::from_secs(3600)).await;
///     let since_1970 = system_now().duration_since(UNIX_EPOCH).unwrap();
///     assert_eq!(since_1970.as_secs(), 946_684_800 + 3600);
/// });
/// assert!(system_now() >= std::time::SystemTime::now() - Duration::from_secs(60));
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn system_now() -> SystemTime {
    let simulated = with_current(|shared| match shared.clock() {
        Clock::Monotonic(_) => None,
        Clock::Virtual(clock) => Some(clock.system_time()),
    });
    simulated.flatten().unwrap_or_else(SystemTime::now)
}

/// Runs a future with a time limit, which starts now. If `duration` elapses first, the future is dropped.
///
/// The future is polled before the timer, so a future that is ready never times out. Cancel-safe if the given future
/// is.
///
/// # Errors
/// The returned future returns [`Elapsed`] if the given future has not completed within `duration`.
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// # anello::example! {
/// use anello::time::timeout;
/// use std::time::Duration;
///
/// assert_eq!(timeout(Duration::from_secs(1), async { 5 }).await, Ok(5));
/// assert!(timeout(Duration::from_millis(1), std::future::pending::<()>()).await.is_err());
/// # }
/// ```
#[track_caller]
pub fn timeout<F: IntoFuture>(
    duration: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    limit(sleep(duration), future.into_future())
}

/// Runs a future until `deadline`. If the deadline is reached first, the future is dropped. See [`timeout`].
///
/// # Errors
/// The returned future returns [`Elapsed`] if the given future has not completed by `deadline`.
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// # anello::example! {
/// use anello::time::{Instant, timeout_at};
///
/// let past = Instant::now();
/// assert!(timeout_at(past, std::future::pending::<()>()).await.is_err());
/// # }
/// ```
#[track_caller]
pub fn timeout_at<F: IntoFuture>(
    deadline: Instant,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    limit(sleep_until(deadline), future.into_future())
}

async fn limit<F: Future>(mut sleep: Sleep, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep).poll(context).map(|()| Err(Elapsed(())))
    })
    .await
}

/// Advances the virtual clock of the simulated driver by `duration`. Cancel-safe: dropping the future stops waiting.
///
/// Unlike tokio's function, it fires the timers and delivers the data that are due in between, each at its time and in
/// order, and runs the tasks that they wake. It is equivalent to a [`sleep`], but cannot be used with real time by
/// mistake.
///
/// # Panics
/// Panics if no runtime is running on this thread, or if its driver is not simulated.
///
/// ```
/// use anello::time::{advance, sleep};
/// use anello::sim::SimOptions;
/// use anello::{DriverKind, Runtime};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::new(17))).build()?;
/// runtime.block_on(async {
///     let task = anello::spawn(sleep(Duration::from_secs(10)));
///     advance(Duration::from_secs(9)).await;
///     assert!(!task.is_finished());
///     advance(Duration::from_secs(2)).await;
///     assert!(task.is_finished());
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn advance(duration: Duration) -> impl Future<Output = ()> {
    assert!(
        current().is_simulated(),
        "cannot advance the clock: the driver is not simulated (select DriverKind::Sim)"
    );
    sleep(duration)
}
