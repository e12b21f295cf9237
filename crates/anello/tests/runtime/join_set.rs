//! Sets of tasks: order of the results, cancellation, panics, wake-ups from other workers, and fairness.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use anello::task::JoinSet;
use anello::time::{sleep, timeout};
use anello::{DriverKind, Handle, spawn, yield_now};

use crate::common::{
    Rng, Setup, both_drivers, on_each, on_every_driver, on_every_driver_and_sim, poll_at_most,
    simulated_drivers,
};

struct CountDrop(Rc<Cell<usize>>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn results_are_returned_in_order_of_completion() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut set = JoinSet::new();
            assert!(set.is_empty() && set.join_next().await.is_none() && set.try_join_next().is_none());
            let ids: Vec<_> = [3, 1, 2]
                .map(|turns| {
                    set.spawn(async move {
                        for _ in 0..turns {
                            yield_now().await;
                        }
                        turns
                    })
                    .id()
                })
                .into();
            assert_eq!(set.len(), 3);
            assert!(set.try_join_next().is_none());
            assert_eq!(set.join_next_with_id().await.unwrap().unwrap(), (ids[1], 1));
            assert_eq!(set.join_next().await.unwrap().unwrap(), 2);
            assert_eq!(set.len(), 1);
            while set.is_empty() || set.len() == 1 {
                if let Some(result) = set.try_join_next_with_id() {
                    assert_eq!(result.unwrap(), (ids[0], 3));
                    break;
                }
                yield_now().await;
            }
            assert!(set.join_next().await.is_none());
            // The set can be used again.
            set.extend((0..5).map(|number| async move { number }));
            let mut outputs = set.join_all().await;
            outputs.sort_unstable();
            assert_eq!(outputs, [0, 1, 2, 3, 4]);
        });
    });
}

#[test]
fn dropping_set_aborts_its_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let dropped = Rc::new(Cell::new(0));
            let mut set = JoinSet::new();
            for number in 0..10 {
                let guard = CountDrop(Rc::clone(&dropped));
                set.spawn(async move {
                    let _guard = guard;
                    if number % 2 == 0 {
                        pending::<()>().await;
                    }
                });
            }
            yield_now().await;
            assert_eq!(dropped.get(), 5);
            drop(set);
            yield_now().await;
            assert_eq!(dropped.get(), 10);

            let mut set: JoinSet<()> = (0..10).map(|_| pending()).collect();
            set.abort_all();
            let mut cancelled = 0;
            while let Some(result) = set.join_next().await {
                cancelled += usize::from(result.unwrap_err().is_cancelled());
            }
            assert_eq!(cancelled, 10);

            let guard = CountDrop(Rc::clone(&dropped));
            let ran = Rc::new(Cell::new(false));
            let runs = Rc::clone(&ran);
            set.spawn(async move {
                let _guard = guard;
                yield_now().await;
                runs.set(true);
            });
            set.detach_all();
            assert!(set.is_empty());
            drop(set);
            yield_now().await;
            yield_now().await;
            assert!(ran.get() && dropped.get() == 11, "a detached task continues");
        });
    });
}

#[test]
fn shutdown_waits_until_futures_are_dropped() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let dropped = Rc::new(Cell::new(0));
            let mut set = JoinSet::new();
            for _ in 0..5 {
                let guard = CountDrop(Rc::clone(&dropped));
                set.spawn(async move {
                    let _guard = guard;
                    pending::<()>().await;
                });
            }
            set.shutdown().await;
            assert_eq!((set.len(), dropped.get()), (0, 5));
            // A dropped shutdown has aborted the tasks.
            set.spawn(pending());
            assert!(poll_at_most(1, set.shutdown()).await.is_none());
            assert!(set.join_next().await.unwrap().unwrap_err().is_cancelled());
        });
    });
}

#[test]
fn fault_10_dropped_join_future_loses_no_result() {
    on_every_driver_and_sim(|setup| {
        let seed = 10;
        eprintln!("{}: seed {seed}", setup.name);
        let mut random = Rng::with_seed(seed);
        setup.run(async {
            let mut set = JoinSet::new();
            let (mut spawned, mut received) = (0, Vec::new());
            for _ in 0..300 {
                for _ in 0..random.usize(..4) {
                    let (number, turns) = (spawned, random.usize(..5));
                    spawned += 1;
                    set.spawn(async move {
                        for _ in 0..turns {
                            yield_now().await;
                        }
                        number
                    });
                }
                // Dropped after a random number of polls.
                if let Some(Some(result)) = poll_at_most(random.usize(..3), set.join_next()).await {
                    received.push(result.unwrap());
                }
                yield_now().await;
            }
            while let Some(result) = set.join_next().await {
                received.push(result.unwrap());
            }
            received.sort_unstable();
            assert!(received.into_iter().eq(0..spawned));
        });
    });
}

#[test]
fn fault_17_panic_is_returned_and_does_not_affect_other_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut set = JoinSet::new();
            let id = set.spawn(async { panic!("deliberate") }).id();
            set.spawn(async { 5 });
            let mut results = Vec::new();
            while let Some(result) = set.join_next().await {
                results.push(result);
            }
            let error = results.remove(0).unwrap_err();
            assert!(error.is_panic() && error.id() == id, "{error}");
            assert_eq!(results.remove(0).unwrap(), 5);

            let dropped = Rc::new(Cell::new(0));
            let guard = CountDrop(Rc::clone(&dropped));
            let mut set = JoinSet::new();
            set.spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            });
            set.spawn(async { std::panic::panic_any(17) });
            let joined = spawn(set.join_all());
            assert_eq!(joined.await.unwrap_err().into_panic().downcast_ref(), Some(&17));
            yield_now().await;
            assert_eq!(dropped.get(), 1, "the other task is aborted");
        });
    });
}

/// A result whose destructor panics.
struct PanicsOnDrop(Rc<Cell<usize>>);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
        if !thread::panicking() {
            panic!("deliberate, in the destructor of a result");
        }
    }
}

#[test]
fn fault_17_panic_in_destructor_of_result_aborts_remaining_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (results, waiting) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut set = JoinSet::new();
            for number in 0..6 {
                let (result, guard) = (PanicsOnDrop(Rc::clone(&results)), CountDrop(Rc::clone(&waiting)));
                set.spawn(async move {
                    let _guard = guard;
                    if number % 2 == 1 {
                        std::mem::forget(result);
                        pending::<()>().await;
                        unreachable!();
                    }
                    result
                });
            }
            yield_now().await;
            assert_eq!(waiting.get(), 3);
            // As in tokio, the panics do not unwind.
            drop(set);
            yield_now().await;
            assert_eq!((results.get(), waiting.get()), (3, 6), "every result and future was dropped once");
            // The runtime still works.
            sleep(Duration::from_micros(100)).await;
            assert_eq!(spawn(async { 5 }).await.unwrap(), 5);
        });
    });
}

#[test]
fn set_outlives_its_runtime() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let mut set = JoinSet::new();
        runtime.block_on(async {
            set.spawn(async { 1 });
            yield_now().await;
            set.spawn(pending());
        });
        let late = runtime.handle();
        drop(runtime);
        set.spawn_on(async { 2 }, &late);
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(set.poll_join_next(&mut context), Poll::Ready(Some(Ok(1)))));
        for _ in 0..2 {
            let next = set.poll_join_next(&mut context);
            assert!(matches!(&next, Poll::Ready(Some(Err(error))) if error.is_cancelled()), "{next:?}");
        }
        assert!(matches!(set.poll_join_next(&mut context), Poll::Ready(None)));
    });
}

#[test]
fn tasks_of_other_workers_wake_set() {
    on_every_driver(|setup| {
        let (handles, other_handles) = mpsc::channel::<Handle>();
        let (end, ended) = mpsc::channel::<()>();
        let other: Setup = both_drivers().pop().unwrap();
        let thread = thread::spawn(move || {
            let runtime = other.runtime();
            handles.send(runtime.handle()).unwrap();
            runtime.block_on(async {
                while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    sleep(Duration::from_micros(200)).await;
                }
            });
        });
        let handle = other_handles.recv().unwrap();
        setup.run(async {
            let mut set = JoinSet::new();
            for round in 0..50u64 {
                set.spawn_on(async move { round }, &handle);
                set.spawn_blocking(move || round);
                // This worker is asleep when a task or closure finishes.
                assert_eq!(set.join_next().await.unwrap().unwrap(), round);
                assert_eq!(set.join_next().await.unwrap().unwrap(), round);
            }
            set.spawn_on(pending(), &handle);
            set.shutdown().await;
        });
        end.send(()).unwrap();
        thread.join().unwrap();
    });
}

/// A set whose tasks are always ready must not starve the other tasks and the timers.
#[test]
fn fault_16_always_ready_set_lets_other_tasks_and_timers_run() {
    on_every_driver_and_sim(|setup| {
        let is_simulated = matches!(setup.kind, DriverKind::Sim(_));
        setup.run(async {
            let stop = Rc::new(Cell::new(false));
            let stops = Rc::clone(&stop);
            spawn(async move {
                // The virtual clock advances too slowly while tasks are ready.
                match is_simulated {
                    true => yield_now().await,
                    false => sleep(Duration::from_micros(500)).await,
                }
                stops.set(true);
            })
            .detach();
            let mut set = JoinSet::new();
            set.extend((0..1000).map(|_| async {}));
            yield_now().await;
            while !stop.get() {
                set.join_next().await.unwrap().unwrap();
                set.spawn(async {});
            }
        });
    });
}

#[test]
fn waiting_task_is_replaced_by_last_poll() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            let set = Rc::new(RefCell::new(JoinSet::new()));
            set.borrow_mut().spawn(async { sleep(Duration::from_secs(1)).await });
            let waiting = |set: &Rc<RefCell<JoinSet<()>>>| {
                let set = Rc::clone(set);
                poll_fn(move |context| set.borrow_mut().poll_join_next(context))
            };
            // The first task polls once, and the second one takes its place.
            let first = spawn(waiting(&set));
            yield_now().await;
            let second = spawn(waiting(&set));
            second.await.unwrap().unwrap().unwrap();
            assert!(!first.is_finished());
            assert!(timeout(Duration::from_secs(10), first).await.is_err());
        });
    });
}
