//! Tests that timers never fire early, fire in order, and are never lost. Lateness is not tested.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anello::time::{
    self, MissedTickBehavior, advance, interval, interval_at, monotonic_now, sleep, sleep_until, timeout,
    timeout_at,
};
use anello::{DriverKind, spawn, spawn_blocking, yield_now};

use crate::common::{
    on_each, on_every_driver, on_every_driver_and_sim, pair, poll_at_most, setup_named, simulated_drivers,
};

#[test]
fn sleeps_never_complete_early() {
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

/// The worker finds several events at once, and then waits for as many again. Only the deadlines end these waits.
#[test]
fn batched_events_do_not_delay_timers() {
    on_every_driver(|setup| {
        let setup = setup.with(|options| options.max_batch_delay = Duration::MAX);
        setup.run(async {
            let ticking = spawn(async {
                loop {
                    sleep(Duration::from_millis(1)).await;
                }
            });
            let (mut clients, mut servers) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                let (client, mut server) = pair().await.unwrap();
                clients.push(client);
                servers.push(spawn(async move { server.recv().await.unwrap().unwrap().len() }));
            }
            yield_now().await;
            for client in &mut clients {
                client.write_all(b"event").await.unwrap();
            }
            for server in servers {
                assert_eq!(server.await.unwrap(), 5);
            }
            sleep(Duration::from_millis(1)).await;
            ticking.abort();
        });
    });
}

/// Deadlines closer together than this may be treated as equal. Covers the current and the next tick of the timer
/// wheel.
const SAME_TICK: Duration = Duration::from_micros(2 * 132);

#[test]
fn sleepers_wake_in_order() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let woken = Rc::new(RefCell::new(Vec::new()));
            let sleepers: Vec<_> = (0..50u64)
                .map(|number| {
                    // 17 is coprime to 50, so every index occurs once, but not in order.
                    let (woken, index) = (Rc::clone(&woken), number * 17 % 50);
                    spawn(async move {
                        let duration = Duration::from_micros(1000 + 500 * index);
                        let earliest = Instant::now() + duration;
                        let sleeping = sleep(duration);
                        let latest = Instant::now() + duration;
                        sleeping.await;
                        woken.borrow_mut().push((index, earliest, latest));
                    })
                })
                .collect();
            for sleeper in sleepers {
                sleeper.await.unwrap();
            }
            let woken = woken.borrow();
            if matches!(setup.kind, DriverKind::Sim(_)) {
                assert!(woken.iter().map(|(index, ..)| *index).eq(0..50), "{woken:?}");
                // The times below are real.
                return;
            }
            // A sleep starts when its task is first polled, which may be delayed arbitrarily.
            for (index, (before, earliest, _)) in woken.iter().enumerate() {
                for (after, _, latest) in &woken[index + 1..] {
                    assert!(*earliest <= *latest + SAME_TICK, "{before} woke before {after}");
                }
            }
        });
    });
}

#[test]
fn timeout_cancels_future_at_deadline() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            for _ in 0..20 {
                let elapsed = timeout(Duration::from_micros(300), server.recv()).await.unwrap_err();
                let error = std::io::Error::from(elapsed);
                assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            }
            client.write_all(b"in time").await.unwrap();
            let mut received = [0; 7];
            timeout(Duration::from_secs(1000), server.read_exact(&mut received)).await.unwrap().unwrap();
            assert_eq!(&received, b"in time");
            assert_eq!(timeout(Duration::ZERO, async { 1 }).await, Ok(1), "a ready future never times out");
            assert!(timeout(Duration::ZERO, std::future::pending::<()>()).await.is_err());
            // Exceeds the range of the clock.
            assert!(poll_at_most(1, timeout(Duration::MAX, std::future::pending::<()>())).await.is_none());
        });
    });
}

#[test]
fn intervals_skip_missed_ticks() {
    on_every_driver(|setup| {
        setup.run(async {
            let start = Instant::now();
            let mut ticks = interval(Duration::from_millis(2));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            for number in 0..5 {
                ticks.tick().await;
                assert!(start.elapsed() >= Duration::from_millis(2 * number));
            }
            std::thread::sleep(Duration::from_millis(21));
            ticks.tick().await;
            let before = Instant::now();
            // Missed ticks are skipped: two further ticks take at least one whole period.
            ticks.tick().await;
            ticks.tick().await;
            assert!(before.elapsed() >= Duration::from_millis(2));
        });
    });
    assert!(std::panic::catch_unwind(|| interval(Duration::ZERO)).is_err());
}

#[test]
fn sleep_can_be_dropped_and_reset() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            for _ in 0..1000 {
                assert!(poll_at_most(1, sleep(Duration::from_secs(1000))).await.is_none());
            }
            let mut long = sleep(Duration::from_secs(1_000_000));
            assert!(poll_at_most(1, &mut long).await.is_none());
            long.reset_after(Duration::from_micros(500));
            (&mut long).await;
            long.reset_after(Duration::from_micros(500));
            assert!(poll_at_most(1, &mut long).await.is_none());
            long.await;
        });
    });
}

#[test]
fn sleep_moves_between_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            // The thread may be suspended for so long that the first poll already returns.
            let sleeping = loop {
                let mut sleeping = sleep(Duration::from_millis(3));
                if poll_at_most(1, &mut sleeping).await.is_none() {
                    break sleeping;
                }
            };
            // The sleep is polled in this task and awaited in another. The last task that polled it is woken.
            spawn(sleeping).await.unwrap();
        });
    });
}

#[test]
fn timers_fire_while_task_is_always_ready() {
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
fn durations_beyond_clock_range_do_not_overflow() {
    on_every_driver_and_sim(|setup| {
        let is_simulated = matches!(setup.kind, DriverKind::Sim(_));
        setup.run(async {
            assert!(poll_at_most(1, &mut sleep(Duration::MAX)).await.is_none());
            assert_eq!(timeout(Duration::MAX, async { 5 }).await, Ok(5));
            let mut ticks = interval(Duration::MAX);
            ticks.tick().await;
            assert!(poll_at_most(1, &mut Box::pin(ticks.tick())).await.is_none());
            let mut late = sleep(Duration::ZERO);
            late.reset_after(Duration::MAX);
            assert!(poll_at_most(1, &mut late).await.is_none());
            if is_simulated {
                // The virtual clock advances to its maximum, at which timers and sockets still work.
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
fn virtual_clock_waits_for_blocking_work() {
    on_each(simulated_drivers(), |setup| {
        let run = || {
            setup.run(async {
                let is_done = Arc::new(AtomicBool::new(false));
                let done = Arc::clone(&is_done);
                let work = spawn_blocking(move || {
                    // Takes real time, during which the virtual clock does not advance.
                    thread::sleep(Duration::from_millis(50));
                    done.store(true, Ordering::SeqCst);
                });
                let hour = spawn(sleep(Duration::from_secs(3600)));
                timeout(Duration::from_secs(60), work)
                    .await
                    .expect("the virtual clock waits for the work")
                    .unwrap();
                let done_at = monotonic_now();
                hour.await.unwrap();
                assert!(is_done.load(Ordering::SeqCst));
                (done_at, monotonic_now())
            })
        };
        assert_eq!(run(), run(), "{}", setup.name);
    });
}

#[test]
fn deadlines_are_instants_of_the_runtime_clock() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let start = time::Instant::now();
            for microseconds in [0, 1, 131, 500, 3000] {
                let deadline = time::Instant::now() + Duration::from_micros(microseconds);
                let mut sleeping = sleep_until(deadline);
                assert!(deadline.saturating_duration_since(sleeping.deadline()) < Duration::from_micros(1));
                (&mut sleeping).await;
                assert!(sleeping.is_elapsed() && time::Instant::now() >= deadline, "{microseconds} us");
            }
            assert!(!sleep(Duration::from_secs(1000)).is_elapsed());
            // Deadlines in the past, even before the start of the clock.
            sleep_until(start - Duration::MAX).await;
            assert!(timeout_at(start, std::future::pending::<()>()).await.is_err());
            assert_eq!(timeout_at(start, async { 1 }).await, Ok(1), "a ready future never times out");
            let soon = time::Instant::now() + Duration::from_millis(1);
            assert!(timeout_at(soon, std::future::pending::<()>()).await.is_err());
            assert!(time::Instant::now() >= soon);
            // The time limit starts when the function is called, not at the first poll.
            let limited = timeout(Duration::from_millis(1), std::future::pending::<()>());
            sleep(Duration::from_millis(2)).await;
            assert!(poll_at_most(1, limited).await.is_some_and(|result| result.is_err()));
        });
    });
}

#[test]
fn instants_of_different_workers_are_comparable() {
    on_every_driver(|setup| {
        let before = Instant::now();
        let first = setup.run(async { time::Instant::now() });
        let other = setup.clone();
        let second = thread::spawn(move || other.run(async { time::Instant::now() })).join().unwrap();
        let outside = time::Instant::now();
        assert!(time::Instant::from(before) <= first && first <= second && second <= outside);
        setup.run(async { assert!(sleep_until(first).deadline() < time::Instant::now()) });
    });
}

/// The ticks of an interval of 10 ms, in ms after its start, if the tick at 10 ms is received after 35 ms.
async fn ticks_after_delay(behavior: MissedTickBehavior) -> Vec<u128> {
    let start = time::Instant::now();
    let mut ticks = interval_at(start, Duration::from_millis(10));
    ticks.set_missed_tick_behavior(behavior);
    assert_eq!((ticks.missed_tick_behavior(), ticks.period()), (behavior, Duration::from_millis(10)));
    let mut received = vec![ticks.tick().await - start];
    sleep_until(start + Duration::from_millis(35)).await;
    for _ in 0..5 {
        let deadline = ticks.tick().await;
        assert!(time::Instant::now() >= deadline, "early");
        received.push(deadline - start);
    }
    received.into_iter().map(|since| since.as_millis()).collect()
}

#[test]
fn missed_ticks_follow_the_selected_behavior() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            use MissedTickBehavior::{Burst, Delay, Skip};
            assert_eq!(ticks_after_delay(Burst).await, [0, 10, 20, 30, 40, 50]);
            assert_eq!(ticks_after_delay(Skip).await, [0, 10, 40, 50, 60, 70]);
            assert_eq!(ticks_after_delay(Delay).await, [0, 10, 45, 55, 65, 75]);
        });
    });
}

#[test]
fn interval_reset_changes_next_tick() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            let start = time::Instant::now();
            let since = |tick: time::Instant| (tick - start).as_secs();
            let mut ticks = interval_at(start + Duration::from_secs(5), Duration::from_secs(10));
            assert_eq!(since(ticks.tick().await), 5);
            advance(Duration::from_secs(3)).await;
            ticks.reset();
            assert_eq!(since(ticks.tick().await), 18, "one period after the reset");
            ticks.reset_after(Duration::from_secs(2));
            assert_eq!(since(ticks.tick().await), 20);
            assert_eq!(since(ticks.tick().await), 30, "the period is unchanged");
            ticks.reset_at(start + Duration::from_secs(31));
            assert_eq!(since(ticks.tick().await), 31);
            ticks.reset_immediately();
            assert_eq!(since(ticks.tick().await), 31);
            ticks.reset_at(start - Duration::MAX);
            assert!(poll_at_most(1, &mut Box::pin(ticks.tick())).await.is_some());
            ticks.reset_at(start + Duration::MAX);
            assert!(poll_at_most(1, &mut Box::pin(ticks.tick())).await.is_none());
        });
    });
}

/// A tick that is polled and dropped is delivered later.
#[test]
fn dropped_tick_future_loses_no_tick() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let start = time::Instant::now();
            let mut ticks = interval_at(start, Duration::from_millis(1));
            for number in 0..5 {
                while poll_at_most(1, &mut Box::pin(ticks.tick())).await.is_none() {
                    yield_now().await;
                    if poll_at_most(1, &mut Box::pin(ticks.tick())).await.is_some() {
                        break;
                    }
                    sleep(Duration::from_micros(100)).await;
                }
                assert!(start.elapsed() >= Duration::from_millis(number));
            }
        });
    });
}

#[test]
fn reset_sleep_completes_at_new_deadline() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut sleeping = sleep(Duration::MAX);
            assert!(poll_at_most(1, &mut sleeping).await.is_none());
            let deadline = time::Instant::now() + Duration::from_micros(700);
            std::pin::Pin::new(&mut sleeping).reset(deadline);
            assert!(!sleeping.is_elapsed() || time::Instant::now() >= deadline);
            (&mut sleeping).await;
            assert!(time::Instant::now() >= deadline);
            // A completed sleep stays complete until it is reset.
            (&mut sleeping).await;
            sleeping.reset(time::Instant::now() + Duration::MAX);
            assert!(poll_at_most(1, &mut sleeping).await.is_none());
        });
    });
}

#[test]
fn advance_fires_timers_in_order() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            let fired = Rc::new(RefCell::new(Vec::new()));
            for seconds in [3, 1, 2, 5, 4] {
                let fired = Rc::clone(&fired);
                spawn(async move {
                    sleep(Duration::from_secs(seconds)).await;
                    fired.borrow_mut().push(seconds);
                })
                .detach();
            }
            let start = time::Instant::now();
            yield_now().await;
            advance(Duration::from_millis(3500)).await;
            assert_eq!(*fired.borrow(), [1, 2, 3]);
            assert_eq!(start.elapsed().as_millis(), 3500);
            advance(Duration::from_secs(10)).await;
            assert_eq!(*fired.borrow(), [1, 2, 3, 4, 5]);
        });
    });
    let refused = std::panic::catch_unwind(|| {
        crate::common::both_drivers()[1].run(async { drop(advance(Duration::ZERO)) })
    });
    assert!(refused.is_err(), "only the simulated clock can be advanced");
}

/// A million timers with random deadlines, of which a third is reset and a third is dropped. Fewer in debug builds.
#[test]
fn fault_16_million_timers_fire_in_order() {
    const TIMERS: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let seed = 16;
    eprintln!("seed {seed}");
    let mut random = crate::common::Rng::with_seed(seed);
    setup_named("sim-completion").run(async move {
        let start = time::Instant::now() + Duration::from_secs(10);
        let mut sleeps = Vec::with_capacity(TIMERS);
        for number in 0..TIMERS {
            let deadline = start + Duration::from_micros(random.u64(..3_600_000_000));
            let mut sleeping = sleep_until(deadline);
            assert!(poll_at_most(1, &mut sleeping).await.is_none());
            match number % 3 {
                0 => drop(sleeping),
                1 => {
                    sleeping.reset(deadline + Duration::from_secs(3600));
                    assert!(poll_at_most(1, &mut sleeping).await.is_none());
                    sleeps.push(sleeping);
                }
                _ => sleeps.push(sleeping),
            }
        }
        sleeps.sort_by_key(time::Sleep::deadline);
        for sleeping in &mut sleeps {
            let deadline = sleeping.deadline();
            sleeping.await;
            let late = time::Instant::now().checked_duration_since(deadline).expect("early");
            assert!(late < Duration::from_secs(10), "lost: {late:?}");
        }
    });
}

#[test]
fn epoll_timeouts_are_in_nanoseconds_unless_disabled() {
    on_every_driver(|setup| {
        if setup.kind != DriverKind::Epoll {
            return;
        }
        let features = setup.runtime().driver().features;
        let is_disabled = setup.options.testing.disabled_features.epoll_pwait2;
        assert_eq!(features.contains("nanosecond-timeouts"), !is_disabled, "{}: {features}", setup.name);
    });
}
