//! Tasks: results, panics, cancellation, wake-ups from other threads and runtimes, workers, and fairness.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::echo;
use anello::doctor::allowed_cores;
use anello::net::{TcpListener, TcpStream, UnixStream};
use anello::time::sleep;
use anello::{Handle, RuntimeMetrics, Workers, spawn, yield_now};

use crate::common::{
    ANY_PORT, Flag, Setup, both_drivers, hang_timeout, on_both_drivers, on_each, on_every_driver,
    on_every_driver_and_sim, pair,
};

/// Increments a counter when it is dropped.
struct CountDrop(Rc<Cell<usize>>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn results_are_returned_by_handles() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let handles: Vec<_> = (0..100)
                .map(|number| {
                    spawn(async move {
                        for _ in 0..number % 7 {
                            yield_now().await;
                        }
                        number
                    })
                })
                .collect();
            let mut sum = 0;
            for handle in handles {
                sum += handle.await.unwrap();
            }
            assert_eq!(sum, 4950);
            let done = spawn(async { "kept until awaited" });
            while !done.is_finished() {
                yield_now().await;
            }
            assert_eq!(done.await.unwrap(), "kept until awaited");
        });
    });
}

#[test]
fn fault_17_panic_does_not_affect_other_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            let (mut doomed_client, doomed) = pair().await.unwrap();
            let error = spawn(async move {
                let _held = doomed;
                yield_now().await;
                std::panic::panic_any("deliberate, 17".to_owned());
            })
            .await
            .map(|(): ()| ())
            .unwrap_err();
            assert!(error.is_panic());
            assert_eq!(error.to_string(), "task panicked: deliberate, 17");
            let payload = error.into_panic();
            assert_eq!(payload.downcast_ref::<String>().map(String::as_str), Some("deliberate, 17"));
            assert!(doomed_client.recv().await.unwrap().is_none(), "its stream must be closed");
            spawn(async { panic!("panic in a detached task") }).detach();
            client.write_all(b"alive").await.unwrap();
            let mut answer = [0; 5];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"alive");
            drop(client);
            echoing.await.unwrap().unwrap();
        });
    });
}

#[test]
fn runtime_is_usable_after_panic_of_main_future() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                yield_now().await;
                panic!("deliberate");
            });
        }));
        assert!(panicked.is_err());
        runtime.block_on(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"!").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"!"[..]));
        });
    });
}

#[test]
fn aborted_and_abandoned_tasks_are_dropped_once() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let dropped = Rc::new(Cell::new(0));
        let [handle] = runtime.block_on(async {
            let waiting = |counter: &Rc<Cell<usize>>| {
                let guard = CountDrop(Rc::clone(counter));
                async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                }
            };
            let polled = spawn(waiting(&dropped));
            yield_now().await;
            polled.abort();
            spawn(waiting(&dropped)).abort();
            yield_now().await;
            yield_now().await;
            assert_eq!(dropped.get(), 2, "aborted after and before the first poll");
            spawn(waiting(&dropped)).detach();
            let kept = spawn(waiting(&dropped));
            yield_now().await;
            spawn(waiting(&dropped)).detach();
            [kept]
        });
        drop(runtime);
        assert_eq!(dropped.get(), 5, "dropped with the runtime, polled or not");
        assert!(handle.is_finished());
        let error = setup.run(handle).unwrap_err();
        assert!(!error.is_panic());
        assert!(error.to_string().contains("cancelled"), "{error}");
        assert!(error.is_cancelled() && error.try_into_panic().is_err());
    });
}

/// Operations that tasks have started are submitted while other tasks are ready.
#[test]
fn driver_gets_turns_between_long_polls() {
    const TASKS: usize = 200;
    on_every_driver(|setup| {
        setup.run(async {
            let turns = || RuntimeMetrics::current().unwrap().driver.turns;
            let mut peers = Vec::new();
            for _ in 0..TASKS {
                let (mut one, other) = UnixStream::pair().unwrap();
                peers.push(other);
                let task = spawn(async move {
                    let mut receiving = pin!(one.recv());
                    poll_fn(|context| {
                        assert!(receiving.as_mut().poll(context).is_pending());
                        let started = std::time::Instant::now();
                        while started.elapsed() < Duration::from_micros(100) {}
                        Poll::Ready(())
                    })
                    .await;
                });
                task.detach();
            }
            let first = turns();
            let last = spawn(async move { turns() }).await.unwrap();
            // A turn takes about 1 ms at most, and the time is checked at least every 32 polls.
            assert!(last - first >= TASKS as u64 / 33, "{}: {} turns", setup.name, last - first);
        });
    });
}

/// A turn may leave ready tasks to the next one. The main future is polled after them.
#[test]
fn main_future_waits_until_all_ready_tasks_are_polled() {
    on_every_driver(|setup| {
        setup.run(async {
            let polled = Rc::new(Cell::new(0));
            for _ in 0..50 {
                let polled = Rc::clone(&polled);
                spawn(async move {
                    let started = std::time::Instant::now();
                    while started.elapsed() < Duration::from_micros(100) {}
                    polled.set(polled.get() + 1);
                })
                .detach();
            }
            yield_now().await;
            assert_eq!(polled.get(), 50, "{}", setup.name);
        });
    });
}

/// The task drops what its handle has left: the waker, or the result.
#[test]
fn detached_task_contains_panics_of_the_waker_and_of_the_result() {
    struct PanicsOnDrop;
    impl Wake for PanicsOnDrop {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("deliberate");
        }
    }
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let polls = Rc::new(Cell::new(0));
            let counted = Rc::clone(&polls);
            let mut task = spawn(async move {
                for _ in 0..3 {
                    counted.set(counted.get() + 1);
                    yield_now().await;
                }
                PanicsOnDrop
            });
            let waker = Waker::from(Arc::new(PanicsOnDrop));
            let pending = Pin::new(&mut task).poll(&mut Context::from_waker(&waker));
            assert!(pending.is_pending());
            // The handle has registered a clone.
            drop(waker);
            drop(task);
            for _ in 0..5 {
                yield_now().await;
            }
            assert_eq!(polls.get(), 3, "{}", setup.name);
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"!").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"!"[..]));
        });
    });
}

#[test]
fn task_that_spawns_and_panics_while_dropped_is_contained() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            spawn(std::future::pending::<()>()).detach();
            panic!("deliberate, while dropped");
        }
    }
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        runtime.block_on(async {
            let guard = PanicsOnDrop;
            spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            })
            .detach();
            yield_now().await;
        });
        drop(runtime);
    });
}

#[test]
fn nested_block_on_panics() {
    on_both_drivers(|setup| {
        let inner = setup.runtime();
        let refused = setup.run(async {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inner.block_on(async {}))).is_err()
        });
        assert!(refused);
        inner.block_on(async {});
        assert!(std::panic::catch_unwind(|| spawn(async {})).is_err(), "spawn must panic without a runtime");
    });
}

#[test]
fn other_threads_spawn_and_wait() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let handle = runtime.handle();
        let (mut client, mut server) = runtime.block_on(pair()).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|thread_number| {
                let handle = handle.clone();
                thread::spawn(move || {
                    // A second runtime waits for tasks on the first.
                    let waiter = crate::common::both_drivers().pop().unwrap().runtime();
                    waiter.block_on(async {
                        let mut sum = 0;
                        for number in 0..200 {
                            sum += handle.spawn(async move { number * thread_number }).await.unwrap();
                        }
                        sum
                    })
                })
            })
            .collect();
        let sums = runtime.block_on(async move {
            // Meanwhile, the second runtime runs its own tasks.
            let echoing = spawn(async move { echo(&mut server).await });
            while threads.iter().any(|thread| !thread.is_finished()) {
                client.write_all(b"x").await.unwrap();
                assert_eq!(client.recv().await.unwrap().as_deref(), Some(&b"x"[..]));
            }
            drop(client);
            echoing.await.unwrap().unwrap();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(sums, [0, 19_900, 39_800, 59_700]);
    });
}

#[test]
fn sleeping_runtime_is_woken_by_other_threads() {
    on_every_driver(|setup| {
        // An idle runtime sleeps until it is woken: no timer ends its wait.
        let shared = Arc::new((AtomicUsize::new(0), Mutex::new(None::<Waker>)));
        let waking = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            for round in 1..=300 {
                if round % 3 == 0 {
                    thread::sleep(Duration::from_micros(200));
                }
                waking.0.store(round, Ordering::SeqCst);
                if let Some(waker) = waking.1.lock().unwrap().take() {
                    waker.wake();
                }
            }
        });
        setup.run(poll_fn(|context| {
            *shared.1.lock().unwrap() = Some(context.waker().clone());
            if shared.0.load(Ordering::SeqCst) == 300 { Poll::Ready(()) } else { Poll::Pending }
        }));
        thread.join().unwrap();
    });
}

/// A turn may receive the wake-up while it completes sends or polls for work. The turn must not block afterwards.
#[test]
fn wake_up_is_not_lost_when_turn_has_other_work() {
    on_every_driver(|setup| {
        let shared = Arc::new((AtomicUsize::new(0), Mutex::new(None::<Waker>), AtomicUsize::new(0)));
        let ringing = Arc::clone(&shared);
        const ROUNDS: usize = 3000;
        let thread = thread::spawn(move || {
            for round in 1..=ROUNDS {
                // Each wake-up comes at a different moment while the worker prepares to sleep.
                for _ in 0..round % 100 * 20 {
                    std::hint::spin_loop();
                }
                ringing.0.store(round, Ordering::SeqCst);
                if let Some(waker) = ringing.1.lock().unwrap().take() {
                    waker.wake();
                }
                while ringing.2.load(Ordering::SeqCst) < round {
                    std::hint::spin_loop();
                    thread::yield_now();
                }
            }
        });
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            for round in 1..=ROUNDS {
                poll_fn(|context| {
                    *shared.1.lock().unwrap() = Some(context.waker().clone());
                    if shared.0.load(Ordering::SeqCst) >= round { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                client.write_all(b"x").await.unwrap();
                // Requests a completion for the send, so that the next turn handles it. No task is waiting for it.
                drop(crate::common::poll_at_most(1, client.flush()).await);
                if round % 50 == 0 {
                    let mut received = [0; 50];
                    server.read_exact(&mut received).await.unwrap();
                }
                shared.2.store(round, Ordering::SeqCst);
            }
        });
        thread.join().unwrap();
    });
}

#[test]
fn runtimes_wake_each_other() {
    // Two rings wake each other through MSG_RING; all other pairs use an eventfd. All pairs are tested.
    let mut setups = both_drivers();
    setups.push(setups[0].with(|options| options.testing.disabled_features.msg_ring = true));
    setups.push(setups[0].with(|options| options.testing.disabled_features.defer_taskrun = true));
    on_each(setups.clone(), move |one| {
        for other in &setups {
            if other.builder().build().is_ok() {
                ping_pong(one, other);
            }
        }
    });
}

fn ping_pong(one: &Setup, other: &Setup) {
    const ROUNDS: usize = 200;
    let (handles, other_handles) = mpsc::channel::<Handle>();
    let end = Flag::default();
    let (other, ended) = (other.clone(), end.clone());
    let thread = thread::spawn(move || {
        let runtime = other.runtime();
        handles.send(runtime.handle()).unwrap();
        runtime.block_on(ended.wait());
    });
    let handle = other_handles.recv().unwrap();
    let runtime = one.runtime();
    runtime.block_on(async {
        let mine = runtime.handle();
        for round in 0..ROUNDS {
            // Spawns a task on the other runtime. That task spawns a task on this runtime and awaits it.
            let mine = mine.clone();
            let answer = handle.spawn(async move { mine.spawn(async move { round * 2 }).await.unwrap() + 1 });
            assert_eq!(answer.await.unwrap(), round * 2 + 1);
        }
    });
    // The other runtime is woken although the task that wakes it continues to run.
    let (report, reports) = mpsc::channel();
    runtime.block_on(async {
        handle.spawn(async move { report.send(()).unwrap() }).detach();
        let reported = reports.recv_timeout(hang_timeout());
        reported.expect("the wake-up waits for the next turn");
    });
    // The other runtime is woken even though this runtime is no longer running.
    let (report, reports) = mpsc::channel();
    runtime.block_on(async {
        handle.spawn(async move { report.send(()).unwrap() }).detach();
    });
    reports.recv_timeout(hang_timeout()).expect("the wake-up was left in a queue");
    // The same applies to waking the other runtime's main future.
    runtime.block_on(async { end.raise() });
    thread.join().unwrap();
}

#[test]
fn tasks_sent_to_dropped_runtime_are_cancelled() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let handle = runtime.handle();
        let early = handle.spawn(async { 1 });
        drop(runtime);
        let late = handle.spawn(async { 2 });
        setup.run(async {
            assert!(!early.await.unwrap_err().is_panic());
            assert!(!late.await.unwrap_err().is_panic());
        });
    });
}

#[test]
fn task_can_be_aborted_from_another_thread() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let dropped = Arc::new(AtomicUsize::new(0));
        struct Guard(Arc<AtomicUsize>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        runtime.block_on(async {
            let (mut client, server) = pair().await.unwrap();
            let guard = Guard(Arc::clone(&dropped));
            // The future is bound to this thread, but its handle is not.
            let handle = spawn(async move {
                let _held = (guard, server);
                std::future::pending::<()>().await;
            });
            yield_now().await;
            let thread = thread::spawn(move || handle.abort());
            assert!(client.recv().await.unwrap().is_none(), "its stream must be closed on this thread");
            thread.join().unwrap();
            assert_eq!(dropped.load(Ordering::SeqCst), 1);
        });
    });
}

#[test]
fn yielding_lets_all_tasks_run() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let counts: Rc<[Cell<u64>; 3]> = Rc::default();
            let tasks: Vec<_> = (0..3)
                .map(|number| {
                    let counts = Rc::clone(&counts);
                    spawn(async move {
                        loop {
                            counts[number].set(counts[number].get() + 1);
                            yield_now().await;
                        }
                    })
                })
                .collect();
            for _ in 0..1000 {
                yield_now().await;
            }
            // Timers fire and sockets make progress even though some tasks are always ready.
            sleep(Duration::from_millis(2)).await;
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"turn").await.unwrap();
            let mut answer = [0; 4];
            server.read_exact(&mut answer).await.unwrap();
            let counted: Vec<_> = counts.iter().map(Cell::get).collect();
            assert!(
                counted.iter().all(|count| count.abs_diff(counted[0]) <= 1 && *count >= 1000),
                "{counted:?}"
            );
            tasks.iter().for_each(anello::JoinHandle::<()>::abort);
        });
    });
}

#[test]
fn workers_share_a_port() {
    on_both_drivers(|setup| {
        let cores = allowed_cores().unwrap();
        let (report, reports) = mpsc::channel();
        let report = Mutex::new(report);
        let address = std::net::TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
        let workers = Workers::builder().runtime(setup.builder()).cores(cores.clone());
        let workers = workers
            .start(move |worker| {
                let report = report.lock().unwrap().clone();
                async move {
                    let listener = TcpListener::builder().reuse_port(true).bind(address).unwrap();
                    report.send(worker.clone()).unwrap();
                    let mut served = 0;
                    loop {
                        let mut stream = listener.accept().await.unwrap();
                        served += 1;
                        if stream.recv().await.unwrap().as_deref() == Some(&b"end"[..]) {
                            return (worker.index, served);
                        }
                        stream.write_all(b"served").await.unwrap();
                    }
                }
            })
            .unwrap();
        assert_eq!(workers.handles().len(), cores.len());
        let mut started: Vec<_> = (0..cores.len()).map(|_| reports.recv().unwrap()).collect();
        started.sort_by_key(|worker| worker.index);
        for (index, worker) in started.iter().enumerate() {
            assert_eq!((worker.index, worker.count, worker.core), (index, cores.len(), Some(cores[index])));
        }
        assert_eq!(thread_affinity(&workers.handles()[0]), vec![cores[0]]);
        setup.run(async {
            for _ in 0..50 {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(b"more").await.unwrap();
                let mut answer = [0; 6];
                client.read_exact(&mut answer).await.unwrap();
            }
            // A worker that exits leaves the `SO_REUSEPORT` group, but may already have been assigned connections.
            while let Ok(mut client) = TcpStream::connect(address).await {
                client.write_all(b"end").await.ok();
                client.recv().await.ok();
            }
        });
        let ended = workers.join().unwrap();
        assert_eq!(ended.iter().map(|(index, _)| *index).collect::<Vec<_>>(), Vec::from_iter(0..cores.len()));
        assert!(ended.iter().map(|(_, served)| served).sum::<usize>() >= 50 + cores.len());
    });
}

fn thread_affinity(handle: &Handle) -> Vec<usize> {
    let cores = handle.spawn(async { allowed_cores().unwrap() });
    both_drivers().pop().unwrap().run(cores).unwrap()
}

#[test]
fn worker_start_error_contains_cause() {
    let error = Workers::builder().cores(vec![9999]).start(|_| async {}).unwrap_err();
    assert!(error.to_string().contains("core 9999"), "{error}");
    let error = Workers::builder().cores(vec![]).start(|_| async {}).unwrap_err();
    assert!(error.to_string().contains("list of cores is empty"), "{error}");
    let error = Workers::builder().unpinned_workers(0).start(|_| async {}).unwrap_err();
    assert!(error.to_string().contains("count is 0"), "{error}");
    let workers = Workers::builder().start(|worker| async move {
        assert_ne!(worker.index, 0, "deliberate");
    });
    assert!(workers.unwrap().join().unwrap_err().to_string().contains("panicked"));
}
