//! Hyper's timer: never early, and usable on any thread that has a runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use anello::compat::HyperTimer;
use anello::{Runtime, spawn};
use hyper::rt::{Sleep, Timer};

use crate::common::{on_every_driver, on_every_driver_and_sim, poll_at_most};

type Sleeping = Pin<Box<dyn Sleep>>;

const LONG: Duration = Duration::from_secs(1_000_000);

/// Polls the sleep once on a runtime that does not wait afterwards, and returns whether it was ready.
fn poll_on(runtime: &Runtime, sleeping: &mut Sleeping) -> bool {
    runtime.block_on(poll_at_most(1, sleeping)).is_some()
}

#[test]
fn sleeps_never_complete_early() {
    on_every_driver(|setup| {
        setup.run(async {
            for microseconds in [0, 1, 130, 131, 132, 3000] {
                let (before, duration) = (Instant::now(), Duration::from_micros(microseconds));
                HyperTimer.sleep(duration).await;
                assert!(before.elapsed() >= duration, "{microseconds} us: {:?}", before.elapsed());
                let deadline = Instant::now() + duration;
                HyperTimer.sleep_until(deadline).await;
                assert!(Instant::now() >= deadline);
            }
        });
    });
}

#[test]
fn now_returns_time_of_runtime() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let before = HyperTimer.now();
            // On the simulated driver, half an hour passes immediately.
            let duration = if setup.name.starts_with("sim") { 1800.0 } else { 0.002 };
            HyperTimer.sleep(Duration::from_secs_f64(duration)).await;
            assert!((HyperTimer.now() - before).as_secs_f64() >= duration);
            HyperTimer.sleep_until(before).await;
        });
    });
}

#[test]
fn sleep_can_be_dropped_and_reset() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            for _ in 0..1000 {
                assert!(poll_at_most(1, HyperTimer.sleep(LONG)).await.is_none());
            }
            assert!(poll_at_most(1, HyperTimer.sleep(Duration::MAX)).await.is_none());
            let mut sleeping = HyperTimer.sleep(LONG);
            assert!(poll_at_most(1, &mut sleeping).await.is_none());
            let deadline = HyperTimer.now() + Duration::from_millis(1);
            HyperTimer.reset(&mut sleeping, deadline);
            (&mut sleeping).await;
            assert!(HyperTimer.now() >= deadline);
            HyperTimer.reset(&mut sleeping, HyperTimer.now() + Duration::from_millis(1));
            sleeping.await;
        });
    });
}

/// Sleep from another crate, which is never ready.
struct Foreign;

impl Sleep for Foreign {}

impl Future for Foreign {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

#[test]
fn foreign_sleep_is_replaced() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut sleeping: Sleeping = Box::pin(Foreign);
            HyperTimer.reset(&mut sleeping, HyperTimer.now() + Duration::from_millis(1));
            sleeping.await;
        });
    });
}

#[test]
fn last_task_that_polled_sleep_is_woken() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut sleeping = HyperTimer.sleep(Duration::from_millis(3));
            assert!(poll_at_most(1, &mut sleeping).await.is_none());
            spawn(sleeping).await.unwrap();
        });
    });
}

#[test]
fn sleep_continues_on_another_thread() {
    on_every_driver(|setup| {
        let before = Instant::now();
        let runtime = setup.runtime();
        // Created without a runtime, polled on one runtime, and awaited on another.
        let mut sleeping = HyperTimer.sleep(Duration::from_millis(5));
        assert!(!poll_on(&runtime, &mut sleeping));
        let other = setup.clone();
        thread::spawn(move || other.run(sleeping)).join().unwrap();
        assert!(before.elapsed() >= Duration::from_millis(5), "{:?}", before.elapsed());
        // The timer left on the first runtime wakes no task.
        runtime.block_on(async {
            HyperTimer.sleep(Duration::from_millis(6)).await;
        });
    });
}

#[test]
fn sleep_outlives_runtime_it_was_polled_on() {
    on_every_driver(|setup| {
        let mut sleeping = HyperTimer.sleep(Duration::from_millis(5));
        for _ in 0..3 {
            // The first timer of each runtime has the same key in its wheel.
            let runtime = setup.runtime();
            let mut own = HyperTimer.sleep(LONG);
            assert!(!poll_on(&runtime, &mut own));
            poll_on(&runtime, &mut sleeping);
        }
        setup.run(async {
            let mut own = HyperTimer.sleep(LONG);
            assert!(poll_at_most(1, &mut own).await.is_none());
            sleeping.await;
            assert!(poll_at_most(1, &mut own).await.is_none());
        });
    });
}

#[test]
fn sleep_can_be_dropped_on_any_thread() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let mut sleeping = HyperTimer.sleep(Duration::from_millis(2));
        assert!(!poll_on(&runtime, &mut sleeping));
        let other = setup.clone();
        thread::spawn(move || {
            other.run(async {
                // The wheel of this runtime has a timer with the same key, which must not be removed.
                let mut own = HyperTimer.sleep(LONG);
                assert!(poll_at_most(1, &mut own).await.is_none());
                drop(sleeping);
                assert!(poll_at_most(1, &mut own).await.is_none());
            });
        })
        .join()
        .unwrap();
        runtime.block_on(HyperTimer.sleep(Duration::from_millis(4)));
        let mut sleeping = HyperTimer.sleep(LONG);
        assert!(!poll_on(&runtime, &mut sleeping));
        drop(runtime);
        drop(sleeping);
    });
}

#[test]
fn sleep_without_runtime_panics_with_remedy() {
    let mut sleeping = HyperTimer.sleep(Duration::ZERO);
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let waker = std::task::Waker::noop();
        sleeping.as_mut().poll(&mut Context::from_waker(waker))
    }));
    let panic = polled.unwrap_err();
    let message = panic.downcast_ref::<&str>().copied();
    assert!(message.is_some_and(|text| text.contains("in Runtime::block_on")), "{message:?}");
}
