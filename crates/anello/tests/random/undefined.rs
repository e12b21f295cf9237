//! Stress tests for unsafe code: memory that outlives its owner, futures and tasks dropped at any moment, and late
//! wake-ups. The tests make few assertions. Undefined behaviour is detected by Miri (`.ci/run miri`, only on the
//! simulated kernels) and AddressSanitizer (`.ci/nightly address`).
//!
//! | unsafe code | assumption | how it is tested here |
//! |---|---|---|
//! | tasks (`executor/task.rs`) | a waker never outlives the memory it points to, and no future is dropped twice | wakers used after the task and the runtime, and on another thread; tasks that abort themselves and each other |
//! | results (`executor/join.rs`) | only one party accesses the future and its result at a time | results taken after the runtime is dropped, handles dropped within the task |
//! | contexts (`executor/context.rs`) | the current runtime and the running task are alive | runtimes entered and left in any order, guards leaked, ids and dumps in destructors |
//! | task-local values (`executor/task_local.rs`) | a future is not moved and is dropped once | scopes dropped at every poll, with panics in destructors |
//! | receive memory (`driver/buffer`) | a buffer has one lease, and the pools live as long as any lease | chunks that outlive stream and runtime, are sent by another runtime, and are dropped in any order |
//! | operations (`driver/uring`, `driver/sim`) | memory used by an operation lives until the operation has completed | futures, streams and runtimes dropped at every poll, with sends and receives in flight |
//! | budget (`executor/coop.rs`) | a pinned wrapper pins its content | notified futures that are polled and dropped |

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::common::echo;
use anello::net::{Chunk, TcpListener, TcpStream};
use anello::time::{sleep, timeout};
use anello::{DriverOptions, JoinHandle, Runtime, ZeroCopy, spawn, sync, task, yield_now};

use crate::common::{
    ANY_PORT, Rng, Setup, all_drivers, assert_same_bytes, both_drivers, join, on_each, pair, pattern,
    simulated_drivers,
};

/// Size of a message, which spans several buffers if the buffers are small. Messages are shorter under Miri, which runs
/// the tests about a thousand times more slowly.
const MESSAGE_BYTES: usize = if cfg!(miri) { 300 } else { 5000 };

/// Larger than the number of polls that any exchange here needs.
const POLLS_LIMIT: usize = 10_000;

/// Runs the test on the `real` setups and on the simulated kernels. Under Miri, the `real` setups are skipped, because
/// Miri does not support them, and there is no watchdog, because Miri's clock runs too fast.
fn on_each_and_sim(real: fn() -> Vec<Setup>, test: impl Fn(&Setup) + Send + Sync + 'static) {
    if cfg!(miri) {
        simulated_drivers().iter().for_each(test);
    } else {
        on_each(real().into_iter().chain(simulated_drivers()).collect(), test);
    }
}

/// Creates a runtime that does not wait for peers when it is dropped.
fn runtime_without_drain(setup: &Setup) -> Runtime {
    setup.builder().drain_timeout(Duration::ZERO).build().unwrap()
}

/// Time at which the pending future is dropped.
#[derive(Clone, Copy, Debug)]
enum DropTime {
    /// While the runtime is running.
    Within,
    /// After `block_on` has returned, but before the runtime is dropped.
    Before,
    /// After the runtime has been dropped.
    After,
}

#[test]
fn fault_15_futures_dropped_at_every_poll() {
    on_each_and_sim(both_drivers, |setup| {
        for when in [DropTime::Within, DropTime::Before, DropTime::After] {
            let enough = (0..POLLS_LIMIT).step_by(if cfg!(miri) { 5 } else { 1 }).find(|polls| {
                let alive = Rc::new(());
                let ended = drop_after_polls(setup, *polls, when, &alive);
                assert_eq!(
                    Rc::strong_count(&alive),
                    1,
                    "{when:?} after {polls} polls: the future was not dropped"
                );
                ended
            });
            assert!(enough.is_some(), "{when:?}: the exchange did not complete");
        }
    });
}

/// Polls an exchange `polls` times, then drops it with its operations in flight. Returns whether it had completed.
fn drop_after_polls(setup: &Setup, polls: usize, when: DropTime, alive: &Rc<()>) -> bool {
    let runtime = runtime_without_drain(setup);
    let mut future: Pin<Box<dyn Future<Output = io::Result<()>>>> = Box::pin(exchange(Rc::clone(alive)));
    let ended = runtime.block_on(async {
        let ended = poll_times(&mut future, polls).await.map(Result::unwrap).is_some();
        if let DropTime::Within = when {
            drop(std::mem::replace(&mut future, Box::pin(async { Ok(()) })));
            // Completions for dropped operations arrive while other operations use their slots.
            exchange(Rc::clone(alive)).await.unwrap();
        }
        ended
    });
    match when {
        DropTime::Within | DropTime::Before => drop((future, runtime)),
        DropTime::After => drop((runtime, future)),
    }
    ended
}

/// Returns the result of the future if it completes within `polls` polls.
async fn poll_times<F: Future + Unpin>(future: &mut F, polls: usize) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(&mut *future).poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Connects and accepts, waits for timers, sends and receives with and without copying, and shuts down the write half.
async fn exchange(alive: Rc<()>) -> io::Result<()> {
    let opening = spawn(open_with_echo(Rc::clone(&alive)));
    let mut client = opening.await.expect("task does not panic")?;
    let message = pattern(MESSAGE_BYTES as u64, MESSAGE_BYTES);
    let mut received = Vec::new();
    let (mut reader, mut writer) = client.split();
    let writing = async {
        writer.write_all(&message).await?;
        writer.send(message.clone()).await?;
        writer.flush().await
    };
    let reading = async {
        let mut buffer = [0; 100];
        while received.len() < 2 * message.len() {
            if received.len() % 2 == 0 {
                let Ok(chunk) = timeout(Duration::from_millis(1), reader.recv()).await else { continue };
                received.extend_from_slice(&chunk?.ok_or(io::ErrorKind::UnexpectedEof)?);
            } else {
                let count = reader.read(&mut buffer).await?;
                received.extend_from_slice(&buffer[..count]);
            }
        }
        Ok::<_, io::Error>(())
    };
    let (written, read) = join(writing, reading).await;
    written.and(read)?;
    assert_same_bytes(&received, &[&message[..], &message[..]].concat());
    client.shutdown().await?;
    assert!(client.recv().await?.is_none());
    drop(alive);
    Ok(())
}

/// Returns a connection to a task that echoes all received bytes.
async fn open_with_echo(alive: Rc<()>) -> io::Result<TcpStream> {
    let listener = TcpListener::bind(ANY_PORT)?;
    let address = listener.local_addr()?;
    let (client, accepted) = join(TcpStream::connect(address), listener.accept()).await;
    let mut accepted = accepted?;
    spawn(async move {
        let _alive = alive;
        echo(&mut accepted).await
    })
    .detach();
    client
}

#[test]
fn fault_15_wakers_outlive_their_tasks_and_the_runtime() {
    on_each_and_sim(all_drivers, |setup| {
        let runtime = setup.runtime();
        let kept = Kept::default();
        runtime.block_on(async {
            kept.keep().await;
            // Wakers of tasks that have completed, wait indefinitely, have been aborted, or are never polled again.
            let done = kept.clone();
            spawn(async move { done.keep().await }).await.unwrap();
            let waiting = [kept.clone(), kept.clone()].map(|kept| {
                spawn(async move {
                    kept.keep().await;
                    kept.keep().await;
                    pending::<()>().await;
                })
            });
            yield_now().await;
            yield_now().await;
            waiting[0].abort();
            kept.wake_all();
            yield_now().await;
            kept.wake_all();
        });
        // All tasks are queued now, and no runtime is running them.
        thread::scope(|scope| {
            scope.spawn(|| kept.wake_all());
            kept.wake_all();
        });
        runtime.block_on(yield_now());
        let others = kept.clone();
        let other = thread::spawn(move || {
            others.wake_all();
            others
        });
        drop(runtime);
        let others = other.join().unwrap();
        others.wake_all();
        let last: Vec<Waker> = others.0.lock().unwrap().drain(..).collect();
        thread::spawn(move || last.into_iter().for_each(Waker::wake)).join().unwrap();
    });
}

/// Collects the wakers of tasks that await [`keep`](Self::keep).
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Waker>>>);

impl Kept {
    async fn keep(&self) {
        poll_fn(|context| {
            self.0.lock().unwrap().push(context.waker().clone());
            Poll::Ready(())
        })
        .await;
        yield_now().await;
    }

    fn wake_all(&self) {
        let wakers = self.0.lock().unwrap().clone();
        for waker in wakers {
            waker.wake_by_ref();
            drop(waker.clone());
            waker.wake();
        }
    }
}

#[test]
fn fault_15_chunks_outlive_streams_and_runtimes() {
    on_each_and_sim(all_drivers, |setup| {
        let expected = pattern(15, 4 * MESSAGE_BYTES);
        let runtime = setup.runtime();
        let chunks: Vec<Chunk> = runtime.block_on(receive_all(&expected));
        drop(runtime);
        let received: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect();
        assert_same_bytes(&received, &expected);
        // The chunks are dropped in a different order from that in which they were received, after the runtime that
        // owns the pools has been dropped.
        let (first, mut second): (Vec<_>, Vec<_>) =
            chunks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        drop(first);
        let half = second.split_off(second.len() / 2);
        second.into_iter().rev().for_each(drop);
        // The chunks are truncated and sent by a runtime that does not own the pools. The last chunk is in flight when
        // that runtime is dropped.
        let cut = half.into_iter().map(|(_, mut chunk)| {
            chunk.advance(chunk.len() / 3);
            chunk.truncate(chunk.len().div_ceil(2));
            chunk
        });
        let runtime = runtime_without_drain(setup);
        runtime.block_on(async {
            let (mut client, mut server) = pair().await.unwrap();
            for chunk in cut {
                let sent = chunk.to_vec();
                client.send(chunk).await.unwrap();
                let mut received = vec![0; sent.len()];
                server.read_exact(&mut received).await.unwrap();
                assert_same_bytes(&received, &sent);
            }
            client.write_all(b"last").await.unwrap();
            let last = server.recv().await.unwrap().unwrap();
            client.send(last).await.unwrap();
        });
    });
}

/// Sends the bytes over a connection and returns the received chunks.
async fn receive_all(bytes: &[u8]) -> Vec<Chunk> {
    let (mut client, mut server) = pair().await.unwrap();
    let sending = async {
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let receiving = async {
        let mut chunks = Vec::new();
        while let Some(chunk) = server.recv().await.unwrap() {
            chunks.push(chunk);
        }
        chunks
    };
    join(sending, receiving).await.1
}

#[test]
fn fault_15_sends_in_flight_outlive_stream_and_runtime() {
    on_each_and_sim(with_zero_copy, |setup| {
        let bytes = MESSAGE_BYTES * 100;
        for dropped_first in [true, false] {
            let runtime = runtime_without_drain(setup);
            let streams = runtime.block_on(async {
                let (mut client, mut server) = pair().await.unwrap();
                client.write_all(b"leased").await.unwrap();
                let chunk = server.recv().await.unwrap().unwrap();
                // No task is reading, so the kernel takes only the bytes for which it has room. The chunk is queued
                // after the remaining bytes, or is not accepted.
                let sends = async {
                    server.send(pattern(1, bytes)).await.unwrap();
                    server.send(chunk).await.unwrap();
                    server.send(pattern(2, bytes)).await.unwrap();
                };
                poll_times(&mut Box::pin(sends), 1).await;
                yield_now().await;
                (client, server)
            });
            match dropped_first {
                true => drop((streams, runtime)),
                false => drop((runtime, streams)),
            }
        }
    });
}

fn with_zero_copy() -> Vec<Setup> {
    let zero_copy = |options: &mut DriverOptions| {
        options.zero_copy = ZeroCopy::Always { threshold_bytes: 1000 };
    };
    both_drivers().into_iter().flat_map(|setup| [setup.with(zero_copy), setup]).collect()
}

#[test]
fn fault_15_results_outlive_their_runtime() {
    on_each_and_sim(all_drivers, |setup| {
        let runtime = setup.runtime();
        let [taken, abandoned] = runtime.block_on(async {
            let handles = [(), ()].map(|()| {
                spawn(async {
                    let (mut client, mut server) = pair().await.unwrap();
                    client.write_all(b"result").await.unwrap();
                    let chunk = server.recv().await.unwrap().unwrap();
                    (client, server, chunk)
                })
            });
            while !handles.iter().all(JoinHandle::is_finished) {
                yield_now().await;
            }
            handles
        });
        drop(runtime);
        drop(abandoned);
        setup.run(async {
            let (mut client, server, chunk) = taken.await.unwrap();
            assert_eq!(b"result"[..chunk.len()], chunk[..]);
            assert!(client.write_all(b"?").await.is_err(), "a stream of a dropped runtime");
            drop((chunk, server));
        });
    });
}

/// When dropped, wakes the stored wakers, aborts the stored handles, and spawns a task.
#[derive(Default)]
struct Last {
    wakers: Kept,
    others: Rc<RefCell<Vec<JoinHandle<()>>>>,
}

impl Drop for Last {
    fn drop(&mut self) {
        self.wakers.wake_all();
        let others = std::mem::take(&mut *self.others.borrow_mut());
        others.iter().for_each(JoinHandle::abort);
        // Rejected or cancelled if the runtime is being dropped.
        spawn(sleep(Duration::from_secs(1))).detach();
    }
}

#[test]
fn fault_15_tasks_abort_themselves_and_each_other() {
    on_each_and_sim(all_drivers, |setup| {
        for turns in 0..5 {
            let alive = Rc::new(());
            let runtime = setup.runtime();
            runtime.block_on(async {
                let others = Rc::default();
                let wakers = Kept::default();
                for number in 0..6 {
                    let last = Last { wakers: wakers.clone(), others: Rc::clone(&others) };
                    let alive = Rc::clone(&alive);
                    // Each task holds the handles of all tasks, including its own.
                    others.borrow_mut().push(spawn(async move {
                        let _alive = alive;
                        last.wakers.keep().await;
                        for _ in 0..number {
                            yield_now().await;
                        }
                        if number == 2 {
                            last.others.borrow().iter().for_each(JoinHandle::abort);
                            last.wakers.wake_all();
                            yield_now().await;
                        }
                        pending::<()>().await;
                    }));
                }
                for _ in 0..turns {
                    yield_now().await;
                }
            });
            drop(runtime);
            assert_eq!(Rc::strong_count(&alive), 1, "after {turns} turns: a future was not dropped");
        }
    });
}

/// Notified futures are linked into a list by address, so they must not move.
#[test]
fn fault_15_pinned_cooperative_futures() {
    on_each_and_sim(both_drivers, |setup| {
        setup.run(async {
            let notify = sync::Notify::new();
            let mut waiting: Vec<_> =
                (0..6).map(|_| Box::pin(task::cooperative(notify.notified()))).collect();
            for notified in &mut waiting {
                assert!(poll_fn(|context| Poll::Ready(notified.as_mut().poll(context).is_pending())).await);
            }
            drop(waiting.remove(3));
            notify.notify_one();
            drop(waiting.remove(0));
            notify.notify_waiters();
            for notified in waiting {
                notified.await;
            }
        });
    });
}

/// In-memory streams and the channel of one worker, dropped in any state.
#[test]
fn fault_15_streams_and_channels_dropped_in_any_state() {
    on_each_and_sim(both_drivers, |setup| {
        for polls in 1..6 {
            setup.run(async {
                let (mut near, mut far) = pair().await.unwrap();
                let (mut one, other) = anello::io::duplex(10);
                let proxy = spawn(async move {
                    let (mut reader, mut writer) = other.into_split();
                    let (forth, back) = near.split();
                    let (mut forth, mut back) = (forth, back);
                    join(anello::io::copy(&mut forth, &mut writer), anello::io::copy(&mut reader, &mut back))
                        .await
                });
                one.send("ciao").await.unwrap();
                assert_eq!(far.recv().await.unwrap().as_deref(), Some(&b"ciao"[..]));
                far.send("ciao").await.unwrap();
                let (sender, mut receiver) = sync::local::mpsc::channel(1);
                let sending = spawn(async move {
                    while let Ok(Some(bytes)) = one.recv().await {
                        for _ in 0..3 {
                            if sender.send(bytes.clone()).await.is_err() {
                                return;
                            }
                        }
                    }
                });
                for _ in 0..polls {
                    yield_now().await;
                }
                if polls % 2 == 0 {
                    drop(receiver.try_recv());
                    sending.abort();
                }
                drop(receiver);
                drop(proxy);
            });
        }
    });
}

/// Guards that are dropped in any order, leaked, and created while a runtime is running.
#[test]
fn fault_15_runtimes_entered_and_left_in_any_order() {
    on_each_and_sim(both_drivers, |setup| {
        for seed in 0..if cfg!(miri) { 5 } else { 50 } {
            eprintln!("{}: seed {seed}", setup.name);
            let mut random = Rng::with_seed(seed);
            let runtimes: Vec<_> = (0..3).map(|_| runtime_without_drain(setup)).collect();
            let (mut guards, mut tasks) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                let runtime = &runtimes[random.usize(..3)];
                match random.usize(..6) {
                    0 | 1 => guards.push(runtime.enter()),
                    2 if !guards.is_empty() => {
                        let guard = guards.remove(random.usize(..guards.len()));
                        // Panics if the guard is not the innermost one.
                        catch_unwind(AssertUnwindSafe(|| drop(guard))).ok();
                    }
                    3 if random.usize(..4) == 0 => std::mem::forget(runtime.enter()),
                    4 if anello::Handle::try_current().is_ok() => tasks.push(spawn(async { task::id() })),
                    _ => {
                        let other = &runtimes[random.usize(..3)];
                        let (leaves, leaks) = (random.bool(), random.usize(..8) == 0);
                        runtime.block_on(async {
                            let entered = other.enter();
                            assert_eq!(task::try_id(), None);
                            if leaves {
                                drop(entered);
                            } else if leaks {
                                std::mem::forget(entered);
                            } else {
                                // Left on the stack below the guards of later calls.
                                guards.push(entered);
                            }
                            yield_now().await;
                        });
                    }
                }
            }
            while let Some(guard) = guards.pop() {
                catch_unwind(AssertUnwindSafe(|| drop(guard))).ok();
            }
            drop(runtimes);
            // A leaked guard keeps the memory of its runtime, but not the tasks.
            catch_unwind(|| drop(spawn(async {}))).ok();
            assert!(tasks.iter().all(|task| task.is_finished()));
        }
    });
}

/// Uses everything that refers to the running task.
struct Inspect {
    _alive: Rc<()>,
}

impl Drop for Inspect {
    fn drop(&mut self) {
        let (dumped, id) = (task::dump(), task::try_id());
        let running = dumped.tasks.iter().find(|task| task.state == task::TaskState::Running);
        assert!(running.is_none_or(|task| Some(task.id) == id));
        NUMBER.try_with(|number| assert_eq!(*number, 2)).ok();
    }
}

anello::task_local! {
    static NUMBER: u32;
    static INSPECT: Rc<Inspect>;
}

#[test]
fn fault_15_task_locals_and_sets_dropped_at_every_poll() {
    on_each_and_sim(both_drivers, |setup| {
        let alive = Rc::new(());
        for polls in 0..8 {
            for drops_runtime_first in [false, true] {
                let runtime = runtime_without_drain(setup);
                let inspect = || Rc::new(Inspect { _alive: Rc::clone(&alive) });
                let work = |inspect: Rc<Inspect>| async move {
                    let _kept = inspect;
                    for _ in 0..3 {
                        yield_now().await;
                        let _id = task::try_id();
                    }
                };
                let mut set = task::JoinSet::new();
                let (future, aborts) = runtime.block_on(async {
                    for _ in 0..3 {
                        let scope = INSPECT.scope(inspect(), NUMBER.scope(2, work(inspect())));
                        set.spawn(NUMBER.scope(1, scope));
                    }
                    let aborts: Vec<_> =
                        (0..3).map(|_| set.spawn(NUMBER.scope(2, work(inspect())))).collect();
                    aborts[0].abort();
                    let mut future = Box::pin(NUMBER.scope(2, work(inspect())));
                    poll_times(&mut future, polls).await;
                    poll_times(&mut Box::pin(set.join_next()), polls).await;
                    (future, aborts)
                });
                let entered = (!drops_runtime_first).then(|| runtime.enter());
                // On another thread, while the runtime is being dropped.
                let aborting = thread::spawn(move || {
                    aborts.iter().for_each(task::AbortHandle::abort);
                    aborts.iter().filter(|abort| abort.is_finished()).count()
                });
                if entered.is_some() {
                    drop((future, set));
                    drop(entered);
                    drop(runtime);
                } else {
                    runtime.block_on(async { drop(future) });
                    drop(runtime);
                    drop(set);
                }
                aborting.join().unwrap();
                assert_eq!(Rc::strong_count(&alive), 1, "after {polls} polls: a value was not dropped");
            }
        }
    });
}
