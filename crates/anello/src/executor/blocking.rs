//! Thread pools for blocking work, so that workers never wait for disk I/O.
//!
//! The process has two pools, so that file operations never queue behind slow application work. A pool's FIFO queue has
//! no size limit. In practice, the number of tasks limits its length, because a task usually waits for each result.

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

/// Maximum number of threads per process that run [`spawn_blocking`] work.
pub const MAX_BLOCKING_THREADS: usize = 512;

/// Maximum number of threads for file operations. Few disks benefit from more requests in flight, and each thread needs
/// memory for its stack.
const MAX_FILE_THREADS: usize = 32;

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
            catch_and_log_panic("waker panicked before a blocking call", flush_wakes_before_blocking);
            drop(self.run_queued(self.lock()));
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            state = self.run_queued(state);
            state.idle += 1;
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
            drop(state);
            catch_and_log_panic("abandoned result of blocking work panicked while being dropped", work);
            state = self.lock();
        }
        state
    }
}

/// Runs a blocking closure on the process-wide blocking thread pool. The returned future waits for its result.
///
/// Use this function for every call that can block the thread, so that the worker's other tasks continue to run. The
/// closure runs even if the future is never polled. Dropping the future discards the result.
///
/// The pool grows on demand, up to [`MAX_BLOCKING_THREADS`](crate::MAX_BLOCKING_THREADS) (512) threads. If all of them
/// are busy, work waits in a FIFO queue. A thread exits after 10 s without work. File operations have their own pool;
/// see [`fs::spawn_blocking`](crate::fs::spawn_blocking).
///
/// On the simulated driver, this function returns only after another thread has run the closure. The virtual clock does
/// not advance in the meantime, so that a seed always produces the same run. A closure that waits for a task, or for a
/// closure spawned later, therefore deadlocks on the simulated driver.
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
/// This pool has up to 32 threads, which also run the operations of [`File`](crate::fs::File). Use it for operations of bounded duration, such as opening,
/// listing, reading or removing files. Do not use it for pipes, locks or computations: they would delay every file
/// operation in the process. As with [`spawn_blocking`](crate::spawn_blocking), the operation runs even if the future is
/// never polled or is dropped.
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
    let is_simulated = with_current(Shared::is_simulated) == Some(true);
    let (done_sender, done) = is_simulated.then(mpsc::channel::<()>).unzip();
    pool.add(Box::new(move || {
        completed.complete(catch_unwind(AssertUnwindSafe(work)).map_err(|panic| JoinError(Some(panic))));
        drop(done_sender);
    }));
    if let Some(done) = done {
        // The result must be available at the same virtual time in every run with the same seed. `recv` fails once the
        // work has finished, because the sender is dropped without sending.
        done.recv().ok();
    }
    BlockingHandle(join)
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
