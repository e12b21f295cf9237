//! `tracing` subscribers, which are application code: one uses the runtime in every event and then panics, one panics in
//! the callbacks of spans.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anello::net::{UnixListener, UnixStream};
use anello::task::Builder;
use anello::time::sleep;
use anello::{Runtime, Workers, spawn_blocking};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata};

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

#[derive(Clone, Copy, Debug, PartialEq)]
enum Callback {
    Enabled,
    NewSpan,
    Enter,
    Exit,
    Close,
}

/// Number of the callback that panics.
static PANICS_IN: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Number of panics since it was set.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Subscriber that panics in one of the callbacks of spans.
struct PanicsInSpans;

impl Callback {
    fn call(self) {
        if PANICS_IN.load(Ordering::Relaxed) == self as usize {
            PANICS.fetch_add(1, Ordering::Relaxed);
            resume_unwind(Box::new("the subscriber panics"));
        }
    }
}

impl Subscriber for PanicsInSpans {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // Calls `enabled` for each span.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_span = metadata.is_span() && metadata.target().starts_with("anello");
        if is_span {
            Callback::Enabled.call();
        }
        is_span
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Callback::NewSpan.call();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        Callback::Enter.call();
    }

    fn exit(&self, _: &Id) {
        Callback::Exit.call();
    }

    fn try_close(&self, _: Id) -> bool {
        Callback::Close.call();
        true
    }
}

#[test]
fn panics_in_spans_affect_no_task_connection_or_timer() {
    in_own_process(|| {
        tracing::subscriber::set_global_default(PanicsInSpans).expect("the only subscriber");
        for callback in
            [Callback::Enabled, Callback::NewSpan, Callback::Enter, Callback::Exit, Callback::Close]
        {
            PANICS_IN.store(callback as usize, Ordering::Relaxed);
            on_both_drivers(move |setup| {
                let panics_before = PANICS.load(Ordering::Relaxed);
                let runtime = setup.runtime();
                let handle = runtime.handle();
                let named = || Builder::new().name("named");
                let local = named().spawn_local_on(async { 1 }, &runtime).unwrap();
                runtime.block_on(async {
                    let sleeping = named().spawn(sleep(Duration::from_millis(1))).unwrap();
                    let aborted = named().spawn(pending::<()>()).unwrap();
                    assert_eq!(local.await.unwrap(), 1);
                    assert_eq!(named().spawn_on(async { 2 }, &handle).unwrap().await.unwrap(), 2);
                    assert_eq!(spawn_blocking(|| 3).await.unwrap(), 3);
                    let (mut client, mut server) = pair().await.unwrap();
                    client.write_all(b"ping").await.unwrap();
                    server.read_exact(&mut [0; 4]).await.unwrap();
                    let directory = tempfile::tempdir().unwrap();
                    let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
                    drop(UnixStream::connect(directory.path().join("socket")).await.unwrap());
                    listener.accept().await.unwrap();
                    sleeping.await.unwrap();
                    aborted.abort();
                    assert!(aborted.await.is_err());
                });
                drop(runtime);
                let builder = Workers::builder().unpinned_workers(2).runtime(setup.builder());
                let workers = builder.start(|worker| async move { worker.index }).unwrap();
                assert_eq!(workers.join().unwrap(), [0, 1]);
                assert!(PANICS.load(Ordering::Relaxed) > panics_before, "{callback:?}");
            });
        }
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
