//! Wake-ups from other workers: they arrive even if the sending worker is busy, unwinds or blocks its thread.

use std::net::TcpListener as StdListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anello::Handle;
use anello::net::TcpStream;
use anello::time::sleep;

use crate::common::*;

/// Worker that sleeps until it is stopped.
struct Sleeper {
    handle: Handle,
    stop: Flag,
    thread: JoinHandle<()>,
}

impl Sleeper {
    fn start(setup: &Setup) -> Self {
        let (setup, stop) = (setup.clone(), Flag::default());
        let (report, reports) = mpsc::channel();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let runtime = setup.runtime();
            report.send(runtime.handle()).unwrap();
            runtime.block_on(stopped.wait());
        });
        Self { handle: reports.recv().unwrap(), stop, thread }
    }

    fn stop(self) {
        self.stop.raise();
        self.thread.join().unwrap();
    }

    /// Spawns a task on the worker. The returned receiver gets a message when the task has run.
    fn spawn_report(&self) -> Receiver<()> {
        let (report, reports) = mpsc::channel();
        self.handle.spawn(async move { report.send(()).unwrap() }).detach();
        reports
    }
}

/// Waits until other workers are probably asleep. If they are not, the test covers less but does not fail.
async fn let_others_sleep() {
    sleep(Duration::from_millis(50)).await;
}

/// A worker wakes a sleeping worker, then stays busy until the other worker has run a task that a third thread spawned
/// in the meantime.
fn test_wake_by_busy_worker(setup: &Setup, third: impl FnOnce(Handle) + Send + 'static) {
    let sleeper = Sleeper::start(setup);
    let handle = sleeper.handle.clone();
    let (go, goes) = mpsc::channel::<()>();
    let third = thread::spawn(move || {
        goes.recv().unwrap();
        third(handle)
    });
    setup.run(async {
        let_others_sleep().await;
        let first = sleeper.spawn_report();
        go.send(()).unwrap();
        third.join().unwrap();
        // No turn is running: the wake-up sent by this worker is still queued if its driver queues wake-ups.
        first.recv().unwrap();
    });
    sleeper.stop();
}

fn spawn_and_wait(handle: &Handle) {
    let (report, reports) = mpsc::channel();
    handle.spawn(async move { report.send(()).unwrap() }).detach();
    reports.recv().unwrap();
}

#[test]
fn wake_by_thread_does_not_wait_for_busy_worker() {
    on_every_driver(|setup| test_wake_by_busy_worker(setup, |handle| spawn_and_wait(&handle)));
}

#[test]
fn wake_by_worker_does_not_wait_for_busy_worker() {
    on_every_driver(|setup| {
        let third = setup.clone();
        test_wake_by_busy_worker(setup, move |handle| {
            third.run(async move { handle.spawn(async {}).await.unwrap() });
        });
    });
}

#[test]
fn wake_is_sent_despite_panic_of_main_future() {
    on_every_driver(|setup| {
        let sleeper = Sleeper::start(setup);
        let runtime = setup.runtime();
        let mut ran = None;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                let_others_sleep().await;
                ran = Some(sleeper.spawn_report());
                panic!("deliberate");
            })
        }));
        assert!(unwound.is_err());
        // The runtime still exists but is not running a turn.
        ran.unwrap().recv().unwrap();
        drop(runtime);
        sleeper.stop();
    });
}

#[test]
fn fault_14_wake_is_sent_although_runtime_is_dropped() {
    on_every_driver(|setup| {
        let sleeper = Sleeper::start(setup);
        for _ in 0..20 {
            let ran = setup.run(async {
                sleep(Duration::from_millis(2)).await;
                sleeper.spawn_report()
            });
            ran.recv().unwrap();
        }
        sleeper.stop();
    });
}

#[test]
fn wake_is_sent_before_nested_runtime_waits_for_peer() {
    on_every_driver(|setup| {
        let sleeper = Sleeper::start(setup);
        let inner = setup.builder().drain_timeout(hang_timeout() * 2).build().unwrap();
        let listener = StdListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let stream = inner.block_on(async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.send(vec![7; LARGE]).await.unwrap();
            stream
        });
        drop(stream);
        setup.run(async {
            let_others_sleep().await;
            let reading = sleeper.handle.spawn(async move {
                let (mut stream, _) = listener.accept().unwrap();
                std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
            });
            // Waits until everything is sent.
            drop(inner);
            assert_eq!(reading.await.unwrap(), LARGE as u64);
        });
        sleeper.stop();
    });
}
