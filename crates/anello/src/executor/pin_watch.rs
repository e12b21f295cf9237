//! Returns pinned workers to their cores after the kernel has moved them.
//!
//! The kernel replaces the CPU affinity of a pinned thread when the core goes offline, and before Linux 6.2 also when
//! `cpuset.cpus` of its control group is written. The thread then runs on other cores and stays there. [`PinWatch`]
//! compares the affinity of each worker with its pin, in a thread of its own, so that workers spend no time on this and
//! idle workers are not woken. The worker itself reacts to a change: the thread number of a worker that has exited may
//! belong to another process, and a system call filter can restrict `sched_setaffinity(2)` to the calling thread.
//!
//! A worker whose affinity lacks its core is left alone, because an operator may have moved it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use super::affinity::only;
use super::handle::Handle;
use super::own_thread::OwnThread;
use crate::driver::log_event;

const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A worker that is pinned to a core.
pub(super) struct Pin {
    pub worker: usize,
    pub core: usize,
    pub thread: Pid,
    pub handle: Handle,
}

/// The thread that checks the pins. Stops it when dropped.
#[derive(Debug)]
pub(super) struct PinWatch {
    /// `None` after the drop has started.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<OwnThread<()>>,
}

impl PinWatch {
    pub fn start(pins: Vec<Pin>) -> Option<Self> {
        if pins.is_empty() {
            return None;
        }
        let mut checks = PinChecks::new(pins);
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("anello-pins".into()).spawn(move || {
            while stopped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                checks.run();
            }
        });
        if let Err(error) = &thread {
            log_event!(WARN, %error, "cannot watch the CPU affinity of the workers");
        }
        Some(Self { stop: Some(stop), thread: Some(OwnThread::new(thread.ok()?)) })
    }
}

impl Drop for PinWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(_)) = self.thread.take().and_then(OwnThread::join) {
            log_event!(ERROR, "the thread that watches the CPU affinity of the workers panicked");
        }
    }
}

/// The pins, each with the CPU affinity that the last check found.
struct PinChecks(Vec<(Pin, CpuSet)>);

impl PinChecks {
    fn new(pins: Vec<Pin>) -> Self {
        Self(pins.into_iter().map(|pin| (only(pin.core), pin)).map(|(set, pin)| (pin, set)).collect())
    }

    /// Lets the workers react whose affinity has changed since the last check.
    fn run(&mut self) {
        for (pin, seen) in &mut self.0 {
            // Fails if the worker has exited.
            let Ok(current) = sched_getaffinity(Some(pin.thread)) else { continue };
            if current != *seen {
                *seen = current;
                let (worker, core) = (pin.worker, pin.core);
                pin.handle.spawn(async move { react(worker, core) }).detach();
            }
        }
    }
}

/// Pins the calling worker again if it may use its core, and logs the change.
fn react(worker: usize, core: usize) {
    let Ok(current) = sched_getaffinity(None) else { return };
    if current == only(core) {
        return log_event!(INFO, worker, core, "worker is pinned to its core again");
    }
    if !current.is_set(core) {
        let cores = current.count();
        return log_event!(
            WARN,
            worker,
            core,
            usable_cores = cores,
            "worker has lost its core (offline, cpuset or affinity changed) and continues on others, possibly together with \
             other workers; it returns once it may use its core again"
        );
    }
    // The kernel has widened the affinity. The next check logs the success.
    if let Err(error) = sched_setaffinity(None, &only(core)) {
        log_event!(WARN, worker, core, %error, "cannot pin worker to its core again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anello_test::panic_in_events;

    use super::*;
    use crate::executor::Runtime;
    use crate::executor::affinity::pin_thread;
    use crate::executor::affinity::tests::two_cores;

    /// Calls `test` with the pin of a worker on another thread, and the number of events that it has logged. The
    /// subscriber panics in each of them.
    fn with_pinned_worker(core: usize, test: impl FnOnce(Pin, &AtomicUsize)) {
        let (report, reported) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let worker = thread::spawn(move || {
            pin_thread(core).unwrap();
            let runtime = Runtime::new().unwrap();
            let thread = rustix::thread::gettid();
            let (events, _guard) = panic_in_events();
            let pin = Pin { worker: 0, core, thread, handle: runtime.handle() };
            report.send((pin, Arc::clone(&events))).unwrap();
            runtime.block_on(stopped).unwrap();
        });
        let (pin, events) = reported.recv().unwrap();
        test(pin, &events);
        stop.send(()).unwrap();
        worker.join().unwrap();
    }

    #[test]
    fn worker_is_pinned_again_once_it_may_use_its_core() {
        let Some((both, core)) = two_cores() else { return };
        let mut other = both;
        other.unset(core);
        with_pinned_worker(core, |pin, events| {
            let (handle, thread) = (pin.handle.clone(), pin.thread);
            let mut checks = PinChecks::new(vec![pin]);
            let runtime = Runtime::new().unwrap();
            // This is a task as well. The worker runs it after the tasks that were sent before.
            let spawned_tasks = || runtime.block_on(handle.metrics()).unwrap().spawned_tasks;
            // Returns the affinity after the worker has reacted to the check, and the number of its reactions.
            let mut check_after = |set: &CpuSet| {
                let before = spawned_tasks();
                sched_setaffinity(Some(thread), set).unwrap();
                checks.run();
                let reactions = spawned_tasks() - before - 1;
                let logged = events.swap(0, Ordering::Relaxed);
                (sched_getaffinity(Some(thread)).unwrap(), reactions, logged)
            };
            let pinned = only(core);
            assert_eq!(check_after(&pinned), (pinned, 0, 0), "nothing has changed");
            assert_eq!(check_after(&both), (pinned, 1, 0), "as after a write to cpuset.cpus");
            assert_eq!(check_after(&pinned), (pinned, 1, 1), "the success is logged");
            assert_eq!(check_after(&other), (other, 1, 1), "as after taskset, or while the core is offline");
            assert_eq!(check_after(&other), (other, 0, 0), "the change is logged once");
            assert_eq!(check_after(&both), (pinned, 1, 0), "the core is online again");
        });
    }
}
