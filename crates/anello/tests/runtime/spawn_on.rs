//! Tasks that are made on another worker.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anello::time::sleep;
use anello::{Runtime, Workers, yield_now};

use crate::common::{group_setups, on_each, on_every_driver_and_sim, pair};

/// Sets a flag when it is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn guard() -> (SetOnDrop, Arc<AtomicBool>) {
    let is_dropped = Arc::new(AtomicBool::new(false));
    (SetOnDrop(Arc::clone(&is_dropped)), is_dropped)
}

#[test]
fn every_worker_spawns_on_every_worker() {
    on_each(group_setups(), |setup| {
        const WORKERS: usize = 3;
        let workers = Workers::builder().unpinned_workers(WORKERS).runtime(setup.builder());
        let finished = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let workers = workers.start(move |worker| {
            let finished = Arc::clone(&finished);
            async move {
                assert_eq!(worker.handles().len(), WORKERS);
                let mut names = Vec::new();
                for target in 0..WORKERS {
                    let task = worker.spawn_on(target, || async {
                        // Neither the sockets nor the counter can be sent to another thread.
                        let count = Rc::new(Cell::new(0));
                        let (mut client, mut server) = pair().await.expect("a connection");
                        client.send(&b"ciao"[..]).await.expect("send succeeds");
                        count.set(server.recv().await.expect("receive succeeds").expect("not EOF").len());
                        yield_now().await;
                        assert_eq!(count.get(), 4);
                        thread::current().name().map(str::to_owned)
                    });
                    names.push(task.await.expect("the task returns").expect("a thread name"));
                }
                // The tasks of a worker are dropped when its own future completes.
                finished.fetch_add(1, Ordering::Relaxed);
                while finished.load(Ordering::Relaxed) < WORKERS {
                    sleep(Duration::from_millis(1)).await;
                }
                names
            }
        });
        for names in workers.expect("workers").join().expect("no worker panics") {
            assert_eq!(names, ["anello-0", "anello-1", "anello-2"], "{}", setup.name);
        }
    });
}

#[test]
fn future_is_made_on_its_own_thread() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let made_on = runtime.handle().spawn_with(|| {
            let thread = thread::current().id();
            async move { (thread, thread::current().id()) }
        });
        let this = thread::current().id();
        assert_eq!(runtime.block_on(made_on).expect("the task returns"), (this, this), "{}", setup.name);
    });
}

#[test]
fn fault_17_panic_while_making_or_polling_is_reported_to_handle() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let handle = runtime.handle();
        let making = handle.spawn_with(|| -> std::future::Ready<()> { panic!("deliberate: making") });
        let polling = handle.spawn_with(|| async { panic!("deliberate: polling") });
        let next = handle.spawn_with(|| async { 1 });
        runtime.block_on(async {
            assert!(making.await.expect_err("a panic").to_string().contains("deliberate: making"));
            assert!(polling.await.expect_err("a panic").to_string().contains("deliberate: polling"));
            assert_eq!(next.await.ok(), Some(1), "{}", setup.name);
        });
    });
}

#[test]
fn aborted_task_drops_closure_without_calling_it() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let (dropped_with_closure, is_dropped) = guard();
        let task = runtime.handle().spawn_with(move || async move {
            drop(dropped_with_closure);
            panic!("the closure must not be called")
        });
        task.abort();
        let error = runtime.block_on(task).expect_err("the task is aborted");
        assert!(!error.is_panic() && is_dropped.load(Ordering::Relaxed), "{}: {error}", setup.name);
    });
}

#[test]
fn closure_for_dropped_runtime_is_dropped() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let handle = runtime.handle();
        let (in_mailbox, is_dropped_from_mailbox) = guard();
        let queued = handle.spawn_with(move || async move { drop(in_mailbox) });
        drop(runtime);
        assert!(is_dropped_from_mailbox.load(Ordering::Relaxed), "{}", setup.name);
        let (late, is_late_dropped) = guard();
        let rejected = handle.spawn_with(move || async move { drop(late) });
        assert!(is_late_dropped.load(Ordering::Relaxed), "{}", setup.name);
        setup.run(async {
            assert!(queued.await.is_err());
            assert!(rejected.await.is_err());
        });
    });
}

/// A thread without a runtime spawns on a sleeping worker.
#[test]
fn fault_14_thread_wakes_sleeping_worker() {
    on_each(group_setups(), |setup| {
        let (stop, stopped) = mpsc::channel::<()>();
        let stopped = std::sync::Mutex::new(Some(stopped));
        let workers = Workers::builder().unpinned_workers(1).runtime(setup.builder()).start(move |_| {
            let stopped = stopped.lock().expect("lock is not poisoned").take().expect("once");
            // The blocking thread ends the worker's future; meanwhile, the worker sleeps.
            let waiting = async move { anello::spawn_blocking(move || stopped.recv().ok()).await.ok() };
            async move {
                waiting.await;
            }
        });
        let workers = workers.expect("a worker");
        let tasks: Vec<_> =
            (0..100).map(|number| workers.spawn_on(0, move || async move { number })).collect();
        let runtime = Runtime::new().expect("a runtime");
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(runtime.block_on(task).ok(), Some(number), "{}", setup.name);
        }
        drop(stop);
        workers.join().expect("the worker exits");
    });
}

#[test]
#[should_panic(expected = "no worker has index 1 (there are 1 workers)")]
fn index_of_missing_worker_panics() {
    let workers = Workers::builder().unpinned_workers(1).start(|_| async {}).expect("a worker");
    drop(workers.spawn_on(1, || async {}));
}
