//! Thread pools for blocking work, so that workers never wait for disk I/O.
//!
//! The process has two pools, so that file operations never queue behind slow application work. Work that finds the FIFO
//! queue of its pool full is rejected: it does not run, and its handle returns an error.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use super::affinity::{pinned_core, unpin_thread};
use super::context::{Shared, flush_wakes_before_blocking, with_current};
use super::join::{Join, JoinHandle};
use super::origin::{Origin, OriginGuard};
use super::task_info::Id;
use crate::driver::{Disk, PerProcess, catch_and_log_panic, log_event, log_span};

/// Maximum number of threads per process that run [`spawn_blocking`] work.
///
/// ```
/// # anello::example! {
/// use anello::sync::Semaphore;
///
/// // Leaves half of the threads to other closures.
/// let conversions = Semaphore::new(anello::task::MAX_BLOCKING_THREADS / 2);
/// let _permit = conversions.acquire().await.expect("the semaphore is not closed");
/// assert_eq!(anello::spawn_blocking(|| 6 * 7).await?, 42);
/// # }
/// ```
pub const MAX_BLOCKING_THREADS: usize = 512;

/// Maximum number of threads that run file operations, without stalled threads. Few disks benefit from more requests in
/// flight, and each thread needs memory for its stack.
const FILE_THREADS: usize = 32;

/// Maximum number of threads for file operations, with stalled threads.
const MAX_FILE_THREADS: usize = 512;

/// Time after which all threads of a pool are stalled if none of them has started waiting work.
const STALL_TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum number of closures that wait in the queue of a pool, or of a file. More of them than tasks that wait for a
/// result means that an application does not limit what it starts.
pub(super) const MAX_QUEUED_WORK: usize = 65_536;

const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) type Work = Box<dyn FnOnce() + Send>;

/// A pool grows beyond its usual number of threads while work stalls, so that work on a dead mount, for example, does
/// not stop all other work.
pub(super) struct Pool {
    thread_name: &'static str,
    usual_threads: usize,
    max_threads: usize,
    state: Mutex<State>,
    work_available: Condvar,
}

struct State {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
    /// Set if the last thread could not be started.
    lacks_threads: bool,
    /// Number of closures that have been started.
    started: u64,
    /// Number of closures that are running.
    running: usize,
    /// Number of closures that were running at the last stall, and still are. They do not count towards the usual number
    /// of threads.
    stalled: usize,
    /// Value of `started` at the last stall.
    stalled_at: u64,
    /// Set while a thread checks whether work stalls.
    is_watched: bool,
}

static WORK: PerProcess<Pool> =
    PerProcess::new(|| Pool::new("anello-blocking", MAX_BLOCKING_THREADS, MAX_BLOCKING_THREADS));
pub(super) static FILES: PerProcess<Pool> =
    PerProcess::new(|| Pool::new("anello-files", FILE_THREADS, MAX_FILE_THREADS));

impl Pool {
    const fn new(thread_name: &'static str, usual_threads: usize, max_threads: usize) -> Self {
        let state = State {
            work: VecDeque::new(),
            threads: 0,
            idle: 0,
            lacks_threads: false,
            started: 0,
            running: 0,
            stalled: 0,
            stalled_at: 0,
            is_watched: false,
        };
        let state = Mutex::new(state);
        Self { thread_name, usual_threads, max_threads, state, work_available: Condvar::new() }
    }

    /// Returns the number of threads that may exist now.
    fn thread_limit(&self, state: &State) -> usize {
        self.max_threads.min(self.usual_threads + state.stalled)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is not held while work runs, so a panic in the work cannot poison it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work. Drops it and returns `false` if the queue is full.
    #[must_use]
    pub fn add(&'static self, work: Work) -> bool {
        let state = self.lock();
        if state.work.len() >= MAX_QUEUED_WORK {
            // The destructor of the work runs application code, without the lock.
            drop(state);
            return false;
        }
        self.push(state, work);
        true
    }

    /// Queues work that another limit applies to, even if this queue is full.
    pub fn add_continuation(&'static self, work: Work) {
        self.push(self.lock(), work);
    }

    fn push(&'static self, mut state: MutexGuard<'_, State>, work: Work) {
        state.work.push_back(work);
        if state.idle >= state.work.len() {
            self.work_available.notify_one();
        } else if state.threads < self.thread_limit(&state) {
            state.threads += 1;
            drop(state);
            self.start_thread();
        } else if self.usual_threads < self.max_threads && !state.is_watched {
            state.is_watched = true;
            drop(state);
            self.start_watch();
        }
    }

    fn start_watch(&'static self) {
        let pinned = pinned_core();
        let started = thread::Builder::new().name(format!("{}-watch", self.thread_name)).spawn(move || {
            pinned.inspect(unpin_thread);
            self.watch();
        });
        if let Err(error) = started {
            self.lock().is_watched = false;
            log_event!(DEBUG, %error, "cannot spawn a thread that watches for stalled work");
        }
    }

    /// Adds threads whenever no work has been started for [`STALL_TIMEOUT`]. Returns when no work is waiting.
    fn watch(&'static self) {
        let mut state = self.lock();
        while !state.work.is_empty() {
            let started_before = state.started;
            drop(state);
            thread::sleep(STALL_TIMEOUT);
            state = self.lock();
            if state.started == started_before && !state.work.is_empty() {
                (state.stalled, state.stalled_at) = (state.running, state.started);
                let (stalled, waiting) = (state.stalled, state.work.len());
                let new_threads = self.thread_limit(&state).saturating_sub(state.threads).min(waiting);
                state.threads += new_threads;
                drop(state);
                if new_threads > 0 {
                    log_event!(
                        WARN,
                        stalled,
                        new_threads,
                        "blocking operations do not complete; adding threads"
                    );
                }
                for _ in 0..new_threads {
                    self.start_thread();
                }
                state = self.lock();
            }
        }
        state.is_watched = false;
    }

    fn start_thread(&'static self) {
        let pinned = pinned_core();
        let started = thread::Builder::new().name(self.thread_name.into()).spawn(move || {
            // Otherwise the thread would compete with the worker that started it, whichever worker its work is from.
            pinned.inspect(unpin_thread);
            log_event!(DEBUG, "blocking thread started");
            self.run();
            log_event!(DEBUG, "blocking thread exited: idle for 10 s");
        });
        let mut state = self.lock();
        let lacked_threads = std::mem::replace(&mut state.lacks_threads, started.is_err());
        if let Err(error) = started {
            state.threads -= 1;
            if state.threads > 0 {
                // Existing threads will run the work later.
                return;
            }
            drop(state);
            // Only once: a subscriber can use this pool.
            if !lacked_threads {
                log_event!(WARN, %error, "cannot spawn a blocking thread; running the work on the calling thread");
            }
            catch_and_log_panic("waker panicked before a blocking call", flush_wakes_before_blocking);
            drop(self.run_queued(self.lock()));
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            state = self.run_queued(state);
            state.idle += 1;
            debug_assert!(
                state.idle <= state.threads && state.threads <= self.max_threads,
                "{} of {} blocking threads are idle",
                state.idle,
                state.threads
            );
            let has_no_work = |state: &mut State| state.work.is_empty();
            let waited = self.work_available.wait_timeout_while(state, IDLE_TIMEOUT, has_no_work);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            if state.work.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// Runs the queued work, which catches its own panics. Abandoned results are dropped here.
    fn run_queued<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(work) = state.work.pop_front() {
            state.started += 1;
            state.running += 1;
            let number = state.started;
            drop(state);
            catch_and_log_panic("abandoned result of blocking work panicked while being dropped", work);
            state = self.lock();
            state.running -= 1;
            if number <= state.stalled_at {
                state.stalled -= 1;
            }
        }
        state
    }
}

/// Runs a blocking closure on the process-wide blocking thread pool. The returned handle waits for its result.
///
/// Use this function for every call that can block the thread, so that the worker's other tasks continue to run. The
/// closure runs even if the handle is never polled. Dropping the handle discards the result. Aborting it cancels the
/// closure only if it has not started.
///
/// The pool grows on demand, up to [`MAX_BLOCKING_THREADS`](crate::task::MAX_BLOCKING_THREADS) (512) threads. If all of
/// them are busy, up to 65,536 closures wait in a FIFO queue. A thread exits after 10 s without work. File operations
/// have their own pool; see [`fs::spawn_file_operation`](crate::fs::spawn_file_operation).
///
/// In the closure, [`Handle::current`](crate::Handle::current) returns the caller's runtime, and
/// [`Handle::block_on`](crate::Handle::block_on) waits for a future. The closure runs in a debugging span `blocking` of
/// `tracing`, whose parent is the caller's span.
///
/// On the simulated driver, this function returns only after another thread has run the closure. The virtual clock does
/// not advance in the meantime, so that a seed always produces the same run. A closure that waits for a task, or for a
/// closure spawned later, therefore deadlocks on the simulated driver.
///
/// ```
/// # anello::example! {
/// let text = anello::spawn_blocking(|| std::fs::read_to_string("/proc/version")).await??;
/// assert!(text.starts_with("Linux"));
/// # }
/// ```
///
/// # Errors
/// The handle returns a [`JoinError`](crate::JoinError) if the closure panicked, was aborted before it started, or was
/// rejected because the queue was full.
#[track_caller]
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    spawn_for(work, Origin::current())
}

/// Runs a closure on the blocking thread pool, for a runtime.
#[track_caller]
pub(super) fn spawn_for<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    origin: Option<Origin>,
) -> JoinHandle<T> {
    // Work that is spawned by awaited work is awaited too.
    let is_awaited = is_simulated() || origin.as_ref().is_some_and(|origin| origin.is_waiting);
    let location = Location::caller();
    let span = log_span!("blocking", spawned_at = %location);
    let work = move || {
        let _origin = OriginGuard::new(origin);
        span.in_scope(work)
    };
    spawn_with(|work| WORK.get().add(work), work, is_awaited)
}

thread_local! {
    /// Id of the blocking work that this thread runs.
    static BLOCKING_ID: Cell<Option<Id>> = const { Cell::new(None) };
}

/// Returns the id of the blocking work that this thread runs.
pub(super) fn blocking_id() -> Option<Id> {
    BLOCKING_ID.get()
}

pub(super) fn is_simulated() -> bool {
    with_current(Shared::is_simulated) == Some(true)
}

/// Runs a file operation on the thread pool for file operations. The returned handle waits for its result.
///
/// This pool has up to 32 threads, which also run the operations of [`File`](crate::fs::File). Use it for operations
/// of bounded duration, such as opening, listing, reading or removing files. Do not use it for pipes, locks or
/// computations: they would delay every file operation in the process. If all threads are busy and none of them becomes
/// free for 100 ms, for example because a mount is dead, these operations no longer count, and up to 32 more threads
/// run the others. At most 512 threads exist; if none of them becomes free, operations wait. As with
/// [`spawn_blocking`](crate::spawn_blocking), the operation runs even if the future is never polled or is dropped.
///
/// ```
/// # anello::example! {
/// use anello::fs::spawn_file_operation;
///
/// let version = spawn_file_operation(|| std::fs::read_to_string("/proc/version")).await??;
/// assert!(version.starts_with("Linux"));
/// # }
/// ```
///
/// # Errors
/// The handle returns a [`JoinError`](crate::JoinError) if the operation panicked, was aborted before it started, or was
/// rejected because 65,536 operations were waiting.
pub fn spawn_file_operation<T: Send + 'static>(
    operation: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    spawn_with_disk(|work| FILES.get().add(work), operation)
}

/// Like [`spawn_file_operation`], but never rejects the operation. The caller limits the number of operations.
pub(crate) fn spawn_limited_file_operation<T: Send + 'static>(
    operation: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let add = |work| {
        FILES.get().add_continuation(work);
        true
    };
    spawn_with_disk(add, operation)
}

/// Returns the disk for the next file operation. It has an effect only on a simulated host.
pub(crate) fn disk() -> Disk {
    let disk = with_current(|shared| shared.is_simulated().then(|| shared.driver.borrow().disk()));
    disk.flatten().unwrap_or_default()
}

/// Like [`spawn_with`], for file operations. On a simulated host with a slow disk, the operation runs later.
pub(super) fn spawn_with_disk<T: Send + 'static>(
    add: impl FnOnce(Work) -> bool + Send + 'static,
    operation: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let deadline_ns =
        with_current(
            |shared| {
                if shared.is_simulated() { shared.driver.borrow().disk_deadline_ns() } else { None }
            },
        );
    match deadline_ns.flatten() {
        None => spawn_with(add, operation, is_simulated()),
        Some(deadline_ns) => {
            let (join, handle) = JoinHandle::new_blocking();
            let work = move || {
                let (sender, done) = mpsc::channel::<()>();
                add_joined(add, join, operation, Some(sender));
                done.recv().ok();
            };
            let waker = Waker::from(Arc::new(DelayedWork(Mutex::new(Some(Box::new(work))))));
            with_current(|shared| shared.time.wheel.borrow_mut().insert(deadline_ns, waker));
            handle
        }
    }
}

/// Work that runs when its timer fires. It does not run if the runtime is dropped before.
struct DelayedWork(Mutex<Option<Work>>);

impl Wake for DelayedWork {
    fn wake(self: Arc<Self>) {
        let work = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_dropped = with_current(Shared::is_closed).unwrap_or(true);
        if let Some(work) = work.filter(|_| !is_dropped) {
            work();
        }
    }
}

/// Passes work to `add`, which adds it to a queue or returns `false` if the queue is full. The returned handle waits for
/// its result.
fn spawn_with<T: Send + 'static>(
    add: impl FnOnce(Work) -> bool,
    work: impl FnOnce() -> T + Send + 'static,
    is_awaited: bool,
) -> JoinHandle<T> {
    let (join, handle) = JoinHandle::new_blocking();
    let (done_sender, done) = is_awaited.then(mpsc::channel::<()>).unzip();
    add_joined(add, join, work, done_sender);
    if let Some(done) = done {
        // The result must be available at the same virtual time in every run with the same seed. `recv` fails once the
        // work has finished, because the sender is dropped without sending.
        done.recv().ok();
    }
    handle
}

/// Passes work to `add`. Its result, or the error that the queue is full, is stored in `join`, and `done` is dropped.
fn add_joined<T: Send + 'static>(
    add: impl FnOnce(Work) -> bool,
    join: Arc<Join<T>>,
    work: impl FnOnce() -> T + Send + 'static,
    done: Option<mpsc::Sender<()>>,
) {
    let queued = Arc::clone(&join);
    let is_queued = add(Box::new(move || {
        if queued.start() {
            let previous = BLOCKING_ID.replace(Some(queued.id()));
            queued.complete_work(catch_unwind(AssertUnwindSafe(work)));
            BLOCKING_ID.set(previous);
        }
        drop(done);
    }));
    if !is_queued {
        join.reject(MAX_QUEUED_WORK);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::join_error::JoinError;
    use super::*;

    #[test]
    fn pool_grows_while_work_stalls() {
        static POOL: Pool = Pool::new("test", 2, 5);
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let (start, started) = mpsc::channel();
        let block = || {
            let (start, released) = (start.clone(), Arc::clone(&released));
            assert!(POOL.add(Box::new(move || {
                start.send(()).expect("the test waits");
                released.lock().expect("no panic").recv().ok();
            })));
        };
        let run_one = || {
            let (done, is_done) = mpsc::channel();
            assert!(POOL.add(Box::new(move || done.send(()).expect("the test waits"))));
            is_done.recv().expect("the work runs");
        };
        for blocked in 1..=5 {
            block();
            started.recv().expect("the work starts");
            assert!(POOL.lock().threads >= blocked);
            if blocked < 5 {
                run_one();
            }
        }
        // At the maximum, further work waits until a thread becomes free.
        block();
        thread::sleep(STALL_TIMEOUT * 3);
        assert_eq!((POOL.lock().threads, started.try_recv()), (5, Err(mpsc::TryRecvError::Empty)));

        drop(release);
        started.recv().expect("the work starts");
        run_one();
        while POOL.lock().idle < 5 || POOL.lock().is_watched {
            thread::yield_now();
        }
        let state = POOL.lock();
        assert_eq!((state.running, state.stalled, POOL.thread_limit(&state)), (0, 0, 2));
    }

    #[test]
    fn work_is_rejected_while_queue_is_full() {
        // A pool without threads.
        static POOL: Pool = Pool::new("test", 0, 0);
        for _ in 0..MAX_QUEUED_WORK {
            assert!(POOL.add(Box::new(|| ())));
        }
        let rejected =
            spawn_with(|work| POOL.add(work), || unreachable!("rejected work does not run"), false);
        let error: JoinError = crate::Runtime::new().unwrap().block_on(rejected).unwrap_err();
        assert!(error.is_cancelled() && !error.is_panic());
        let message = error.to_string();
        assert!(message.starts_with("cannot queue blocking work: 65536 closures"), "{message}");
        assert!(error.try_into_panic().is_err());

        drop(POOL.run_queued(POOL.lock()));
        let accepted = spawn_with(|work| POOL.add(work), || 42, false);
        drop(POOL.run_queued(POOL.lock()));
        assert_eq!(crate::Runtime::new().unwrap().block_on(accepted).unwrap(), 42);
    }
}
