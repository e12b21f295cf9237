//! Thread pools for blocking work, so that workers never wait for disk I/O.
//!
//! The process has two pools: one for application work, and one for file operations, which therefore never queue behind
//! slow application work. A pool starts threads on demand, up to its limit. A thread exits after `IDLE_TIMEOUT` without
//! work.
//!
//! Each pool has a FIFO queue. The queue has no limit of its own: it is bounded by the number of tasks that are waiting
//! for results.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use super::context::{Shared, flush_wakes_before_blocking, with_current};
use super::join::{Join, JoinError};
use crate::driver::catch_and_log_panic;

/// Maximum number of threads per process that run [`spawn_blocking`] work. Further work waits in a queue.
pub const MAX_BLOCKING_THREADS: usize = 512;

/// Maximum number of threads for file operations. Few disks benefit from more requests in flight, and each thread needs
/// memory for its stack.
pub(crate) const MAX_FILE_THREADS: usize = 32;

/// Idle time after which a thread exits.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

struct Pool {
    thread_name: &'static str,
    max_threads: usize,
    state: Mutex<State>,
    work_available: Condvar,
}

struct State {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

static WORK: Pool = Pool::new("anello-blocking", MAX_BLOCKING_THREADS);
static FILES: Pool = Pool::new("anello-files", MAX_FILE_THREADS);

impl Pool {
    const fn new(thread_name: &'static str, max_threads: usize) -> Self {
        let state = Mutex::new(State { work: VecDeque::new(), threads: 0, idle: 0 });
        Self { thread_name, max_threads, state, work_available: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is not held while work runs, so a panic in the work cannot poison it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, work: Work) {
        let mut state = self.lock();
        state.work.push_back(work);
        if state.idle >= state.work.len() {
            self.work_available.notify_one();
        } else if state.threads < self.max_threads {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(&'static self) {
        let started = thread::Builder::new().name(self.thread_name.into()).spawn(move || self.run());
        if let Err(error) = started {
            let mut state = self.lock();
            state.threads -= 1;
            if state.threads > 0 {
                // Existing threads will run the work later.
                return;
            }
            tracing::warn!(%error, "cannot spawn a blocking thread; running the work on the calling thread");
            drop(state);
            catch_and_log_panic("waker panicked before blocking work", flush_wakes_before_blocking);
            state = self.lock();
            while let Some(work) = state.work.pop_front() {
                drop(state);
                run_work(work);
                state = self.lock();
            }
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                run_work(work);
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (guard, timeout) =
                self.work_available.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if timeout.timed_out() && state.work.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// Runs work on a pool thread. The work catches its own panics and stores them as its result. An abandoned result is
/// dropped here; a panic in its destructor is logged, and the thread continues.
fn run_work(work: Work) {
    catch_and_log_panic("abandoned result of blocking work panicked while being dropped", work);
}

/// Runs a blocking closure on the process-wide blocking thread pool. The returned future waits for its result.
///
/// Use it for every call that may block outside of the driver, so that the worker's other tasks continue to run.
///
/// The pool grows on demand, up to [`MAX_BLOCKING_THREADS`](crate::MAX_BLOCKING_THREADS) (512) threads. A thread exits
/// after 10 s without work. Further work waits in a FIFO queue. File operations have their own pool; see
/// [`fs::spawn_blocking`](crate::fs::spawn_blocking).
///
/// On the simulated driver, this function returns only after another thread has run the closure. The virtual clock does
/// not advance in the meantime, so that a seed always produces the same run. A closure that waits for a task, or for a
/// closure spawned later, therefore deadlocks on the simulated driver.
///
/// # Cancel safety
/// The closure runs even if the future is never polled. Dropping the future discards the result.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// let text = anello::spawn_blocking(|| std::fs::read_to_string("/proc/version")).await??;
/// assert!(text.starts_with("Linux"));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The future returns a [`JoinError`] if the closure panicked.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> BlockingHandle<T> {
    spawn_on(&WORK, work)
}

/// Runs a file operation on the thread pool for file operations. The returned future waits for its result.
///
/// This pool is separate from the one used by [`spawn_blocking`](crate::spawn_blocking): it has up to 32 threads, which
/// also run the operations of [`File`](crate::fs::File). Use it for operations of bounded duration, such as opening,
/// listing, reading or removing files. Do not use it for pipes, locks or computations: they would delay every file
/// operation in the process.
///
/// # Cancel safety
/// The operation runs even if the future is never polled. Dropping the future discards the result.
///
/// # Errors
/// The future returns a [`JoinError`] if the operation panicked.
pub fn spawn_file_operation<T: Send + 'static>(
    operation: impl FnOnce() -> T + Send + 'static,
) -> BlockingHandle<T> {
    spawn_on(&FILES, operation)
}

fn spawn_on<T: Send + 'static>(
    pool: &'static Pool,
    work: impl FnOnce() -> T + Send + 'static,
) -> BlockingHandle<T> {
    let join = Join::new();
    let completed = Arc::clone(&join);
    let work = move || {
        completed.complete(catch_unwind(AssertUnwindSafe(work)).map_err(|panic| JoinError(Some(panic))));
    };
    if with_current(Shared::is_simulated) == Some(true) {
        run_and_wait(pool, work);
    } else {
        pool.add(Box::new(work));
    }
    BlockingHandle(join)
}

/// Runs work for a simulated runtime and waits until the work has finished. The virtual clock does not advance in the
/// meantime, and the result is available at the same virtual time in every run with the same seed.
#[cold]
fn run_and_wait(pool: &'static Pool, work: impl FnOnce() + Send + 'static) {
    let (done_sender, done) = mpsc::channel::<()>();
    pool.add(Box::new(move || {
        work();
        drop(done_sender);
    }));
    // Always returns an error: nothing is sent, and the sender is dropped.
    done.recv().ok();
}

/// Future returned by [`spawn_blocking`]. Resolves to the result of the closure.
pub struct BlockingHandle<T>(Arc<Join<T>>);

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

impl<T> fmt::Debug for BlockingHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BlockingHandle").finish_non_exhaustive()
    }
}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> Self {
        Self::other(error.to_string())
    }
}
