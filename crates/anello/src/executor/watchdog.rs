//! Reports of polls that do not return. They are made by another thread, because the worker is blocked.
//!
//! A worker publishes its current poll in a [`WatchedWorker`], which the thread inspects when the poll can have reached
//! the threshold. One thread per process watches all workers, and exits with the last one.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{Pid, gettid};
use tokio::sync::oneshot;

use super::affinity::{pinned_core, unpin_thread};
#[cfg(all(feature = "backtrace", any(target_arch = "x86_64", target_arch = "aarch64")))]
use super::stack_sample::backtrace_of;
use super::task_info::{Id, Info, TaskIdentity};
use crate::driver::{OwnerProcess, PerProcess, catch_and_log_panic, log_event};

/// Smallest threshold. The thread checks an idle worker as often as this.
const MIN_THRESHOLD: Duration = Duration::from_millis(1);

static WATCHDOG: PerProcess<Watchdog> = PerProcess::new(Watchdog::default);

/// The poll that blocks a worker, in a [`Dump`](crate::task::Dump) of a worker that does not respond.
///
/// See [`RuntimeBuilder::blocked_poll_threshold`](crate::RuntimeBuilder::blocked_poll_threshold) for an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockedPoll {
    /// Name of the worker's thread, or `<unnamed>`.
    pub worker: String,
    /// Number of the worker's thread, as shown by `top -H` and accepted by `gdb -p` and `strace -p`.
    pub thread_id: u32,
    /// The task that is being polled, or `None` for the future passed to `block_on`.
    pub task: Option<Id>,
    /// Duration of the poll so far.
    pub duration: Duration,
    /// Functions that the worker was executing when the poll was reported, innermost first, with their source locations
    /// if the program contains debug information. Otherwise the reason why they are unknown.
    pub backtrace: String,
}

/// A blocked poll, and the task being polled.
pub(super) type Blocked = (BlockedPoll, Option<TaskIdentity>);

/// A worker whose polls are watched. Belongs to the thread that creates it.
#[derive(Debug)]
pub(super) struct WatchedWorker {
    name: String,
    thread: Pid,
    threshold: Duration,
    /// Time at which the driver was opened, which is the zero of the worker's clock.
    opened: Instant,
    process: OwnerProcess,
    state: Mutex<PollState>,
}

#[derive(Debug, Default)]
struct PollState {
    /// Number of polls that have started.
    polls: u64,
    /// The current poll.
    poll: Option<RunningPoll>,
    /// Receive the current poll once it is reported.
    waiting: Vec<oneshot::Sender<Blocked>>,
}

#[derive(Debug)]
struct RunningPoll {
    task: Option<TaskIdentity>,
    /// Time on the worker's clock.
    started_ns: u64,
    /// The stack of the poll is below this address.
    stack_end: usize,
    /// Set once the poll has been reported.
    backtrace: Option<String>,
}

/// Ends the poll when dropped.
pub(super) struct PollGuard<'a>(&'a WatchedWorker);

#[derive(Debug, Default)]
struct Watchdog {
    state: Mutex<WatchdogState>,
    /// Signalled when a worker is added or removed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchdogState {
    workers: Vec<Arc<WatchedWorker>>,
    /// `true` while the thread is running.
    is_running: bool,
}

impl WatchedWorker {
    pub fn new(threshold: Duration, opened: Instant) -> Self {
        Self {
            name: thread::current().name().unwrap_or("<unnamed>").to_owned(),
            thread: gettid(),
            threshold: threshold.max(MIN_THRESHOLD),
            opened,
            process: OwnerProcess::current(),
            state: Mutex::default(),
        }
    }

    /// Starts to watch the worker.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch(self: &Arc<Self>) -> io::Result<()> {
        WATCHDOG.get().add(Arc::clone(self))
    }

    /// Ends watching the worker.
    pub fn unwatch(self: &Arc<Self>) {
        let watchdog = WATCHDOG.get();
        watchdog.lock().workers.retain(|worker| !Arc::ptr_eq(worker, self));
        watchdog.changed.notify_one();
    }

    /// Publishes the poll of a task or, if `info` is `None`, of the main future. Called only by the worker.
    pub fn start_poll(&self, info: Option<&Info>, started_ns: u64, stack_end: usize) -> PollGuard<'_> {
        if let Some(mut state) = self.lock() {
            state.polls += 1;
            let task = info.map(Info::identity);
            state.poll = Some(RunningPoll { task, started_ns, stack_end, backtrace: None });
        }
        PollGuard(self)
    }

    /// Returns a receiver of the current or a later poll that is reported. The value arrives at once if the current one
    /// has been reported.
    pub fn when_blocked(&self) -> oneshot::Receiver<Blocked> {
        let (sender, receiver) = oneshot::channel();
        let Some(mut state) = self.lock() else { return receiver };
        match self.blocked(&state) {
            // Fails only if the receiver has been dropped.
            Some(blocked) => drop(sender.send(blocked)),
            None => {
                state.waiting.retain(|waiting| !waiting.is_closed());
                state.waiting.push(sender);
            }
        }
        receiver
    }

    /// Returns `None` in a forked child process, where a thread that does not exist may have locked the state.
    fn lock(&self) -> Option<MutexGuard<'_, PollState>> {
        self.process.is_current().then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the current poll if it has been reported.
    fn blocked(&self, state: &PollState) -> Option<Blocked> {
        let poll = state.poll.as_ref()?;
        let blocked = BlockedPoll {
            worker: self.name.clone(),
            thread_id: self.thread.as_raw_nonzero().get().unsigned_abs(),
            task: poll.task.as_ref().map(|task| task.id),
            duration: self.duration(poll),
            backtrace: poll.backtrace.clone()?,
        };
        Some((blocked, poll.task.clone()))
    }

    /// Returns how long the current poll, or one that starts now, can continue without being reported.
    fn time_to_report(&self) -> Duration {
        let state = self.lock();
        let poll = state.as_ref().and_then(|state| state.poll.as_ref());
        let unreported = poll.filter(|poll| poll.backtrace.is_none());
        self.threshold.saturating_sub(unreported.map_or(Duration::ZERO, |poll| self.duration(poll)))
    }

    fn duration(&self, poll: &RunningPoll) -> Duration {
        self.opened.elapsed().saturating_sub(Duration::from_nanos(poll.started_ns))
    }

    /// Reports the current poll, unless it returns in the meantime.
    fn report(&self) {
        let Some((polls, stack_end)) =
            self.lock().and_then(|state| Some((state.polls, state.poll.as_ref()?.stack_end)))
        else {
            return;
        };
        let backtrace =
            backtrace_of(self.thread, stack_end).unwrap_or_else(|reason| format!("unavailable: {reason}"));
        let Some(mut state) = self.lock() else { return };
        if state.polls != polls {
            return;
        }
        let Some(poll) = &mut state.poll else { return };
        poll.backtrace = Some(backtrace);
        let Some((blocked, task)) = self.blocked(&state) else { return };
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        // First, because the subscriber of `tracing` may wait for a lock that the worker holds.
        for sender in waiting {
            let value = (blocked.clone(), task.clone());
            catch_and_log_panic("waker panicked while a blocked worker was reported", || {
                drop(sender.send(value));
            });
        }
        log_event!(
            WARN,
            worker = blocked.worker,
            thread_id = blocked.thread_id,
            task_id = blocked.task.map(display),
            task_name = task.as_ref().map_or(Some("block_on"), |task| task.name.as_deref()),
            spawned_at = task.as_ref().map(|task| display(task.location)),
            duration = ?blocked.duration,
            backtrace = %format_args!("\n{}", blocked.backtrace),
            "blocked poll: it has not returned, and the other tasks of the worker wait (use spawn_blocking or yield_now)"
        );
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        if let Some(mut state) = self.0.lock() {
            state.poll = None;
        }
    }
}

impl Watchdog {
    fn lock(&self) -> MutexGuard<'_, WatchdogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, worker: Arc<WatchedWorker>) -> io::Result<()> {
        let mut state = self.lock();
        if !state.is_running {
            let pinned = pinned_core();
            thread::Builder::new().name("anello-watchdog".into()).spawn(move || {
                // The task that blocks the worker can occupy its core.
                if let Some(pinned) = pinned {
                    unpin_thread(&pinned);
                }
                self.run();
            })?;
            state.is_running = true;
        }
        state.workers.push(worker);
        self.changed.notify_one();
        Ok(())
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.workers.is_empty() {
            let times: Vec<_> = state.workers.iter().map(|worker| worker.time_to_report()).collect();
            let due = state.workers.iter().zip(&times).filter(|(_, time)| time.is_zero());
            let due: Vec<_> = due.map(|(worker, _)| Arc::clone(worker)).collect();
            if due.is_empty() {
                let wait = times.into_iter().min().unwrap_or_default();
                let waited = self.changed.wait_timeout(state, wait);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(state);
            due.iter().for_each(|worker| worker.report());
            state = self.lock();
        }
        state.is_running = false;
    }
}

#[cfg(not(all(feature = "backtrace", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn backtrace_of(_: Pid, _: usize) -> Result<String, String> {
    Err("it requires the feature `backtrace` of the crate anello, on x86-64 or AArch64".to_owned())
}

impl fmt::Display for BlockedPoll {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "worker {:?} (thread {}) is blocked by ", self.worker, self.thread_id)?;
        match self.task {
            Some(id) => write!(formatter, "task {id}")?,
            None => formatter.write_str("block_on")?,
        }
        write!(formatter, " for {:?}; its other tasks are unknown", self.duration)
    }
}
