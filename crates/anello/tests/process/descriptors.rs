//! Descriptors of dropped objects and exited workers. Each test runs in a process of its own.

use std::fs;
use std::future::{Future, pending, poll_fn};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use anello::io::{AsyncFd, Interest};
use anello::time::sleep;
use anello::{Handle, Runtime, spawn, yield_now};

use crate::common::*;

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs the worker until its wake-ups are confirmed. An unconfirmed wake-up keeps the ring of the target worker open.
fn run_until_closed(waking: &Runtime, expected: usize) {
    waking.block_on(async {
        while open_descriptors() != expected {
            sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn fault_11_dropped_async_fds_are_closed() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let runtime = setup.runtime();
            let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
            let before = open_descriptors();
            runtime.block_on(async {
                for round in 0..200 {
                    let async_fd = AsyncFd::new(event.as_fd()).unwrap();
                    let mut ready = pin!(async_fd.ready(Interest::READABLE));
                    for _ in 0..round % 3 {
                        assert!(
                            poll_fn(|context| Poll::Ready(ready.as_mut().poll(context).is_pending())).await
                        );
                        yield_now().await;
                    }
                }
            });
            run_until_closed(&runtime, before);
        });
    });
}

#[test]
fn descriptors_of_exited_workers_are_closed() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let (mut kept, mut wakers) = (Vec::new(), Vec::new());
            let waking = setup.runtime();
            let before = open_descriptors();
            for _ in 0..20 {
                let (setup, (report, reports), end) = (setup.clone(), mpsc::channel(), Flag::default());
                let ended = end.clone();
                let thread = thread::spawn(move || {
                    let runtime = setup.runtime();
                    let handle = runtime.handle();
                    runtime.block_on(async {
                        let task = poll_fn(move |context| {
                            report.send((handle.clone(), context.waker().clone())).unwrap();
                            Poll::<()>::Pending
                        });
                        spawn(task).detach();
                        ended.wait().await
                    });
                });
                let (handle, waker): (Handle, _) = reports.recv().unwrap();
                waking.block_on(async {
                    // Gives the other worker time to go to sleep. If it stays awake, the test covers less but does not
                    // fail.
                    sleep(Duration::from_millis(5)).await;
                    handle.spawn(async {}).await.unwrap();
                    sleep(Duration::from_millis(5)).await;
                    waker.wake_by_ref();
                    kept.push((handle.spawn(pending::<()>()), handle.clone()));
                    end.raise();
                });
                thread.join().unwrap();
                wakers.push(waker);
            }
            run_until_closed(&waking, before);
            // The remaining handles are still usable but have no effect.
            for (join, handle) in kept {
                assert!(join.is_finished());
                waking.block_on(async {
                    assert!(handle.spawn(async {}).await.is_err());
                });
                join.abort();
            }
            wakers.iter().for_each(std::task::Waker::wake_by_ref);
            run_until_closed(&waking, before);
        });
    });
}
