//! Faults that can occur in every operation: its future is dropped, leaked, moved to another runtime or polled with a
//! waker that misbehaves, and its runtime or thread ends.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anello::task::JoinSet;
use anello::{Runtime, sync, yield_now};

use super::{Kind, Operation, Waiting, kinds};
use crate::common::{
    Setup, all_drivers, both_drivers, hang_timeout, in_own_process, on_each, simulated_drivers,
};
use crate::deliberate::{contain, panic_deliberately, silence};

/// Runs the test for each operation that the setup supports. The last name printed is that of an operation that fails or
/// hangs. The tests run in child processes, because descriptors, signals and child processes are process-wide.
fn for_each_kind(setups: Vec<Setup>, test: impl Fn(&Setup, &Kind) + Send + Sync + 'static) {
    on_each(setups, move |setup| {
        for kind in kinds(setup) {
            println!("{}: {}", setup.name, kind.name);
            test(setup, &kind);
        }
    });
}

fn everywhere() -> Vec<Setup> {
    all_drivers().into_iter().chain(simulated_drivers()).collect()
}

fn both_drivers_and_sim() -> Vec<Setup> {
    both_drivers().into_iter().chain(simulated_drivers()).collect()
}

/// Polls the future up to `polls` times. Returns whether it has completed.
async fn poll_times(waiting: &mut Waiting, polls: usize) -> bool {
    for _ in 0..polls {
        if poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_ready())).await {
            return true;
        }
        yield_now().await;
    }
    false
}

/// Starts an operation and polls it once. If it completes immediately, starts it again, up to a limit: a future that is
/// first polled on another runtime waits for that one.
async fn start_waiting(kind: &Kind) -> (Operation, Waiting) {
    let operation = kind.make().await;
    let mut waiting = operation.start();
    for _ in 0..10 {
        if !poll_times(&mut waiting, 1).await {
            break;
        }
        waiting = operation.start();
    }
    (operation, waiting)
}

#[test]
fn fault_10_dropped_operations_lose_nothing() {
    in_own_process(|| {
        on_each(everywhere(), |setup| {
            let runtime = setup.runtime();
            for kind in kinds(setup) {
                println!("{}: {}", setup.name, kind.name);
                runtime.block_on(drop_at_each_poll(&kind));
            }
        });
    });
}

async fn drop_at_each_poll(kind: &Kind) {
    for polls in 0..3 {
        let operation = kind.make().await;
        let mut waiting = operation.start();
        if poll_times(&mut waiting, polls).await {
            continue;
        }
        drop(waiting);
        // The event occurs between the last poll and the drop.
        let mut waiting = operation.start();
        if poll_times(&mut waiting, 1).await {
            continue;
        }
        operation.complete();
        for _ in 0..polls {
            yield_now().await;
        }
        drop(waiting);
        operation.start().await.unwrap();
    }
}

#[test]
fn fault_11_operations_leave_no_descriptors() {
    in_own_process(|| {
        for_each_kind(both_drivers(), |setup, kind| {
            for round in 0..6 {
                let before = open_descriptors();
                let runtime = setup.runtime();
                let (operation, mut waiting) = runtime.block_on(async {
                    let operation = kind.make().await;
                    drop(operation.start());
                    let mut waiting = operation.start();
                    if poll_times(&mut waiting, round % 2).await {
                        waiting = operation.start();
                    }
                    (operation, waiting)
                });
                match round / 2 {
                    0 => {
                        runtime.block_on(async { drop((waiting, operation)) });
                        drop(runtime);
                    }
                    1 => drop((runtime, waiting, operation)),
                    _ => {
                        drop(runtime);
                        operation.complete();
                        setup.run(async { poll_times(&mut waiting, 1).await });
                        drop((operation, waiting));
                    }
                }
                // An operation may be running on another thread, possibly since before the count was taken.
                let started = Instant::now();
                while open_descriptors() > before {
                    let open = open_descriptors();
                    let limit = hang_timeout() / 4;
                    assert!(
                        started.elapsed() < limit,
                        "round {round}: {open} descriptors are open, {before} before"
                    );
                    thread::yield_now();
                }
            }
        });
    });
}

/// Returns the number of open descriptors of this process.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Order in which the runtime and the future are dropped.
#[derive(Clone, Copy, Debug)]
enum Order {
    RuntimeFirst,
    FutureFirst,
    /// The future is leaked, and then the runtime is dropped.
    Leak,
}

#[test]
fn fault_15_operations_outlive_their_runtime_and_move_to_another() {
    in_own_process(|| {
        for_each_kind(both_drivers_and_sim(), |setup, kind| {
            for (order, is_completed) in [
                (Order::RuntimeFirst, false),
                (Order::RuntimeFirst, true),
                (Order::FutureFirst, false),
                (Order::FutureFirst, true),
                (Order::Leak, true),
            ] {
                let (first, second) = (runtime_without_drain(setup), runtime_without_drain(setup));
                let (operation, mut waiting) = first.block_on(start_waiting(kind));
                if is_completed {
                    operation.complete();
                }
                let poll_elsewhere = |waiting: &mut Waiting| {
                    second.block_on(poll_times(waiting, 2))
                        || (!kind.needs_runtime
                            && waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready())
                };
                match order {
                    Order::RuntimeFirst => {
                        drop(first);
                        poll_elsewhere(&mut waiting);
                        drop(operation);
                        drop((second, waiting));
                    }
                    Order::FutureFirst => {
                        let is_ready = poll_elsewhere(&mut waiting);
                        if is_completed && !is_ready {
                            first.block_on(waiting).unwrap();
                        } else {
                            drop(waiting);
                        }
                        first.block_on(yield_now());
                    }
                    Order::Leak => {
                        poll_elsewhere(&mut waiting);
                        leak((waiting, operation));
                        first.block_on(yield_now());
                    }
                }
            }
        });
    });
}

fn runtime_without_drain(setup: &Setup) -> Runtime {
    setup.builder().drain_timeout(Duration::ZERO).build().unwrap()
}

/// Leaks a value like `mem::forget`, but keeps it reachable for leak checkers.
fn leak<T>(leaked: T) {
    static LEAKED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let address = std::ptr::from_mut(Box::leak(Box::new(leaked))).expose_provenance();
    LEAKED.lock().unwrap().push(address);
}

thread_local! {
    /// Dropped while the thread exits, in order.
    static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn fault_15_operations_are_dropped_while_their_thread_exits() {
    in_own_process(|| {
        for_each_kind(both_drivers_and_sim(), |setup, kind| {
            for round in 0..6 {
                let (setup, kind) = (setup.clone(), kind.clone());
                let exiting = thread::spawn(move || {
                    // Thread-local variables are dropped in the order of their first use, or in the reverse order.
                    if round % 2 == 0 {
                        KEPT.with(|_| {});
                    }
                    let runtime = runtime_without_drain(&setup);
                    let (operation, waiting) = runtime.block_on(start_waiting(&kind));
                    let kept: Vec<Box<dyn Any>> = match round / 2 {
                        0 => vec![Box::new(waiting), Box::new(operation), Box::new(runtime)],
                        1 => vec![Box::new(runtime), Box::new(operation), Box::new(waiting)],
                        _ => {
                            // Dropped together with the runtime's tasks.
                            let task = runtime.spawn(async {
                                let _kept = (operation, waiting);
                                std::future::pending::<()>().await;
                            });
                            task.detach();
                            runtime.block_on(yield_now());
                            vec![Box::new(runtime)]
                        }
                    };
                    KEPT.with(|stored| stored.borrow_mut().extend(kept));
                });
                exiting.join().unwrap();
            }
        });
    });
}

/// A waker that panics when it is called and when it is dropped.
struct Hostile {
    is_armed: Arc<AtomicBool>,
}

impl Wake for Hostile {
    fn wake(self: Arc<Self>) {
        panic_deliberately();
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        if self.is_armed.load(Ordering::Relaxed) {
            panic_deliberately();
        }
    }
}

#[test]
fn fault_17_panicking_wakers_of_operations_are_contained() {
    in_own_process(|| {
        silence();
        for_each_kind(both_drivers_and_sim(), |setup, kind| {
            for completes_first in [false, true] {
                let runtime = setup.runtime();
                let is_armed = Arc::new(AtomicBool::new(true));
                runtime.block_on(async {
                    let waker = Waker::from(Arc::new(Hostile { is_armed: Arc::clone(&is_armed) }));
                    let operation = kind.make().await;
                    let mut waiting = operation.start();
                    let mut polled = Poll::Ready(Ok(()));
                    // An operation that yields calls the waker.
                    contain(|| polled = waiting.as_mut().poll(&mut Context::from_waker(&waker)));
                    contain(|| drop(waker));
                    if polled.is_ready() {
                        return contain(|| drop(operation));
                    }
                    if completes_first {
                        contain(|| operation.complete());
                        for _ in 0..3 {
                            yield_now().await;
                        }
                        contain(|| drop(waiting));
                    } else {
                        // Another waker replaces the hostile one.
                        contain(|| {
                            drop(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())));
                        });
                        contain(|| drop(waiting));
                        operation.complete();
                    }
                    // The hostile waker may still be stored, and is then dropped by one of the polls.
                    let mut waiting = operation.start();
                    poll_fn(|context| {
                        let mut polled = Poll::Ready(Ok(()));
                        contain(|| polled = waiting.as_mut().poll(context));
                        polled
                    })
                    .await
                    .unwrap();
                    drop(waiting);
                    contain(|| drop(operation));
                    // The other operations of the runtime are unaffected.
                    let operation = kind.make().await;
                    operation.complete();
                    operation.start().await.unwrap();
                });
                // The threads of the process may still hold the waker.
                is_armed.store(false, Ordering::Relaxed);
            }
        });
    });
}

/// Tasks of another worker that join a set, and handles that abort them, used from any thread.
#[test]
fn fault_14_join_sets_and_aborts_wake_other_workers() {
    in_own_process(|| {
        on_each(all_drivers(), |setup| {
            let (handles, received) = std::sync::mpsc::channel();
            let worker = {
                let setup = setup.clone();
                thread::spawn(move || {
                    let end = sync::CancellationToken::new();
                    let runtime = setup.runtime();
                    handles.send((runtime.handle(), end.clone())).unwrap();
                    runtime.block_on(end.cancelled());
                })
            };
            let (handle, end) = received.recv().unwrap();
            let started = Arc::new(AtomicUsize::new(0));
            setup.run(async {
                for round in 0..100 {
                    let mut set = JoinSet::new();
                    let started = Arc::clone(&started);
                    let running = async move {
                        started.fetch_add(1, Ordering::Relaxed);
                        yield_now().await;
                    };
                    let abort = set.spawn_on(std::future::pending(), &handle);
                    set.spawn_on(running, &handle);
                    let aborting = thread::spawn(move || abort.abort());
                    assert!(set.spawn_blocking(|| ()).id() != set.spawn(yield_now()).id());
                    let mut cancelled = 0;
                    while let Some(result) = set.join_next().await {
                        cancelled += usize::from(result.is_err());
                    }
                    assert_eq!(cancelled, 1, "round {round}");
                    aborting.join().unwrap();
                }
            });
            assert_eq!(started.load(Ordering::Relaxed), 100);
            end.cancel();
            worker.join().unwrap();
        });
    });
}
