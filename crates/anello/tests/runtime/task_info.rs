//! Errors, ids, names and dumps of tasks, and the measurement of polls.

use std::cell::RefCell;
use std::fmt::Write;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use anello::task::{AbortHandle, Builder, Id, TaskState, dump, id, try_id};
use anello::time::{monotonic_now, sleep};
use anello::{Handle, JoinError, JoinHandle, Runtime, spawn, yield_now};

use crate::common::{both_drivers, on_each, on_every_driver, on_every_driver_and_sim, simulated_drivers};

#[test]
fn errors_and_handles_are_send_and_sync() {
    fn check<T: Send + Sync + 'static>() {}
    check::<JoinError>();
    check::<JoinHandle<u32>>();
    check::<AbortHandle>();
    check::<Id>();
    check::<Box<dyn std::error::Error + Send + Sync>>();
    let runtime = Runtime::new().unwrap();
    let panicking: JoinHandle<()> = runtime.spawn(async { panic!("deliberate") });
    let error = runtime.block_on(panicking).unwrap_err();
    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert_eq!(error.to_string(), "task panicked: deliberate");
}

#[test]
fn errors_report_cancellation_and_panic() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let task = spawn(pending::<()>());
            let id = task.id();
            task.abort();
            let error = task.await.unwrap_err();
            assert_eq!((error.is_cancelled(), error.is_panic(), error.id()), (true, false, id));
            let error = error.try_into_panic().unwrap_err();
            assert!(catch_unwind(AssertUnwindSafe(|| error.into_panic())).is_err());
            let panicking: JoinHandle<()> = spawn(async { std::panic::panic_any(5) });
            let error = panicking.await.unwrap_err();
            assert_eq!((error.is_cancelled(), error.is_panic()), (false, true));
            assert_eq!(error.to_string(), "task panicked");
            assert_eq!(error.try_into_panic().unwrap().downcast_ref(), Some(&5));
        });
    });
}

#[test]
fn abort_handle_cancels_from_any_thread() {
    on_every_driver(|setup| {
        setup.run(async {
            for _ in 0..50 {
                let task = spawn(pending::<()>());
                let abort = task.abort_handle();
                assert!(!abort.is_finished() && !task.is_finished());
                let clone = abort.clone();
                thread::spawn(move || clone.abort());
                assert!(task.await.unwrap_err().is_cancelled());
                // On the thread of the task, the two agree.
                assert!(abort.is_finished());
                abort.abort();
            }
        });
    });
}

#[test]
fn abort_during_last_poll_keeps_result() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let own = Rc::new(RefCell::new(None::<AbortHandle>));
            let slot = Rc::clone(&own);
            let task = spawn(async move {
                slot.borrow().as_ref().expect("set before the first poll").abort();
                5
            });
            *own.borrow_mut() = Some(task.abort_handle());
            assert_eq!(task.await.unwrap(), 5, "it completes in the same poll");
            // Also if the task is woken again, when it is already in the queue.
            let slot = Rc::clone(&own);
            let task = spawn(async move {
                slot.borrow().as_ref().expect("set before the first poll").abort();
                yield_now().await;
                5
            });
            *own.borrow_mut() = Some(task.abort_handle());
            assert!(task.await.unwrap_err().is_cancelled());
            assert!(own.borrow().as_ref().is_some_and(AbortHandle::is_finished));
        });
    });
}

struct RecordId(Rc<RefCell<Vec<Option<Id>>>>);

impl Drop for RecordId {
    fn drop(&mut self) {
        self.0.borrow_mut().push(try_id());
    }
}

#[test]
fn id_of_running_task_is_available_in_polls_and_destructors() {
    on_every_driver_and_sim(|setup| {
        assert_eq!(try_id(), None);
        assert!(catch_unwind(id).is_err());
        let recorded = Rc::new(RefCell::new(Vec::new()));
        let record = || RecordId(Rc::clone(&recorded));
        let runtime = setup.runtime();
        let mut expected = Vec::new();
        runtime.block_on(async {
            assert_eq!(try_id(), None, "the main future is not a task");
            for turns in 0..3 {
                let guard = record();
                let task = spawn(async move {
                    let _guard = guard;
                    let first = id();
                    for _ in 0..turns {
                        // Other tasks run in between.
                        spawn(async {}).detach();
                        yield_now().await;
                        assert_eq!(id(), first);
                    }
                    first
                });
                expected.push(Some(task.id()));
                let awaited = task.id();
                assert_eq!(task.await.unwrap(), awaited);
                assert_eq!(try_id(), None);
            }
            // The result of a detached task.
            let guard = record();
            let task = spawn(async move { guard });
            expected.push(Some(task.id()));
            task.detach();
            yield_now().await;
            // An aborted task, and one that is dropped with the runtime.
            for aborts in [true, false] {
                let guard = record();
                let task = spawn(async move {
                    let _guard = guard;
                    pending::<()>().await;
                });
                expected.push(Some(task.id()));
                yield_now().await;
                if aborts {
                    task.abort();
                    yield_now().await;
                }
            }
        });
        drop(runtime);
        assert_eq!(*recorded.borrow(), expected);
        assert_eq!(try_id(), None);
    });
}

#[test]
fn dump_lists_unfinished_tasks() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        assert!(catch_unwind(dump).is_err());
        runtime.block_on(async {
            assert!(dump().tasks.is_empty() && dump().to_string().is_empty());
            let line = line!() + 1;
            let waiting = spawn(pending::<()>());
            let named = Builder::new().name("na\"med").spawn(pending::<()>()).unwrap();
            yield_now().await;
            let ready = Builder::default().spawn(async {}).unwrap();
            let listed = dump();
            let [first, second, third] = &listed.tasks[..] else { panic!("{listed}") };
            assert_eq!([first.id, second.id, third.id], [waiting.id(), named.id(), ready.id()]);
            assert_eq!(
                [first.state, second.state, third.state],
                [TaskState::Waiting, TaskState::Waiting, TaskState::Ready]
            );
            assert_eq!((first.location.file(), first.location.line()), (file!(), line));
            assert_eq!((&first.name, second.name.as_deref()), (&None, Some("na\"med")));
            assert_eq!((first.polls, first.longest_poll), (0, None), "polls are not measured");
            let text = listed.to_string();
            let expected = format!("task {} \"na\\\"med\": waiting, spawned at {}:", second.id, file!());
            assert!(text.lines().nth(1).unwrap().starts_with(&expected), "{text}");
            ready.await.unwrap();
            // A task that dumps its own runtime is running. A handle omits the task that it spawns.
            let own = spawn(async { dump() }).await.unwrap();
            assert_eq!(own.tasks.last().map(|task| task.state), Some(TaskState::Running));
            assert_eq!(Handle::current().dump().await.unwrap().tasks.len(), 2);
            named.abort();
            waiting.abort();
            yield_now().await;
            assert!(dump().tasks.is_empty());
            drop((waiting, named));
        });
    });
}

#[test]
fn dump_of_other_thread_and_of_dropped_runtime() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let handle = runtime.handle();
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let other = both_drivers().pop().unwrap().runtime();
            let dump = handle.block_on(handle.dump()).unwrap();
            let task = Builder::new().name("remote").spawn_on(pending::<()>(), &handle).unwrap();
            let again = other.block_on(handle.dump()).unwrap();
            task.abort();
            drop(end);
            (handle, dump.tasks.len(), again.tasks.into_iter().map(|task| task.name).collect::<Vec<_>>())
        });
        let local = Builder::new().name("local").spawn_local_on(pending::<()>(), &runtime).unwrap();
        runtime.block_on(async {
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                sleep(Duration::from_micros(100)).await;
            }
        });
        let (handle, count, mut names) = thread.join().unwrap();
        names.sort();
        assert_eq!((count, names), (1, vec![Some("local".to_owned()), Some("remote".to_owned())]));
        drop((local, runtime));
        assert!(handle.block_on(handle.dump()).unwrap_err().is_cancelled());
    });
}

#[test]
fn measured_polls_are_counted() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.builder().measure_polls(true).build().unwrap();
        runtime.block_on(async {
            let task = spawn(async {
                for _ in 0..4 {
                    yield_now().await;
                }
                pending::<()>().await;
            });
            let short = spawn(async {});
            short.await.unwrap();
            for _ in 0..10 {
                yield_now().await;
            }
            let listed = dump();
            assert_eq!((listed.tasks.len(), listed.tasks[0].id, listed.tasks[0].polls), (1, task.id(), 5));
            // Polls take no virtual time.
            assert_eq!(
                listed.tasks[0].longest_poll == Some(Duration::ZERO),
                setup.is_simulated(),
                "{listed}"
            );
            assert!(listed.to_string().contains("5 polls, longest "), "{listed}");
            task.abort();
        });
    });
}

/// Subscriber that records warnings, and panics afterwards if requested.
pub struct Warnings {
    pub lines: Arc<Mutex<Vec<String>>>,
    pub panics: bool,
}

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.lines.lock().unwrap().push(fields.0);
        if self.panics {
            panic!("deliberate, in a subscriber");
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// On the virtual clock, a poll takes only as long as its reads of the clock.
#[test]
fn slow_polls_are_reported() {
    on_each(simulated_drivers(), |setup| {
        for panics in [false, true] {
            let lines = Arc::new(Mutex::new(Vec::new()));
            let subscriber = Warnings { lines: Arc::clone(&lines), panics };
            // Virtual time passes for code that reads the clock many times.
            let slow = || {
                let started = monotonic_now();
                while monotonic_now() - started < Duration::from_micros(100) {}
            };
            tracing::subscriber::with_default(subscriber, || {
                let builder = setup.builder().slow_poll_threshold(Duration::from_micros(50));
                builder.build().unwrap().block_on(async {
                    let task = Builder::new().name("slow").spawn(async move {
                        yield_now().await;
                        slow();
                        yield_now().await;
                    });
                    let quick = spawn(async { yield_now().await });
                    let id = task.as_ref().unwrap().id();
                    task.unwrap().await.unwrap();
                    quick.await.unwrap();
                    slow();
                    yield_now().await;
                    assert_eq!(lines.lock().unwrap().len(), 2, "{:?}", lines.lock().unwrap());
                    assert!(lines.lock().unwrap()[0].contains(&format!("task_id={id} task_name=\"slow\" ")));
                    // Tasks without a name that complete in a slow poll are reported too.
                    spawn(async move { slow() }).await.unwrap();
                });
            });
            let lines = lines.lock().unwrap();
            assert_eq!(lines.len(), 3, "{lines:?}");
            assert!(lines.iter().all(|line| line.contains("slow poll") && line.contains("duration=")));
            assert!(lines[0].contains(&format!("spawned_at={}:", file!())), "{lines:?}");
            assert!(lines[1].contains("block_on"), "{lines:?}");
            assert!(!lines[2].contains("task_name"), "{lines:?}");
        }
    });
}

#[test]
fn slow_polls_are_not_reported_by_default() {
    on_every_driver_and_sim(|setup| {
        for (builder, reports) in [
            (setup.builder(), false),
            (setup.builder().measure_polls(true), false),
            (setup.builder().slow_poll_threshold(Duration::MAX), false),
            (setup.builder().slow_poll_threshold(Duration::ZERO), true),
        ] {
            let lines = Arc::new(Mutex::new(Vec::new()));
            let subscriber = Warnings { lines: Arc::clone(&lines), panics: false };
            tracing::subscriber::with_default(subscriber, || {
                builder.build().unwrap().block_on(async { spawn(yield_now()).await.unwrap() });
            });
            let is_reported = lines.lock().unwrap().iter().any(|line| line.contains("slow poll"));
            assert_eq!(is_reported, reports);
        }
    });
}
