//! Work that blocks, on threads of its own, so that no worker waits for a disk: two pools for the process.
//!
//! One runs the work of the application, the other file operations, which therefore never wait behind work that blocks for
//! long. Threads are started as work comes, up to the pool's limit, and end when they have had none for `IDLE_TIMEOUT`. Work waits
//! in the pool's queue, in order; nothing bounds it but what bounds the tasks that wait for their results.

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

/// Maximum number of threads that run the work of [`spawn_blocking`] in a process. Further work waits in a queue.
pub const MOST_THREADS: usize = 512;

/// Maximum number of threads for file operations. A disk has seldom use for more in flight, and each takes a stack.
pub(crate) const MAX_FILE_THREADS: usize = 32;

/// How long a thread stays without work.
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

static WORK: Pool = Pool::new("anello-blocking", MOST_THREADS);
static FILES: Pool = Pool::new("anello-files", MAX_FILE_THREADS);

impl Pool {
    const fn new(thread_name: &'static str, max_threads: usize) -> Self {
        let state = Mutex::new(State { work: VecDeque::new(), threads: 0, idle: 0 });
        Self { thread_name, max_threads, state, work_available: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No work runs under the lock.
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
                // The others do it, later.
                return;
            }
            tracing::warn!(%error, "no thread for work that blocks: it is done by the thread that spawned it");
            drop(state);
            catch_and_log_panic("a waker panicked before work that blocks", flush_wakes_before_blocking);
            state = self.lock();
            while let Some(work) = state.work.pop_front() {
                drop(state);
                run_alone(work);
                state = self.lock();
            }
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                run_alone(work);
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (guard, waited) =
                self.work_available.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.work.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// Does the work, which tells its panics itself. But what it leaves for nobody is dropped here, and may panic in that: the
/// thread goes on, of which there are few.
fn run_alone(work: Work) {
    catch_and_log_panic("a result that nobody waited for panicked while it was dropped", work);
}

/// Runs `work`, which may block, on a thread of the process's pool for that, and waits for its result.
///
/// The pool grows as work comes, up to [`MAX_BLOCKING_THREADS`](crate::MAX_BLOCKING_THREADS) (512) threads; a thread ends
/// after 10 s without work. Further work waits in a queue, in order. File operations of the runtime have threads of their
/// own, see [`fs::spawn_blocking`](crate::fs::spawn_blocking).
///
/// On the simulated driver the work is done before this returns, on another thread: the virtual clock stands still
/// meanwhile, and a seed gives the same run each time. Work that waits for a task, or for later work, waits for ever there.
///
/// For anything else that may wait without the driver, so that the other connections of the worker go on.
/// Cancel-safe in that dropping the future abandons the result; the work is done all the same, even when nothing of the
/// future was ever awaited.
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
/// The future gives a [`JoinError`] when the work panicked.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> BlockingHandle<T> {
    spawn_on(&WORK, work)
}

/// Runs a file operation, which may block, on the threads for file operations, and waits for its result.
///
/// As [`spawn_blocking`](crate::spawn_blocking), but the operation does not wait behind work of that: the process keeps up
/// to 32 other threads for file operations, those of [`File`](crate::fs::File) among them. For operations that end by
/// themselves, such as opening, listing, reading or removing files; not for pipes, locks or work that computes, which would
/// delay every file operation of the process.
///
/// # Errors
/// As there.
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
    let ended = Arc::clone(&join);
    let work = move || {
        ended.end(catch_unwind(AssertUnwindSafe(work)).map_err(|panic| JoinError(Some(panic))));
    };
    if with_current(Shared::is_simulated) == Some(true) {
        wait_for(pool, work);
    } else {
        pool.add(Box::new(work));
    }
    BlockingHandle(join)
}

/// Runs work of a simulated runtime and waits for its end, so that the virtual clock does not pass it, and that its result
/// comes at the same moment in each run of a seed.
#[cold]
fn wait_for(pool: &'static Pool, work: impl FnOnce() + Send + 'static) {
    let (end, has_ended) = mpsc::channel::<()>();
    pool.add(Box::new(move || {
        work();
        drop(end);
    }));
    // Ends with an error always: nothing is sent, and the sender is dropped.
    has_ended.recv().ok();
}

/// Waits for the result of [`spawn_blocking`].
pub struct BlockingHandle<T>(Arc<Join<T>>);

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

impl<T> fmt::Debug for BlockingHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Blocking").finish_non_exhaustive()
    }
}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> Self {
        Self::other(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::Runtime;

    #[test]
    fn more_work_than_threads_is_all_done_and_blocks_nobody() {
        let results = Runtime::new().expect("a runtime").block_on(async {
            let (release, released) = mpsc::channel::<()>();
            // Nothing but the last of these lets the first one go on.
            let first = spawn_blocking(move || released.recv().is_ok());
            let rest: Vec<_> = (0..MOST_THREADS * 4).map(|n| spawn_blocking(move || n)).collect();
            let mut sum = 0;
            for work in rest {
                sum += work.await.expect("a number");
            }
            release.send(()).expect("somebody waits");
            (sum, first.await.expect("an answer"))
        });
        let count = MOST_THREADS * 4;
        assert_eq!(results, (count * (count - 1) / 2, true));
    }

    #[test]
    fn a_panic_is_told_and_harms_no_other_work() {
        let results = Runtime::new().expect("a runtime").block_on(async {
            let panicked = spawn_blocking(|| panic!("on purpose")).await;
            (panicked.map_err(|error: JoinError| error.is_panic()).err(), spawn_blocking(|| 5).await.ok())
        });
        assert_eq!(results, (Some(true), Some(5)));
    }

    #[test]
    fn abandoned_work_is_done_all_the_same() {
        let (done, is_done) = mpsc::channel();
        drop(spawn_blocking(move || done.send(()).is_ok()));
        is_done.recv().expect("the work was done");
    }
}
