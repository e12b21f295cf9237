//! Child processes of `fork(2)`: they panic if they use the runtime of their parent, may drop its objects, and can create
//! their own.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use anello::event_loop::Events;
use anello::fs::File;
use anello::net::{TcpListener, TcpStream, UdpSocket, UnixListener};
use anello::signal::{SignalKind, signal};
use anello::sync::CancellationToken;
use anello::{Workers, fs, spawn, spawn_blocking, time, yield_now};
use rustix::process::{Signal, kill_process};

use crate::common::fork::{exit_child, fork, in_child, wait_for};
use crate::common::*;

/// Asserts that a call panics because the process is a child.
#[track_caller]
fn assert_refused(name: &str, call: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(call)) else { panic!("{name}: no panic") };
    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(message.contains("in a forked child process"), "{name}: {message}");
}

#[test]
fn child_drops_objects_of_its_parent_without_effect() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let runtime = setup.runtime();
            let (listener, mut near, mut far, udp, unix, source) = runtime.block_on(async {
                let listener = TcpListener::bind(ANY_PORT).unwrap();
                let (near, far) = pair().await.unwrap();
                let udp = UdpSocket::bind(ANY_PORT).unwrap();
                let directory = tempfile::tempdir().unwrap();
                let unix = UnixListener::bind(directory.path().join("socket")).unwrap();
                let (source, _) = std::io::pipe().unwrap();
                (listener, near, far, udp, unix, anello::io::AsyncFd::new(source).unwrap())
            });
            // Pending operations in the kernel.
            let waits = runtime.spawn(async move {
                far.recv().await.unwrap();
                far
            });
            runtime.block_on(async {
                yield_now().await;
                assert!(poll_once(listener.accept()).await.is_none());
            });
            let mut event_loop = event_loops::open(setup);
            event_loops::pair(&mut event_loop);
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let workers =
                Workers::builder().unpinned_workers(1).start(move |_| stopped.clone().cancelled_owned());
            let workers = workers.unwrap();
            // In the child, the objects are dropped in several orders.
            for is_runtime_first in [true, false] {
                if let Some(child) = fork() {
                    let status = wait_for(child);
                    assert_eq!(status.exit_status(), Some(0), "{}: {status:?}", setup.name);
                    continue;
                }
                let objects = (near, waits, listener, udp, unix, source, event_loop);
                let dropped = catch_unwind(AssertUnwindSafe(|| {
                    if is_runtime_first { drop((runtime, objects)) } else { drop((objects, runtime)) }
                }));
                let is_refused = if is_runtime_first {
                    workers.join().is_err()
                } else {
                    drop(workers);
                    true
                };
                exit_child(dropped.is_ok() && is_refused);
            }
            event_loop.turn(&mut Events::new(), Some(Duration::ZERO)).unwrap();
            runtime.block_on(async {
                near.send("ciao").await.unwrap();
                let mut far = waits.await.unwrap();
                far.send("addio").await.unwrap();
                assert_eq!(near.recv().await.unwrap().as_deref(), Some(&b"addio"[..]), "{}", setup.name);
                let connected = TcpStream::connect(listener.local_addr().unwrap());
                let accepted = spawn(async move { listener.accept().await.map(drop) });
                connected.await.unwrap();
                accepted.await.unwrap().unwrap();
                udp.send_to(b"ciao", udp.local_addr().unwrap()).await.unwrap();
                assert_eq!(udp.recv_from(&mut [0; 9]).await.unwrap().0, 4);
            });
            stop.cancel();
            workers.join().unwrap();
        });
    });
}

#[test]
fn child_that_uses_objects_of_its_parent_panics() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let runtime = setup.runtime();
            let (mut near, far) = runtime.block_on(pair()).unwrap();
            let mut event_loop = event_loops::open(setup);
            let (stream, _) = event_loops::pair(&mut event_loop);
            let poll_send = |stream: &mut TcpStream| {
                let mut send = pin!(stream.send("ciao"));
                drop(send.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            };
            in_child(setup.name, || {
                assert_refused("block_on", || runtime.block_on(async { yield_now().await }));
                assert_refused("send", || poll_send(&mut near));
                assert_refused("local_addr", || drop(far.local_addr()));
                assert_refused("turn", || drop(event_loop.turn(&mut Events::new(), None)));
                assert_refused("write", || assert!(event_loop.write(stream, b"ciao").is_ready()));
            });
            runtime.block_on(async { near.send("ciao").await }).unwrap();
        });
    });
}

#[test]
fn child_of_running_task_panics_at_its_next_wait() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let runtime = setup.runtime();
            let mut forked = None;
            let ran = catch_unwind(AssertUnwindSafe(|| {
                runtime.block_on(async {
                    let (mut near, mut far) = pair().await.unwrap();
                    forked = Some(fork());
                    // The next turn of the runtime panics in the child.
                    yield_now().await;
                    near.send("ciao").await.unwrap();
                    assert_eq!(far.recv().await.unwrap().as_deref(), Some(&b"ciao"[..]), "{}", setup.name);
                });
            }));
            match forked.unwrap() {
                Some(child) => {
                    ran.unwrap();
                    let status = wait_for(child);
                    assert_eq!(status.exit_status(), Some(0), "{}: {status:?}", setup.name);
                }
                None => {
                    let checked = catch_unwind(AssertUnwindSafe(|| {
                        assert_refused("turn", || resume_unwind(ran.expect_err("the child waits")));
                        drop(runtime);
                    }));
                    exit_child(checked.is_ok());
                }
            }
        });
    });
}

/// Creates a runtime, uses its threads, sockets, files, signals and child processes, and drops it.
fn use_own_runtime(setup: &Setup, directory: &Path) {
    let runtime = setup.runtime();
    runtime.block_on(async {
        assert_eq!(spawn_blocking(|| 7).await.unwrap(), 7);
        time::sleep(Duration::from_millis(1)).await;
        let (mut near, mut far) = pair().await.unwrap();
        near.send("ciao").await.unwrap();
        assert_eq!(far.recv().await.unwrap().as_deref(), Some(&b"ciao"[..]));
        let file = File::create(directory.join("child")).await.unwrap();
        file.write_all(b"addio").await.unwrap();
        let mut hangups = signal(SignalKind::hangup()).unwrap();
        kill_process(rustix::process::getpid(), Signal::HUP).unwrap();
        hangups.recv().await.unwrap();
        let status = anello::process::Command::new("true").status().await.unwrap();
        assert!(status.success());
    });
}

#[test]
fn child_creates_a_runtime_of_its_own() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let directory = tempfile::tempdir().unwrap();
            let parent = setup.runtime();
            // Starts threads, which the child does not have.
            parent.block_on(async {
                spawn_blocking(|| ()).await.unwrap();
                fs::write(directory.path().join("parent"), "ciao").await.unwrap();
                let file = File::create(directory.path().join("written")).await.unwrap();
                file.write(b"ciao").await.unwrap();
            });
            in_child(setup.name, || {
                use_own_runtime(setup, directory.path());
                drop(parent);
            });
            assert_eq!(std::fs::read(directory.path().join("child")).unwrap(), b"addio", "{}", setup.name);
        });
    });
}

#[test]
fn child_of_running_runtime_runs_one_of_its_own() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let directory = tempfile::tempdir().unwrap();
            let (path, child) = (directory.path().to_owned(), directory.path().join("child"));
            let forking = setup.clone();
            let fork = move || in_child(forking.name, || use_own_runtime(&forking, &path));
            setup.run(async {
                let (mut near, mut far) = pair().await.unwrap();
                // In the future of `block_on`, and in a task.
                fork();
                assert_eq!(std::fs::read(&child).unwrap(), b"addio", "{}", setup.name);
                std::fs::remove_file(&child).unwrap();
                spawn(async move { fork() }).await.unwrap();
                assert_eq!(std::fs::read(&child).unwrap(), b"addio", "{}", setup.name);
                near.send("ciao").await.unwrap();
                assert_eq!(far.recv().await.unwrap().as_deref(), Some(&b"ciao"[..]), "{}", setup.name);
            });
        });
    });
}

#[test]
fn child_watches_workers_of_its_own() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let watched =
                || setup.builder().blocked_poll_threshold(Duration::from_millis(1)).build().unwrap();
            let parent = watched();
            // The child continues in a poll of a watched worker.
            parent.block_on(async {
                in_child(setup.name, || {
                    let child = move || {
                        let (release, released) = std::sync::mpsc::channel::<()>();
                        let runtime = watched();
                        let handle = runtime.handle();
                        std::thread::scope(|scope| {
                            scope.spawn(move || {
                                while handle.block_on(handle.dump()).unwrap().blocked.is_none() {}
                                drop(release);
                            });
                            runtime.block_on(async { released.recv().unwrap_err() });
                        });
                    };
                    std::thread::scope(|scope| scope.spawn(child).join().unwrap());
                });
            });
        });
    });
}

#[test]
fn signals_of_a_child_are_not_reported_to_its_parent() {
    in_own_process(|| {
        on_every_driver(|setup| {
            setup.run(async {
                let mut hangups = signal(SignalKind::hangup()).unwrap();
                assert!(poll_once(hangups.recv()).await.is_none());
                for _ in 0..3 {
                    match fork() {
                        Some(child) => assert_eq!(wait_for(child).exit_status(), Some(0)),
                        None => exit_child(kill_process(rustix::process::getpid(), Signal::HUP).is_ok()),
                    }
                }
                for _ in 0..10 {
                    assert!(poll_once(hangups.recv()).await.is_none(), "{}", setup.name);
                    yield_now().await;
                }
                for _ in 0..2 {
                    kill_process(rustix::process::getpid(), Signal::HUP).unwrap();
                    assert_eq!(hangups.recv().await, Some(()), "{}", setup.name);
                }
                assert!(poll_once(hangups.recv()).await.is_none(), "{}", setup.name);
            });
        });
    });
}
