//! Implementations of `hyper::rt::Timer` and `Sleep`.
//!
//! Hyper requires sleeps that are `Send` and `Sync`, but a timer wheel belongs to one thread. A sleep therefore holds
//! no reference to a runtime. It contains only its deadline and, once polled, the ID of the runtime that polled it and
//! the key of its timer. The key is valid only for the wheel of that runtime, and is never reused.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

use crate::executor::{Shared, TimerKey, with_current};

/// Duration used if the requested duration exceeds the range of `Instant`.
const FAR_FUTURE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A timer for hyper's timeouts, such as those for request headers and keep-alive.
///
/// It uses the timer wheel of the runtime that polls the connection, so a timer needs no system call; see
/// [`time`](crate::time).
///
/// ```
/// # fn server() -> hyper::server::conn::http1::Builder {
/// use anello::compat::HyperTimer;
/// use std::time::Duration;
///
/// let mut server = hyper::server::conn::http1::Builder::new();
/// server.timer(HyperTimer).header_read_timeout(Duration::from_secs(10));
/// # server
/// # }
/// ```
///
/// Unlike [`time::sleep`](crate::time::sleep), the sleeps of this timer are `Send` and `Sync`. Handlers that must be
/// `Send` can therefore await them: `HyperTimer.sleep(duration).await`.
///
/// A sleep can move to another thread after it has been polled. It then continues on the runtime of that thread. The
/// timer on the first runtime stays in its wheel until the deadline, and then causes a spurious wake-up. The same
/// applies to a sleep that is dropped on a thread other than the one that polled it.
///
/// On the simulated driver, [`now`](Timer::now) returns the virtual time.
///
/// # Panics
/// Polling a sleep panics if no runtime is running on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct HyperTimer;

impl Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        let now = self.now();
        self.sleep_until(now.checked_add(duration).unwrap_or(now + FAR_FUTURE))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Sleeping { deadline, registered: None })
    }

    fn now(&self) -> Instant {
        with_current(|shared| shared.runtime_clock.instant_at(shared.now_ns())).unwrap_or_else(Instant::now)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleeping>() {
            Some(sleeping) => sleeping.get_mut().reset(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

#[derive(Debug)]
struct Sleeping {
    deadline: Instant,
    /// The runtime and timer of the last poll, while the timer is pending.
    registered: Option<Registration>,
}

#[derive(Clone, Copy, Debug)]
struct Registration {
    runtime_id: u64,
    timer: TimerKey,
}

impl Sleeping {
    fn reset(&mut self, deadline: Instant) {
        self.cancel();
        self.deadline = deadline;
    }

    fn cancel(&mut self) {
        if let Some(Registration { runtime_id, timer }) = self.registered.take() {
            with_current(|shared| {
                if shared.runtime_clock.id == runtime_id {
                    shared.cancel_timer(timer);
                }
            });
        }
    }

    fn poll_on(&mut self, shared: &Shared, waker: &Waker) -> Poll<()> {
        if let Some(Registration { timer, .. }) =
            self.registered.filter(|at| at.runtime_id == shared.runtime_clock.id)
        {
            if shared.wait_on(timer, waker) {
                return Poll::Pending;
            }
            // The timer has fired, and the wheel never fires early.
            self.registered = None;
            return Poll::Ready(());
        }
        // The clock need not be read here: in the next turn, the wheel fires any timer whose deadline has passed.
        let deadline_ns = shared.runtime_clock.ns_at(self.deadline);
        let timer = shared.timers.borrow_mut().insert(deadline_ns, waker.clone());
        self.registered = Some(Registration { runtime_id: shared.runtime_clock.id, timer });
        Poll::Pending
    }
}

impl Sleep for Sleeping {}

impl Future for Sleeping {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let sleeping = self.get_mut();
        with_current(|shared| sleeping.poll_on(shared, context.waker())).unwrap_or_else(|| {
            panic!(
                "no anello runtime on this thread (await the sleeps of a HyperTimer in Runtime::block_on or a \
                 spawned task)"
            )
        })
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.cancel();
    }
}
