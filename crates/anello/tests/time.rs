//! Timers: never early, in order, none forgotten. How late they are is not asked.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anello::time::{interval, monotonic_now, sleep, timeout};
use anello::{DriverKind, spawn, spawn_blocking, yield_now};
use common::{on_every_driver, on_every_driver_and_sim, pair, poll_at_most, simulated_drivers};

#[test]
fn sleeps_are_never_short() {
    on_every_driver(|setup| {
        setup.run(async {
            for microseconds in [0, 1, 50, 130, 131, 132, 1000, 3000] {
                let (before, duration) = (Instant::now(), Duration::from_micros(microseconds));
                sleep(duration).await;
                assert!(before.elapsed() >= duration, "{microseconds} us: {:?}", before.elapsed());
            }
        });
    });
}

/// Two deadlines closer than this may be taken for one: a tick of the timer wheel, and the next.
const SAME_TICK: Duration = Duration::from_micros(2 * 132);

#[test]
fn sleepers_wake_in_order() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let woken = Rc::new(RefCell::new(Vec::new()));
            let sleepers: Vec<_> = (0..50u64)
                .map(|number| {
                    // 17 is prime to 50: each number once, not in order.
                    let (woken, place) = (Rc::clone(&woken), number * 17 % 50);
                    spawn(async move {
                        let duration = Duration::from_micros(1000 + 500 * place);
                        let earliest = Instant::now() + duration;
                        let sleeping = sleep(duration);
                        let latest = Instant::now() + duration;
                        sleeping.await;
                        woken.borrow_mut().push((place, earliest, latest));
                    })
                })
                .collect();
            for sleeper in sleepers {
                sleeper.await.unwrap();
            }
            let woken = woken.borrow();
            if matches!(setup.kind, DriverKind::Sim(_)) {
                assert!(woken.iter().map(|(place, ..)| *place).eq(0..50), "{woken:?}");
            }
            // The sleepers begin when they are first polled, which may be any time apart.
            for (index, (before, earliest, _)) in woken.iter().enumerate() {
                for (after, _, latest) in &woken[index + 1..] {
                    assert!(*earliest <= *latest + SAME_TICK, "{before} woke before {after}");
                }
            }
        });
    });
}

#[test]
fn a_timeout_ends_what_takes_too_long() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            for _ in 0..20 {
                let elapsed = timeout(Duration::from_micros(300), server.recv()).await.unwrap_err();
                let error = std::io::Error::from(elapsed);
                assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            }
            client.write_all(b"in time").await.unwrap();
            let mut found = [0; 7];
            timeout(Duration::from_secs(1000), server.read_exact(&mut found)).await.unwrap().unwrap();
            assert_eq!(&found, b"in time");
            assert_eq!(timeout(Duration::ZERO, async { 1 }).await, Ok(1), "what is ready is never late");
            assert!(timeout(Duration::ZERO, std::future::pending::<()>()).await.is_err());
            // Longer than the clock counts.
            assert!(poll_at_most(1, timeout(Duration::MAX, std::future::pending::<()>())).await.is_none());
        });
    });
}

#[test]
fn intervals_skip_what_was_missed() {
    on_every_driver(|setup| {
        setup.run(async {
            let start = Instant::now();
            let mut ticks = interval(Duration::from_millis(2));
            for number in 0..5 {
                ticks.tick().await;
                assert!(start.elapsed() >= Duration::from_millis(2 * number));
            }
            std::thread::sleep(Duration::from_millis(21));
            ticks.tick().await;
            let before = Instant::now();
            // The missed ones are not made up for: after two more, at least one whole period has passed.
            ticks.tick().await;
            ticks.tick().await;
            assert!(before.elapsed() >= Duration::from_millis(2));
        });
    });
    assert!(std::panic::catch_unwind(|| interval(Duration::ZERO)).is_err());
}

#[test]
fn a_sleep_can_be_dropped_and_set_anew() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            for _ in 0..1000 {
                assert!(poll_at_most(1, sleep(Duration::from_secs(1000))).await.is_none());
            }
            let mut long = sleep(Duration::from_secs(1_000_000));
            assert!(poll_at_most(1, &mut long).await.is_none());
            long.reset(Duration::from_micros(500));
            (&mut long).await;
            long.reset(Duration::from_micros(500));
            assert!(poll_at_most(1, &mut long).await.is_none());
            long.await;
        });
    });
}

#[test]
fn a_sleep_moves_between_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut sleeping = sleep(Duration::from_millis(3));
            assert!(poll_at_most(1, &mut sleeping).await.is_none());
            // Polled here, awaited there: the last one to poll is woken.
            spawn(sleeping).await.unwrap();
        });
    });
}

#[test]
fn timers_fire_while_a_task_is_always_ready() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let busy = spawn(async {
                loop {
                    yield_now().await;
                }
            });
            let sleepers: Vec<_> =
                (1..20).map(|number| spawn(sleep(Duration::from_micros(number * 137)))).collect();
            for sleeper in sleepers {
                sleeper.await.unwrap();
            }
            busy.abort();
        });
    });
}

#[test]
fn many_timers_all_fire() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let sleepers: Vec<_> = (0..5000u64)
                .map(|number| spawn(sleep(Duration::from_nanos(number * 7_919 % 20_000_000))))
                .collect();
            for sleeper in sleepers {
                sleeper.await.unwrap();
            }
        });
    });
}

#[test]
fn durations_past_the_end_of_the_clock_overflow_nowhere() {
    on_every_driver_and_sim(|setup| {
        let is_simulated = matches!(setup.kind, DriverKind::Sim(_));
        setup.run(async {
            assert!(poll_at_most(1, &mut sleep(Duration::MAX)).await.is_none());
            assert_eq!(timeout(Duration::MAX, async { 5 }).await, Ok(5));
            let mut ticks = interval(Duration::MAX);
            ticks.tick().await;
            assert!(poll_at_most(1, &mut Box::pin(ticks.tick())).await.is_none());
            let mut late = sleep(Duration::ZERO);
            late.reset(Duration::MAX);
            assert!(poll_at_most(1, &mut late).await.is_none());
            if is_simulated {
                // The virtual clock goes to its end, at which everything still works.
                sleep(Duration::MAX).await;
                late.await;
                sleep(Duration::from_secs(1)).await;
                let (mut near, mut far) = pair().await.unwrap();
                near.send(b"late".to_vec()).await.unwrap();
                assert_eq!(far.recv().await.unwrap().as_deref(), Some(&b"late"[..]));
            }
        });
    });
}

#[test]
fn the_virtual_clock_waits_for_work_that_blocks() {
    for setup in simulated_drivers() {
        let run = || {
            setup.run(async {
                let is_done = Arc::new(AtomicBool::new(false));
                let done = Arc::clone(&is_done);
                let work = spawn_blocking(move || {
                    // Real time, which the virtual clock does not count.
                    thread::sleep(Duration::from_millis(50));
                    done.store(true, Ordering::SeqCst);
                });
                let hour = spawn(sleep(Duration::from_secs(3600)));
                timeout(Duration::from_secs(60), work).await.expect("the clock waits").unwrap();
                let done_at = monotonic_now();
                hour.await.unwrap();
                assert!(is_done.load(Ordering::SeqCst));
                (done_at, monotonic_now())
            })
        };
        assert_eq!(run(), run(), "{}", setup.name);
    }
}
