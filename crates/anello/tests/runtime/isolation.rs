//! Isolation: late timers, panicking wakers and destructors, and busy tasks do not affect other tasks.

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anello::net::UnixListener;
use anello::sync::CancellationToken;
use anello::task::MAX_BLOCKING_THREADS;
use anello::time::{interval, monotonic_now, sleep, timeout};
use anello::{JoinHandle, Workers, spawn, spawn_blocking, task, yield_now};

use crate::common::*;

#[test]
fn late_interval_lets_other_tasks_run() {
    on_both_drivers(|setup| {
        setup.run(async {
            let other = Rc::new(Cell::new(0));
            let counting = Rc::clone(&other);
            spawn(async move {
                loop {
                    counting.set(counting.get() + 1);
                    yield_now().await
                }
            })
            .detach();
            let mut ticks = interval(Duration::from_micros(100));
            for _ in 0..2000 {
                ticks.tick().await;
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(150) {}
            }
            assert!(other.get() > 10);
        });
    });
}

#[test]
fn zero_length_sleeps_let_other_tasks_run() {
    on_both_drivers(|setup| {
        setup.run(async {
            let stop = Rc::new(Cell::new(false));
            let stopping = Rc::clone(&stop);
            spawn(async move { stopping.set(true) }).detach();
            while !stop.get() {
                sleep(Duration::ZERO).await;
            }
        });
    });
}

struct PanicsOnDrop;
impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("dropped")
        }
    }
}

#[test]
fn panicking_abandoned_result_does_not_affect_blocking_pool() {
    within(hang_timeout(), "pool", || {
        both_drivers().pop().unwrap().run(async {
            for _ in 0..MAX_BLOCKING_THREADS + 8 {
                let (gone, is_gone) = mpsc::channel::<()>();
                drop(spawn_blocking(move || {
                    is_gone.recv().ok();
                    PanicsOnDrop
                }));
                // The result is no longer awaited.
                drop(gone);
                sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(spawn_blocking(|| 5).await.unwrap(), 5);
        });
    });
}

#[test]
fn panicking_detached_result_does_not_affect_other_tasks() {
    on_both_drivers(|setup| {
        let runtime = setup.runtime();
        let others = Arc::new(AtomicUsize::new(0));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                spawn(async { PanicsOnDrop }).detach();
                for _ in 0..3 {
                    let others = Arc::clone(&others);
                    spawn(async move {
                        others.fetch_add(1, Ordering::SeqCst);
                    })
                    .detach();
                }
                sleep(Duration::from_millis(5)).await;
            })
        }));
        runtime.block_on(async { sleep(Duration::from_millis(20)).await });
        assert_eq!((result.is_err(), others.load(Ordering::SeqCst)), (false, 3));
    });
}

/// As in tokio, the panic concerns neither the owner of the handle nor the task.
#[test]
fn panic_of_dropped_result_does_not_unwind() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let finished = spawn(async { PanicsOnDrop });
            yield_now().await;
            assert!(finished.is_finished());
            drop(finished);

            let unfinished = spawn(async {
                yield_now().await;
                PanicsOnDrop
            });
            yield_now().await;
            drop(unfinished);
            sleep(Duration::from_millis(1)).await;

            let blocking = spawn_blocking(|| PanicsOnDrop);
            while !blocking.is_finished() {
                yield_now().await;
            }
            let abort = blocking.abort_handle();
            drop(blocking);
            drop(abort);
        });
    });
}

#[test]
fn workers_are_notified_and_joined() {
    on_both_drivers(|setup| {
        let inner = setup.clone();
        setup.run(async move {
            let stop = Flag::default();
            let stopped = stop.clone();
            let workers = Workers::builder()
                .unpinned_workers(1)
                .runtime(inner.builder())
                .start(move |_| {
                    let stopped = stopped.clone();
                    async move { stopped.wait().await }
                })
                .unwrap();
            // Gives the workers time to go to sleep.
            sleep(Duration::from_millis(50)).await;
            stop.raise();
            workers.join().unwrap();
        });
    });
}

/// Tasks that complete, panic, and abort each other and themselves. Wakers are called, cloned and dropped on other
/// threads, including after the runtime is dropped. Some handles are joined.
#[test]
fn random_task_and_thread_operations() {
    on_both_drivers(|setup| {
        for seed in 0..8 {
            eprintln!("{}: seed {seed}", setup.name);
            let (sender, wakers) = mpsc::channel::<Waker>();
            let (handles_in, handles) = mpsc::channel::<JoinHandle<Vec<u8>>>();
            let threads: Vec<thread::JoinHandle<()>> = vec![
                thread::spawn(move || {
                    let (mut random, mut kept) = (Rng::with_seed(seed), Vec::new());
                    while let Ok(waker) = wakers.recv() {
                        let _: () = match random.usize(..5) {
                            0 => waker.wake(),
                            1 => waker.wake_by_ref(),
                            2 => kept.push(waker),
                            3 => {
                                let clone = waker.clone();
                                drop(waker);
                                clone.wake();
                            }
                            _ => {}
                        };
                        if random.usize(..20) == 0 {
                            kept.drain(..).for_each(Waker::wake)
                        }
                    }
                    // The runtime has been dropped.
                    kept.into_iter().for_each(Waker::wake);
                }),
                thread::spawn(move || {
                    let (mut random, mut kept) = (Rng::with_seed(seed + 1), Vec::new());
                    while let Ok(handle) = handles.recv() {
                        match random.usize(..4) {
                            0 => handle.abort(),
                            1 => drop(handle),
                            2 => {
                                handle.abort();
                                handle.abort();
                                kept.push(handle)
                            }
                            _ => kept.push(handle),
                        }
                        if random.usize(..10) == 0 {
                            kept.clear()
                        }
                    }
                    kept.iter().for_each(JoinHandle::abort);
                }),
            ];
            static SILENCED: Once = Once::new();
            SILENCED.call_once(|| {
                add_panic_hook(|info| {
                    let text = info.payload().downcast_ref::<&str>();
                    text.is_none_or(|text| !["deliberate", "dropped"].contains(text))
                });
            });
            let runtime = setup.runtime();
            let handle = runtime.handle();
            runtime.block_on(async {
                let mut random = Rng::with_seed(seed + 2);
                let mut own = Vec::new();
                for round in 0..1500 {
                    let (sender, kind, polls) = (sender.clone(), random.usize(..8), random.usize(..6));
                    let local = Rc::new(Cell::new(0));
                    let mut left = polls;
                    let future = async move {
                        let data = vec![round as u8; 10 + kind * 100];
                        poll_fn(|context| {
                            local.set(local.get() + 1);
                            if left == 0 {
                                return Poll::Ready(());
                            }
                            left -= 1;
                            sender.send(context.waker().clone()).ok();
                            if kind % 2 == 0 {
                                context.waker().wake_by_ref()
                            }
                            Poll::Pending
                        })
                        .await;
                        match kind {
                            0 => panic!("deliberate"),
                            1 => {
                                let _drop = PanicsOnDrop;
                                yield_now().await;
                            }
                            2 => pending::<()>().await,
                            3 => sleep(Duration::from_micros(200)).await,
                            _ => {}
                        }
                        data
                    };
                    let spawned = spawn(future);
                    match random.usize(..4) {
                        0 => spawned.detach(),
                        1 => {
                            handles_in.send(spawned).ok();
                        }
                        2 => own.push(spawned),
                        _ => {
                            let other = handle.spawn(async { vec![1; 100] });
                            handles_in.send(other).ok();
                            own.push(spawned)
                        }
                    }
                    if random.usize(..3) == 0 {
                        yield_now().await
                    }
                    if random.usize(..50) == 0 {
                        sleep(Duration::from_micros(100)).await
                    }
                    if random.usize(..4) == 0 && !own.is_empty() {
                        let one = own.swap_remove(random.usize(..own.len()));
                        if random.usize(..2) == 0 {
                            one.abort()
                        }
                        timeout(Duration::from_micros(300), one).await.ok();
                    }
                }
                drop((own, handles_in, sender));
            });
            drop(runtime);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    });
}

/// Polls a future once with a waker that panics. Returns whether the future is pending.
fn poll_with_panicking_waker<F: Future>(future: Pin<&mut F>) -> bool {
    let waker = Waker::from(Arc::new(PanicsOnWake::default()));
    future.poll(&mut Context::from_waker(&waker)).is_pending()
}

#[test]
fn panicking_waker_of_join_handle_does_not_affect_other_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut watched = pin!(spawn(yield_now()));
            assert!(poll_with_panicking_waker(watched.as_mut()));
            let others: Vec<_> = (0..10).map(|number| spawn(async move { number })).collect();
            for (number, other) in others.into_iter().enumerate() {
                assert_eq!(other.await.unwrap(), number);
            }
            watched.await.unwrap();
        });
    });
}

#[test]
fn panicking_waker_of_token_does_not_affect_other_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let token = CancellationToken::new();
            let mut watched = pin!(token.cancelled());
            assert!(poll_with_panicking_waker(watched.as_mut()));
            let child = token.child_token();
            let waiting = [&token, &token, &child].map(|token| spawn(token.clone().cancelled_owned()));
            yield_now().await;
            token.cancel();
            for task in waiting {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn panicking_waker_of_sleep_does_not_affect_other_sleeps() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut sleeps: Vec<_> = (0..10).map(|_| Box::pin(sleep(Duration::from_millis(1)))).collect();
            let last = sleeps.split_off(5);
            // On a busy machine, some sleeps may already have elapsed.
            sleeps.retain_mut(|sleep| poll_with_panicking_waker(sleep.as_mut()));
            for sleep in last {
                sleep.await;
            }
        });
    });
}

#[test]
fn panicking_waker_of_stream_does_not_affect_other_streams() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut pairs = Vec::new();
            for _ in 0..4 {
                pairs.push(pair().await.unwrap());
            }
            for (client, _) in &mut pairs[..2] {
                assert!(poll_with_panicking_waker(pin!(client.recv())));
            }
            // Sent by one task, so that the bytes arrive in one turn.
            for (_, server) in &mut pairs {
                server.send(b"ciao".to_vec()).await.unwrap();
            }
            for (client, _) in &mut pairs {
                assert_eq!(&*client.recv().await.unwrap().unwrap(), b"ciao");
            }
        });
    });
}

/// Maximum number of times a task yields before an operation that was already ready completes: once for the driver to
/// process it, once for the waiting task to run, and a few more times if the operation takes several turns.
const MAX_YIELDS: usize = 16;

#[test]
fn yielding_task_lets_driver_run_each_time() {
    on_every_driver(|setup| {
        if setup.options.submission_polling.is_some() {
            // A kernel thread accepts connections independently of the runtime's turns.
            return;
        }
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let accepted = Rc::new(Cell::new(false));
            let accepting = Rc::clone(&accepted);
            spawn(async move {
                listener.accept().await.unwrap();
                accepting.set(true);
            })
            .detach();
            // Gives the driver time to start the accept operation.
            for _ in 0..MAX_YIELDS {
                yield_now().await;
            }
            // The call queues the connection. Over TCP, another thread of the kernel may do so later.
            let _client = std::os::unix::net::UnixStream::connect(path).unwrap();
            let yields = (0..TURNS).take_while(|_| !accepted.get());
            let mut count = 0;
            for _ in yields {
                yield_now().await;
                count += 1;
            }
            assert!(count <= MAX_YIELDS, "{}: {count} yields", setup.name);
        });
    });
}

/// Processes always-ready items until `done` is set. Returns the number of items processed after the deadline.
async fn process_until(done: Rc<Cell<bool>>, deadline: Duration) -> usize {
    let mut late = 0;
    for _ in 0..1_000_000 {
        task::consume_budget().await;
        if done.get() {
            return late;
        }
        late += usize::from(monotonic_now() >= deadline);
    }
    panic!("the sleep did not complete");
}

#[test]
fn consume_budget_lets_timers_fire_while_task_is_always_ready() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let done = Rc::new(Cell::new(false));
            let pause = Duration::from_millis(1);
            let sleep = sleep(pause);
            // Read after the deadline of the timer has been set, so that it is never before that.
            let deadline = monotonic_now() + pause;
            // Timers fire slightly late. The task must not add to the delay.
            let processing = spawn(process_until(Rc::clone(&done), deadline + Duration::from_millis(2)));
            sleep.await;
            done.set(true);
            let late = processing.await.unwrap();
            // After the deadline, the task uses at most the rest of its current budget and the next budget.
            assert!(late <= 256, "{}: {late} items after the deadline", setup.name);
        });
    });
}

#[test]
fn unconstrained_future_has_no_budget() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let polls = Rc::new(Cell::new(0));
            let counting = Rc::clone(&polls);
            let mut items = pin!(async {
                for _ in 0..10_000 {
                    task::consume_budget().await;
                }
            });
            let counted = poll_fn(|context| {
                counting.set(counting.get() + 1);
                items.as_mut().poll(context)
            });
            task::unconstrained(counted).await;
            assert_eq!(polls.get(), 1);
            let yields = poll_at_most(1, async {
                for _ in 0..10_000 {
                    task::consume_budget().await;
                }
            });
            assert!(yields.await.is_none(), "the budget must be in effect again");
        });
    });
}

/// A future whose destructor panics. Its result, which replaces the future, also panics in its destructor.
#[test]
fn nested_panics_of_future_and_result_do_not_affect_other_tasks() {
    struct Ending(PanicsOnDrop);

    impl Future for Ending {
        type Output = PanicsOnDrop;

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<PanicsOnDrop> {
            Poll::Ready(PanicsOnDrop)
        }
    }

    on_both_drivers(|setup| {
        setup.run(async {
            let ending = spawn(Ending(PanicsOnDrop));
            let others: Vec<_> = (0..3).map(|n| spawn(async move { n })).collect();
            assert!(ending.await.err().expect("no result").is_panic());
            for (n, other) in others.into_iter().enumerate() {
                assert_eq!(other.await.unwrap(), n);
            }
        });
    });
}
