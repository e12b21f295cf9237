//! Reports of polls that do not return, and dumps of blocked workers. The subscriber is global, because another thread
//! reports the polls: each test runs in a process of its own.

use std::fs::{read_dir, read_to_string};
use std::future::pending;
use std::hint::{black_box, spin_loop};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use anello::task::{Builder, TaskState};
use anello::{Handle, RuntimeBuilder, yield_now};
use tokio::sync::oneshot;

use super::task_info::Warnings;
use crate::common::{Setup, in_own_process, on_each, on_every_driver, poll_once, simulated_drivers};

type Lines = Arc<Mutex<Vec<String>>>;

fn install_subscriber() -> Lines {
    let lines = Lines::default();
    let subscriber = Warnings { lines: Arc::clone(&lines), panics: false };
    tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    lines
}

/// Waits until a condition is met. The test program ends tests that hang.
fn wait_until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = condition() {
            return value;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a line that contains all of these texts.
fn wait_for_line(lines: &Lines, texts: &[&str]) -> String {
    let find =
        || lines.lock().unwrap().iter().find(|line| texts.iter().all(|text| line.contains(text))).cloned();
    wait_until(find)
}

fn watchdog_threads() -> usize {
    let threads = read_dir("/proc/self/task").unwrap().flatten();
    // A thread may have exited in the meantime.
    threads
        .filter(|thread| {
            read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "anello-watchdog\n")
        })
        .count()
}

/// Its name is expected in backtraces.
#[inline(never)]
fn wait_for_release(released: &mpsc::Receiver<()>) {
    black_box(released.recv()).unwrap_err();
}

/// A loop without system calls.
#[inline(never)]
fn spin_until_release(released: &mpsc::Receiver<()>) {
    while black_box(released.try_recv()) == Err(mpsc::TryRecvError::Empty) {
        spin_loop();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Blocks {
    Task,
    SpinningTask,
    MainFuture,
}

impl Blocks {
    fn function(self) -> &'static str {
        // The interrupted instruction can belong to a function that is inlined into this one. Then the name has no path.
        if self == Self::SpinningTask { "spin_until_release" } else { "blocked_polls::wait_for_release" }
    }
}

/// A worker of which a poll does not return until it is released.
struct BlockedWorker {
    handle: Handle,
    release: mpsc::Sender<()>,
    end: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl BlockedWorker {
    /// Returns once the poll has started.
    fn start(builder: RuntimeBuilder, name: &str, blocks: Blocks) -> Self {
        let (send_handle, handle) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let worker = move || {
            let runtime = builder.build().unwrap();
            let idle = Builder::new().name("idle").spawn_local_on(pending::<()>(), &runtime).unwrap();
            let own = runtime.handle();
            let blocking = async move {
                send_handle.send(own).unwrap();
                match blocks {
                    Blocks::SpinningTask => spin_until_release(&released),
                    Blocks::Task | Blocks::MainFuture => wait_for_release(&released),
                }
            };
            match blocks {
                Blocks::Task | Blocks::SpinningTask => {
                    let task = Builder::new().name("blocking").spawn_local_on(blocking, &runtime).unwrap();
                    runtime.block_on(task).unwrap();
                }
                Blocks::MainFuture => runtime.block_on(blocking),
            }
            runtime.block_on(ended).unwrap();
            idle.abort();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(worker).unwrap();
        Self { handle: handle.recv().unwrap(), release, end, thread }
    }
}

/// Returns `false` if the machine was so slow that there is no backtrace, or one of an earlier function.
fn reports_blocked_poll(setup: &Setup, lines: &Lines, blocks: Blocks) -> bool {
    let name = format!("{} {blocks:?}", setup.name);
    let builder = setup.builder().blocked_poll_threshold(Duration::from_millis(20));
    let worker = BlockedWorker::start(builder, &name, blocks);
    let task_name = if blocks == Blocks::MainFuture { "block_on" } else { "blocking" };
    let texts = [&format!("worker={name:?}")[..], &format!("task_name={task_name:?}"), "blocked poll"];
    let line = wait_for_line(lines, &texts);
    assert!(watchdog_threads() >= 1);
    let other = setup.runtime();
    let dump = other.block_on(async {
        // Requested of both workers before the first is awaited.
        let (blocked, own) = (worker.handle.dump(), other.handle().dump());
        assert!(own.await.unwrap().blocked.is_none());
        blocked.await.unwrap()
    });
    let poll = dump.blocked.as_ref().expect("the worker is blocked");
    assert_eq!(poll.worker, name);
    assert!(poll.duration >= Duration::from_millis(20), "{poll}");
    assert!(line.contains(&format!("thread_id={} ", poll.thread_id)), "{line}\n{poll}");
    let text = dump.to_string();
    match (blocks, &dump.tasks[..]) {
        (Blocks::Task | Blocks::SpinningTask, [task]) => {
            assert_eq!((task.name.as_deref(), task.state), (Some("blocking"), TaskState::Running));
            assert_eq!(poll.task, Some(task.id));
            assert!(line.contains(&format!("task_id={} ", task.id)), "{line}");
            assert!(line.contains(&format!("spawned_at={} ", task.location)), "{line}");
            assert!(text.contains(&format!("is blocked by task {} for ", task.id)), "{text}");
        }
        (Blocks::MainFuture, []) => {
            assert_eq!(poll.task, None);
            assert!(text.contains("is blocked by block_on for "), "{text}");
        }
        _ => panic!("{text}"),
    }
    drop(worker.release);
    let dump = wait_until(|| {
        let dump = other.block_on(worker.handle.dump()).unwrap();
        (dump.blocked.is_none() && dump.tasks.len() == 1).then_some(dump)
    });
    assert_eq!(dump.tasks[0].name.as_deref(), Some("idle"));
    worker.end.send(()).unwrap();
    worker.thread.join().unwrap();
    assert!(other.block_on(worker.handle.dump()).unwrap_err().is_cancelled());
    let mut lines = lines.lock().unwrap();
    let reports = lines.iter().filter(|line| texts.iter().all(|text| line.contains(text)));
    assert!(blocks == Blocks::MainFuture || reports.count() == 1, "one report per poll: {lines:?}");
    lines.retain(|line| !line.contains(texts[0]));
    let has_backtrace = !line.contains("unavailable: ");
    assert!(has_backtrace || line.contains("has not handled signal"), "{line}");
    assert!(!line.contains("on_signal"), "{line}");
    // A slow machine may have interrupted the poll before that function, or an earlier poll of the main future.
    let function = blocks.function();
    let names_function = has_backtrace && line.contains(function);
    if names_function && blocks != Blocks::MainFuture {
        assert!(line.contains(file!()), "{line}");
        assert!(poll.backtrace.contains(function), "{poll}");
    }
    names_function
}

#[test]
fn blocked_polls_are_reported_and_dumped() {
    in_own_process(|| {
        let lines = install_subscriber();
        on_every_driver(move |setup| {
            for blocks in [Blocks::Task, Blocks::SpinningTask, Blocks::MainFuture] {
                while !reports_blocked_poll(setup, &lines, blocks) {}
            }
        });
        // It ends with the last runtime.
        wait_until(|| (watchdog_threads() == 0).then_some(()));
    });
}

#[test]
fn blocked_worker_without_threshold_delays_only_its_own_dump() {
    in_own_process(|| {
        let lines = install_subscriber();
        on_every_driver(|setup| {
            let worker = BlockedWorker::start(setup.builder(), "blocked", Blocks::Task);
            setup.run(async {
                let mut blocked = Box::pin(worker.handle.dump());
                assert!(Handle::current().dump().await.unwrap().blocked.is_none());
                assert!(poll_once(&mut blocked).await.is_none());
                drop(worker.release);
                let dump = blocked.await.unwrap();
                assert!(dump.blocked.is_none(), "{dump}");
            });
            worker.end.send(()).unwrap();
            worker.thread.join().unwrap();
            assert_eq!(watchdog_threads(), 0);
        });
        assert!(lines.lock().unwrap().is_empty());
    });
}

/// The tables of functions that unwind a panic do not describe their stack at every instruction.
#[test]
fn worker_that_unwinds_panics_is_reported() {
    in_own_process(|| {
        let lines = install_subscriber();
        on_every_driver(move |setup| {
            let runtime = setup.builder().blocked_poll_threshold(Duration::ZERO).build().unwrap();
            runtime.block_on(async {
                for _ in 0..50 {
                    let reports = lines.lock().unwrap().len();
                    while lines.lock().unwrap().len() == reports {
                        catch_unwind(|| resume_unwind(Box::new(()))).unwrap_err();
                    }
                    yield_now().await;
                }
            });
        });
    });
}

#[test]
fn simulated_workers_are_not_watched() {
    in_own_process(|| {
        on_each(simulated_drivers(), |setup| {
            let builder = setup.builder().blocked_poll_threshold(Duration::ZERO);
            builder.build().unwrap().block_on(async { assert_eq!(watchdog_threads(), 0) });
        });
    });
}
