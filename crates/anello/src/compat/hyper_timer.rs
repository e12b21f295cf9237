//! `hyper::rt::Timer` and `Sleep`.
//!
//! Hyper wants sleeps that are `Send` and `Sync`, whichever thread its connections run on; the timer wheel belongs to one
//! thread. So a sleep holds no part of a runtime: only its deadline and, once polled, the number of the runtime that it
//! was polled on and the key of its timer there, which is valid for that runtime's wheel alone and for one timer ever.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

use crate::executor::{Shared, with_current};
use crate::time::wheel::TimerKey;

/// How far ahead a sleep is set that is longer than the clock counts.
const FAR_FUTURE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Hyper's deadlines (of heads, of keep-alive) on the timers of the runtime that polls the connection, without a system
/// call each; see [`time`](crate::time).
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
/// Its sleeps are `Send` and `Sync`, unlike [`time::sleep`](crate::time::sleep)'s, so that handlers which have to be `Send`
/// can await them: `HyperTimer.sleep(duration).await`. A sleep that moves to another thread after it was polled goes on
/// there, on that thread's runtime; what it leaves behind is a timer that wakes nobody who waits, at the deadline. One
/// dropped on another thread than it was polled on leaves the same. On the simulated driver [`now`](Timer::now) is the
/// virtual time.
///
/// # Panics
/// Polling a sleep does when no runtime runs on the thread.
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
        with_current(|shared| shared.runtime_clock.moment_at(shared.now_ns())).unwrap_or_else(Instant::now)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleeping>() {
            Some(sleeping) => sleeping.get_mut().reset(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

/// Ends at its deadline.
#[derive(Debug)]
struct Sleeping {
    deadline: Instant,
    /// Where it was polled, if it was and has not ended.
    registered: Option<Registration>,
}

#[derive(Clone, Copy, Debug)]
struct Registration {
    /// The number of the runtime.
    runtime: u64,
    timer: TimerKey,
}

impl Sleeping {
    fn reset(&mut self, deadline: Instant) {
        self.cancel();
        self.deadline = deadline;
    }

    fn cancel(&mut self) {
        if let Some(Registration { runtime, timer }) = self.registered.take() {
            with_current(|shared| {
                if shared.runtime_clock.number == runtime {
                    shared.cancel_timer(timer);
                }
            });
        }
    }

    fn poll_on(&mut self, shared: &Shared, waker: &Waker) -> Poll<()> {
        if let Some(Registration { timer, .. }) =
            self.registered.filter(|at| at.runtime == shared.runtime_clock.number)
        {
            if shared.wait_on(timer, waker) {
                return Poll::Pending;
            }
            // The wheel, which never fires early, has let go of it.
            self.registered = None;
            return Poll::Ready(());
        }
        // A deadline that has passed is due at the runtime's next turn: no need to look at the clock here.
        let deadline_ns = shared.runtime_clock.ns_at(self.deadline);
        let timer = shared.timers.borrow_mut().insert(deadline_ns, waker.clone());
        self.registered = Some(Registration { runtime: shared.runtime_clock.number, timer });
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
                "no runtime runs on this thread: await the sleeps of a HyperTimer inside Runtime::block_on or a \
                 spawned task"
            )
        })
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.cancel();
    }
}
