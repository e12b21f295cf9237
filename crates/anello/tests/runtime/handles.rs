//! Handles, `Runtime::enter`, and blocking on futures from other threads.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use anello::io::AsyncFd;
use anello::net::{
    OwnedReadHalf, TcpListener, TcpSocket, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream, pipe,
};
use anello::server::DetachedStream;
use anello::task::JoinSet;
use anello::time::{Sleep, sleep};
use anello::{Handle, JoinHandle, Runtime, spawn, spawn_blocking, yield_now};

use crate::common::{
    ANY_PORT, both_drivers, on_both_drivers, on_each, on_every_driver, on_every_driver_and_sim, pair,
    simulated_drivers, wait_until_refused,
};

fn message_of_panic(action: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(action)).expect_err("panics");
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => (*payload.downcast_ref::<&str>().expect("a message")).to_owned(),
    }
}

/// A closure passed to `catch_unwind` can contain them, as in tokio.
#[test]
fn handles_and_sockets_are_unwind_safe() {
    fn assert_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    assert_unwind_safe::<(Handle, JoinHandle<Cell<u8>>, anello::task::AbortHandle, Sleep)>();
    assert_unwind_safe::<(TcpListener, TcpSocket, TcpStream, OwnedReadHalf<TcpStream>, UdpSocket)>();
    assert_unwind_safe::<(UnixDatagram, UnixListener, UnixStream, AsyncFd<std::fs::File>)>();
    assert_unwind_safe::<(pipe::Receiver, pipe::Sender, DetachedStream)>();
}

#[test]
fn current_handle_belongs_to_innermost_runtime() {
    on_every_driver_and_sim(|setup| {
        assert!(Handle::try_current().is_err());
        let message = message_of_panic(|| drop(Handle::current()));
        assert!(message.contains("no anello runtime on this thread"), "{message}");
        let runtime = setup.runtime();
        let tasks = runtime.block_on(async {
            let handle = Handle::current();
            assert_eq!(handle.spawn(async { 1 }).await.unwrap(), 1);
            let mut tasks = JoinSet::new();
            tasks.spawn_on(async { 2 }, &handle);
            tasks
        });
        assert!(Handle::try_current().is_err());
        assert_eq!(runtime.block_on(tasks.join_all()), [2]);
    });
}

#[test]
fn entered_runtime_is_current_until_guard_is_dropped() {
    on_every_driver_and_sim(|setup| {
        let (first, second) = (setup.runtime(), setup.runtime());
        let entered = first.enter();
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let timer = spawn(sleep(Duration::from_micros(200)));
        // A runtime can run while it, or another one, is entered.
        assert_eq!(first.block_on(async { 1 }), 1);
        let nested = second.enter();
        let of_second = spawn(async { Rc::new(2) });
        assert_eq!(first.block_on(async { spawn(async { 3 }).await.unwrap() }), 3);
        drop(nested);
        let again = first.enter();
        let of_first = spawn(async { 4 });
        drop(again);
        drop(entered);
        assert!(catch_unwind(|| spawn(async {})).is_err(), "no runtime is current");
        assert_eq!(first.block_on(of_first).unwrap(), 4);
        first.block_on(async {
            timer.await.unwrap();
            let connecting = spawn(TcpStream::connect(listener.local_addr().unwrap()));
            drop((listener.accept().await.unwrap(), connecting.await.unwrap().unwrap()));
        });
        assert_eq!(*second.block_on(of_second).unwrap(), 2);
    });
}

#[test]
fn guard_dropped_out_of_order_panics_and_later_guards_work() {
    on_every_driver_and_sim(|setup| {
        let (first, second) = (setup.runtime(), setup.runtime());
        let outer = first.enter();
        let inner = second.enter();
        assert!(message_of_panic(|| drop(outer)).contains("out of order"));
        assert_eq!(second.block_on(spawn(async { 1 })).unwrap(), 1);
        drop(inner);
        // `first` stays the current runtime of this thread, because its guard was not removed.
        drop(spawn(async {}));
        let again = first.enter();
        std::mem::forget(second.enter());
        assert!(message_of_panic(|| drop(again)).contains("out of order"));
        assert_eq!(first.block_on(async { spawn(async { 2 }).await.unwrap() }), 2);
        drop((first, second));
        // The leaked guards keep the memory of the runtimes. A task of a dropped runtime is cancelled.
        let cancelled = spawn(async {});
        let third = setup.runtime();
        assert!(third.block_on(cancelled).unwrap_err().is_cancelled());
        assert_eq!(third.block_on(async { spawn(async { 3 }).await.unwrap() }), 3);
    });
}

/// A task enters another runtime and does not leave it. This affects only the context, and not after `block_on`.
#[test]
fn guard_leaked_in_task_ends_with_block_on() {
    on_every_driver_and_sim(|setup| {
        let (first, second) = (setup.runtime(), setup.runtime());
        let counted = Rc::new(Cell::new(0));
        let counting = Rc::clone(&counted);
        first.block_on(async {
            std::mem::forget(second.enter());
            spawn(async move { counting.set(1) }).detach();
            assert!(
                catch_unwind(AssertUnwindSafe(|| second.block_on(async {}))).is_err(),
                "a runtime is running on this thread"
            );
        });
        assert!(Handle::try_current().is_err());
        assert_eq!(counted.get(), 0);
        second.block_on(yield_now());
        assert_eq!(counted.get(), 1, "the task was spawned on the entered runtime");
    });
}

#[test]
fn tasks_spawned_on_runtime_run_in_block_on() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let shared = Rc::new(Cell::new(0));
        let counting = Rc::clone(&shared);
        runtime
            .spawn(async move {
                for _ in 0..3 {
                    counting.set(counting.get() + 1);
                    yield_now().await;
                }
            })
            .detach();
        assert_eq!(shared.get(), 0);
        runtime.block_on(async {
            for _ in 0..4 {
                yield_now().await;
            }
        });
        assert_eq!(shared.get(), 3);
        assert_eq!(runtime.block_on(runtime.spawn_blocking(|| 5)).unwrap(), 5);
    });
}

#[test]
fn shutdown_timeout_limits_drain() {
    on_every_driver(|setup| {
        let dropped = Rc::new(());
        for background in [false, true] {
            // The default would be to wait for an hour.
            let runtime = setup.builder().drain_timeout(Duration::from_secs(3600)).build().unwrap();
            let (address, peer) = runtime.block_on(async {
                let listener = TcpListener::bind(ANY_PORT).unwrap();
                let address = listener.local_addr().unwrap();
                let peer = std::net::TcpStream::connect(address).unwrap();
                let mut stream = listener.accept().await.unwrap();
                // The peer does not read, so these bytes cannot be sent.
                while crate::common::poll_at_most(1, stream.send(vec![0; 1 << 20]))
                    .await
                    .is_some_and(|sent| sent.is_ok())
                {}
                let kept = Rc::clone(&dropped);
                spawn(async move {
                    let _kept = (stream, kept);
                    pending::<()>().await;
                })
                .detach();
                (address, peer)
            });
            match background {
                true => runtime.shutdown_background(),
                false => runtime.shutdown_timeout(Duration::from_millis(1)),
            }
            assert_eq!(Rc::strong_count(&dropped), 1, "its tasks have been dropped");
            wait_until_refused(address);
            drop(peer);
        }
    });
}

#[test]
fn blocking_closure_waits_for_tasks_and_sockets() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let (sender, receiver) = mpsc::channel::<u32>();
            let work = spawn_blocking(move || {
                let handle = Handle::current();
                // Values that are not `Send`, and borrows.
                let local = Rc::new(Cell::new(1));
                let borrowed = &local;
                let mut sum = handle.block_on(async { borrowed.get() });
                sum += handle.block_on(handle.spawn(async { 10 })).unwrap();
                let exchange = move || async move {
                    let mut stream = TcpStream::connect(address).await?;
                    stream.write_all(b"hundred").await?;
                    let received = stream.recv().await?.expect("an answer");
                    std::io::Result::Ok(received.len() as u32)
                };
                sum += handle.block_on(handle.spawn_with(exchange)).unwrap().unwrap();
                // A closure that is spawned on a blocking thread works for the same runtime.
                sum += handle
                    .block_on(spawn_blocking(|| {
                        Handle::current().block_on(Handle::current().spawn(async { 1000 })).unwrap()
                    }))
                    .unwrap();
                sender.send(sum).unwrap();
                sum
            });
            let mut accepted = listener.accept().await.unwrap();
            let mut request = [0; 7];
            accepted.read_exact(&mut request).await.unwrap();
            accepted.write_all(&[b'x'; 100]).await.unwrap();
            // Meanwhile, the worker serves other connections.
            client.write_all(b"alive").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"alive"[..]));
            let sum = work.await.unwrap();
            assert!(sum > 1011 && receiver.recv().unwrap() == sum, "{sum}");
        });
    });
}

#[test]
fn blocking_closure_of_dropped_runtime_does_not_deadlock() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let (report, reports) = mpsc::channel();
        let (started, is_started) = mpsc::channel();
        runtime.block_on(async {
            for _ in 0..4 {
                let (report, started) = (report.clone(), started.clone());
                spawn_blocking(move || {
                    let handle = Handle::current();
                    let waiting = handle.spawn_with(pending::<()>);
                    started.send(()).unwrap();
                    let cancelled = handle.block_on(waiting).unwrap_err().is_cancelled();
                    let late = handle.block_on(handle.spawn(async {})).unwrap_err().is_cancelled();
                    report.send((cancelled, late)).unwrap();
                })
                .detach();
            }
            for _ in 0..4 {
                while is_started.try_recv().is_err() {
                    yield_now().await;
                }
            }
        });
        drop(runtime);
        for _ in 0..4 {
            assert_eq!(reports.recv().unwrap(), (true, true));
        }
    });
}

#[test]
fn block_on_returns_when_woken_by_any_thread() {
    on_both_drivers(|setup| {
        let runtime = setup.runtime();
        let handle = runtime.handle();
        for round in 0..200 {
            let count = Arc::new(AtomicUsize::new(0));
            let woken = handle.block_on(poll_fn(|context| {
                let polls = count.fetch_add(1, Ordering::SeqCst);
                if polls == 3 {
                    return Poll::Ready(round);
                }
                match polls {
                    0 => context.waker().wake_by_ref(),
                    1 => drop(thread::spawn({
                        let waker = context.waker().clone();
                        move || waker.wake_by_ref()
                    })),
                    _ => {
                        let waker = context.waker().clone();
                        thread::spawn(move || waker.wake());
                    }
                }
                Poll::Pending
            }));
            assert_eq!(woken, round);
            // An earlier `unpark` must not end a later wait.
            thread::current().unpark();
        }
    });
}

#[test]
fn blocking_on_worker_thread_panics() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let handle = Handle::current();
            let message = message_of_panic(|| handle.block_on(async {}));
            assert!(message.contains("a runtime is running on this thread"), "{message}");
            let other = both_drivers().pop().unwrap().runtime();
            let message = message_of_panic(|| other.handle().block_on(async {}));
            assert!(message.contains("a runtime is running on this thread"), "{message}");
            // Also if another runtime has been entered in between.
            let entered = other.enter();
            let message = message_of_panic(|| handle.block_on(async {}));
            assert!(message.contains("a runtime is running on this thread"), "{message}");
            drop(entered);
        });
        // A panic of the future is passed on, and the context is restored.
        let runtime = setup.runtime();
        assert_eq!(
            message_of_panic(|| runtime.handle().block_on(async { panic!("deliberate") })),
            "deliberate"
        );
        assert!(Handle::try_current().is_err());
    });
}

#[test]
fn blocking_on_waiting_simulator_panics_instead_of_deadlock() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            let error = spawn_blocking(|| Handle::current().block_on(async {})).await.unwrap_err();
            assert!(error.to_string().contains("the simulated runtime waits"), "{error}");
            // Another runtime can be awaited.
            let other = Runtime::builder().driver(anello::DriverKind::Epoll).build().unwrap();
            let handle = other.handle();
            assert_eq!(spawn_blocking(move || handle.block_on(async { 5 })).await.unwrap(), 5);
        });
    });
}

#[test]
fn closure_aborted_before_it_starts_does_not_run() {
    on_every_driver(|setup| {
        setup.run(async {
            // Occupies all threads of the pool.
            let (release, released) = mpsc::channel::<()>();
            let released = Arc::new(std::sync::Mutex::new(released));
            let blocked: Vec<_> = (0..anello::task::MAX_BLOCKING_THREADS)
                .map(|_| {
                    let released = Arc::clone(&released);
                    spawn_blocking(move || drop(released.lock().map(|released| released.recv())))
                })
                .collect();
            let ran = Arc::new(AtomicUsize::new(0));
            let runs = Arc::clone(&ran);
            let queued = spawn_blocking(move || runs.fetch_add(1, Ordering::SeqCst));
            let abort = queued.abort_handle();
            assert!(!abort.is_finished() && abort.id() == queued.id());
            abort.abort();
            assert!(abort.is_finished() && queued.await.unwrap_err().is_cancelled());
            // Started closures cannot be aborted.
            blocked[0].abort();
            drop(release);
            for (number, work) in blocked.into_iter().enumerate() {
                assert!(work.await.is_ok() || number == 0);
            }
            let after = spawn_blocking(|| 5);
            let abort = after.abort_handle();
            assert_eq!(after.await.unwrap(), 5);
            abort.abort();
            assert!(abort.is_finished());
            assert_eq!(ran.load(Ordering::SeqCst), 0);
        });
    });
}
