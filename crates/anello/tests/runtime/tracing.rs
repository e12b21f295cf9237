//! Spans and events of `tracing`. The subscriber is global, because spans of the blocking pool are on other threads: each
//! test runs in a process of its own.

use std::cell::RefCell;
use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use anello::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use anello::sim::{SimFaults, Simulation};
use anello::task::Builder;
use anello::time::sleep;
use anello::{Workers, spawn_blocking, yield_now};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

use crate::common::{ANY_PORT, in_own_process, on_both_drivers};

/// Spans by id: the parent, and the name and fields as text.
static SPANS: Mutex<Vec<(Option<u64>, String)>> = Mutex::new(Vec::new());
/// Events, with the path of spans that they occurred in.
static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

static INSTALLED: LazyLock<()> =
    LazyLock::new(|| tracing::subscriber::set_global_default(Recorder).expect("the only subscriber"));

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

struct Recorder;

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Ids, locations and ports differ between runs.
        match field.name() {
            "message" => write!(self.0, " {value:?}").unwrap(),
            "id" | "spawned_at" => write!(self.0, " {field}").unwrap(),
            _ => write!(self.0, " {field}={value:?}").unwrap(),
        }
    }
}

impl tracing::Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG && metadata.target().starts_with("anello")
            || metadata.target() == module_path!()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields(attributes.metadata().name().to_owned());
        attributes.record(&mut fields);
        let parent = match attributes.is_contextual() {
            true => ENTERED.with_borrow(|entered| entered.last().copied()),
            false => attributes.parent().map(Id::into_u64),
        };
        let mut spans = SPANS.lock().unwrap();
        spans.push((parent, fields.0));
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let mut span = ENTERED.with_borrow(|entered| entered.last().copied());
        let mut path = String::new();
        while let Some(id) = span {
            let (parent, name) = SPANS.lock().unwrap()[id as usize - 1].clone();
            path.insert_str(0, &format!("[{name}]"));
            span = parent;
        }
        EVENTS.lock().unwrap().push(path + &fields.0);
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| assert_eq!(entered.pop(), Some(span.into_u64())));
    }
}

/// Returns a number that identifies the events of one test on one driver.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[track_caller]
fn assert_event(expected: &str) {
    let events = EVENTS.lock().unwrap();
    assert!(events.iter().any(|event| event == expected), "no event {expected:?} in {events:#?}");
}

#[test]
fn named_tasks_run_in_their_span() {
    in_own_process(|| {
        LazyLock::force(&INSTALLED);
        on_both_drivers(|setup| {
            let number = unique();
            setup.run(async move {
                let outer = tracing::debug_span!("outer");
                let _entered = outer.enter();
                let task = Builder::new().name("listener").spawn(async move {
                    tracing::debug!(number, "first poll");
                    yield_now().await;
                    tracing::debug!(number, "second poll");
                });
                let unnamed = Builder::new().spawn(async move { tracing::debug!(number, "unnamed") });
                drop(_entered);
                task.unwrap().await.unwrap();
                unnamed.unwrap().await.unwrap();
            });
            assert_event(&format!("[task name=\"listener\" id spawned_at] first poll number={number}"));
            assert_event(&format!("[task name=\"listener\" id spawned_at] second poll number={number}"));
            assert_event(&format!(" unnamed number={number}"));
        });
    });
}

#[test]
fn connections_are_traced_with_their_peers() {
    in_own_process(|| {
        LazyLock::force(&INSTALLED);
        on_both_drivers(|setup| {
            let (client, server) = setup.run(async {
                let listener = TcpListener::bind(ANY_PORT).unwrap();
                let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                let server = listener.accept().await.unwrap();
                (server.peer_addr().unwrap(), client.peer_addr().unwrap())
            });
            assert_event(&format!("[connect peer={server}] connected"));
            assert_event(&format!(" connection accepted peer={client}"));
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("socket");
            setup.run(async {
                let listener = UnixListener::bind(&path).unwrap();
                drop(UnixStream::connect(&path).await.unwrap());
                listener.accept().await.unwrap();
            });
            let events = EVENTS.lock().unwrap();
            let name = path.display().to_string();
            assert!(events.iter().any(|event| event.starts_with("[connect peer=") && event.contains(&name)));
        });
    });
}

#[test]
fn blocking_closures_run_in_span_below_that_of_caller() {
    in_own_process(|| {
        LazyLock::force(&INSTALLED);
        on_both_drivers(|setup| {
            let number = unique();
            setup.run(async move {
                let span = tracing::debug_span!("request", number);
                let task = span.in_scope(|| spawn_blocking(|| tracing::debug!("reading")));
                task.await.unwrap();
            });
            assert_event(&format!("[request number={number}][blocking spawned_at] reading"));
        });
    });
}

#[test]
fn workers_run_in_their_span() {
    in_own_process(|| {
        LazyLock::force(&INSTALLED);
        on_both_drivers(|setup| {
            let number = unique();
            let workers = Workers::builder().unpinned_workers(2).runtime(setup.builder());
            let workers = workers.start(move |_| async move { tracing::debug!(number, "serving") });
            workers.unwrap().join().unwrap();
            for index in 0..2 {
                assert_event(&format!("[worker index={index}] serving number={number}"));
            }
        });
    });
}

/// The rate of warnings is limited on the clock of each host, and separately in each simulation.
#[test]
fn warnings_of_simulated_hosts_depend_only_on_seed() {
    in_own_process(|| {
        LazyLock::force(&INSTALLED);
        let warnings = || -> Vec<String> {
            let events = EVENTS.lock().unwrap();
            events.iter().filter(|event| event.contains("file descriptors exhausted")).cloned().collect()
        };
        let run = || {
            let earlier = warnings().len();
            let faults = SimFaults::none().descriptor_exhaustion(200);
            let mut sim = Simulation::builder().seed(17).faults(faults).build();
            for name in ["a", "b"] {
                sim.host(name, async || {
                    let listener = TcpListener::bind("0.0.0.0:80")?;
                    loop {
                        listener.accept().await?;
                    }
                });
            }
            sim.client("client", async {
                for _ in 0..600 {
                    sleep(Duration::from_millis(100)).await;
                    drop((TcpStream::connect("a:80").await, TcpStream::connect("b:80").await));
                }
                Ok(())
            });
            sim.run().unwrap();
            warnings().split_off(earlier)
        };
        let first = run();
        assert!((10..=14).contains(&first.len()), "one in ten seconds for each host: {first:?}");
        assert_eq!(run(), first);
    });
}
