//! A `tracing` subscriber, which is application code, that uses the runtime in every event and then panics.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use anello::{Runtime, Workers, spawn_blocking};
use tracing::Event;

use crate::common::*;

static EVENTS: AtomicUsize = AtomicUsize::new(0);

const POOL_THREAD: &str = "anello-blocking";

fn use_runtime_and_panic(event: &Event<'_>) {
    if !event.metadata().target().starts_with("anello") {
        return;
    }
    EVENTS.fetch_add(1, Ordering::Relaxed);
    // The threads of the pool cause events too, and would never end.
    if std::thread::current().name() != Some(POOL_THREAD) {
        spawn_blocking(|| ()).detach();
    }
    resume_unwind(Box::new("the subscriber panics"));
}

/// Runs what logs: threads that cannot be created, connections, workers that panic, and runtimes that end.
#[test]
fn events_hold_no_lock_and_their_panics_go_nowhere() {
    in_own_process(|| {
        tracing::subscriber::set_global_default(OnEvent(use_runtime_and_panic)).expect("the only subscriber");
        // First, because the pool has no thread yet.
        without_further_threads(|| {
            let runtime = Runtime::new().unwrap();
            assert_eq!(runtime.block_on(spawn_blocking(|| 7)).unwrap(), 7);
        });
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            runtime.block_on(async {
                let (mut client, mut server) = pair().await.unwrap();
                client.write_all(b"ping").await.unwrap();
                server.read_exact(&mut [0; 4]).await.unwrap();
            });
            let builder = Workers::builder().unpinned_workers(2).runtime(setup.builder());
            let workers = builder.start(|worker| async move {
                assert_eq!(worker.index, 0, "the other worker panics");
            });
            drop(workers.unwrap());
            runtime.block_on(async { assert!(poll_once(pending::<()>()).await.is_none()) });
        });
        assert!(EVENTS.load(Ordering::Relaxed) > 0);
    });
}

/// Runs a closure while the limit on the address space prevents new threads, whose stacks need more.
fn without_further_threads(run: impl FnOnce()) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let in_use = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(in_use + (1 << 20)), maximum }).unwrap();
    run();
    setrlimit(Resource::As, Rlimit { current: maximum, maximum }).unwrap();
}
