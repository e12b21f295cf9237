//! Work on the blocking thread pool.

use std::sync::mpsc;

use anello::task::{MAX_BLOCKING_THREADS, id, try_id};
use anello::{JoinError, Runtime, spawn, spawn_blocking};

#[test]
fn blocking_work_beyond_thread_limit_completes() {
    let results = Runtime::new().expect("a runtime").block_on(async {
        let (release, released) = mpsc::channel::<()>();
        // The first closure blocks until all others have finished.
        let first = spawn_blocking(move || released.recv().is_ok());
        let rest: Vec<_> = (0..MAX_BLOCKING_THREADS * 4).map(|n| spawn_blocking(move || n)).collect();
        let mut sum = 0;
        for work in rest {
            sum += work.await.expect("a number");
        }
        release.send(()).expect("the receiver exists");
        (sum, first.await.expect("a result"))
    });
    let count = MAX_BLOCKING_THREADS * 4;
    assert_eq!(results, (count * (count - 1) / 2, true));
}

#[test]
fn panic_in_blocking_work_returns_join_error() {
    let results = Runtime::new().expect("a runtime").block_on(async {
        let panicked = spawn_blocking(|| panic!("on purpose")).await;
        (panicked.map_err(|error: JoinError| error.is_panic()).err(), spawn_blocking(|| 5).await.ok())
    });
    assert_eq!(results, (Some(true), Some(5)));
}

#[test]
fn abandoned_blocking_work_still_runs() {
    let (done, is_done) = mpsc::channel();
    drop(spawn_blocking(move || done.send(()).is_ok()));
    is_done.recv().expect("the work was done");
}

#[test]
fn blocking_closure_has_id_of_its_handle() {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        assert_eq!(try_id(), None);
        let closure = spawn_blocking(|| {
            let inner = Runtime::new().expect("a runtime").block_on(async {
                let task = spawn(async { id() });
                (task.id(), task.await.expect("an id"))
            });
            (id(), inner)
        });
        let handle = closure.id();
        let (closure, (task, inside)) = closure.await.expect("ids");
        assert_eq!((closure, task), (handle, inside));
        let operation = anello::fs::spawn_file_operation(id);
        let expected = operation.id();
        assert_eq!(operation.await.expect("an id"), expected);
        // The thread that runs the next closure has no id of an earlier one, and neither has a new thread.
        let other = spawn_blocking(id);
        let expected = other.id();
        assert_eq!(other.await.expect("an id"), expected);
        assert_eq!(
            spawn_blocking(|| std::thread::spawn(try_id).join()).await.expect("joined").expect("no id"),
            None
        );
    });
}
