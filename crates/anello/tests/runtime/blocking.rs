//! Work on the blocking thread pool.

use std::sync::mpsc;

use anello::task::MAX_BLOCKING_THREADS;
use anello::{JoinError, Runtime, spawn_blocking};

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
