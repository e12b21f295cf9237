//! Queue of operations on one file, which run sequentially on the file pool.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::blocking::{FILES, MAX_QUEUED_WORK, Work, spawn_with_disk};
use super::join::JoinHandle;
use crate::driver::catch_and_log_panic;

/// Number of operations after which the thread serves the rest of the pool's queue first.
const MAX_RUN: usize = 16;

/// Operations that run on the file pool in order, at most one at a time.
///
/// Operations that lock the same inode gain nothing from several threads, which spend CPU time on the lock. Holds as many
/// operations as the queue of the pool; further ones are rejected.
#[derive(Default)]
pub(crate) struct FileQueue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    /// Set while the pool has the queue.
    is_running: bool,
}

impl FileQueue {
    /// Runs an operation after those that were spawned before. The returned handle waits for its result. The operation
    /// runs even if the handle is dropped.
    pub fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let queue = Arc::clone(self);
        spawn_with_disk(move |work| queue.add(work), operation)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is not held while work runs, so a panic in the work cannot poison it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, work: Work) -> bool {
        let mut state = self.lock();
        if state.work.len() >= MAX_QUEUED_WORK {
            // The destructor of the work runs application code, without the lock.
            drop(state);
            return false;
        }
        state.work.push_back(work);
        let was_running = std::mem::replace(&mut state.is_running, true);
        drop(state);
        if !was_running {
            self.start();
        }
        true
    }

    fn start(self: &Arc<Self>) {
        let queue = Arc::clone(self);
        FILES.get().add_continuation(Box::new(move || queue.run()));
    }

    fn run(self: &Arc<Self>) {
        for _ in 0..MAX_RUN {
            let mut state = self.lock();
            debug_assert!(state.is_running, "two threads run operations of the same file");
            let Some(work) = state.work.pop_front() else {
                state.is_running = false;
                return;
            };
            drop(state);
            catch_and_log_panic("abandoned result of a file operation panicked while being dropped", work);
        }
        let mut state = self.lock();
        state.is_running = !state.work.is_empty();
        let has_more = state.is_running;
        drop(state);
        if has_more {
            self.start();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Barrier, mpsc};

    use super::super::blocking::spawn_file_operation;
    use super::*;

    /// Adds an operation that adds itself again until `stop` is set.
    fn keep_busy(queue: &Arc<FileQueue>, stop: &Arc<AtomicBool>) {
        let (again, stop) = (Arc::clone(queue), Arc::clone(stop));
        queue
            .spawn(move || {
                if !stop.load(Ordering::Relaxed) {
                    keep_busy(&again, &stop);
                }
            })
            .detach();
    }

    #[test]
    fn operations_run_in_order_and_one_at_a_time() {
        let queue = Arc::<FileQueue>::default();
        let (numbers, received) = mpsc::channel();
        let is_active = Arc::new(AtomicBool::new(false));
        for number in 0..1000 {
            let (numbers, is_active) = (numbers.clone(), Arc::clone(&is_active));
            let operation = move || {
                assert!(!is_active.swap(true, Ordering::Relaxed));
                numbers.send(number).expect("the test waits");
                is_active.store(false, Ordering::Relaxed);
                assert_ne!(number % 10, 0, "on purpose");
            };
            // Dropping the handle does not remove the operation.
            drop(queue.spawn(operation));
        }
        drop(numbers);
        assert_eq!(received.iter().collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn operation_is_rejected_while_queue_is_full() {
        let queue = Arc::<FileQueue>::default();
        // As if the pool ran an operation of this queue.
        queue.lock().is_running = true;
        for _ in 0..MAX_QUEUED_WORK {
            assert!(queue.add(Box::new(|| ())));
        }
        let rejected = queue.spawn(|| unreachable!("a rejected operation does not run"));
        let error = crate::Runtime::new().unwrap().block_on(rejected).unwrap_err();
        assert!(error.to_string().starts_with("cannot queue blocking work: 65536 closures"), "{error}");
    }

    #[test]
    fn queues_run_in_parallel() {
        let (both_run, done) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
        for _ in 0..2 {
            let (both_run, done) = (Arc::clone(&both_run), Arc::clone(&done));
            let operation = move || {
                both_run.wait();
                done.wait();
            };
            Arc::<FileQueue>::default().spawn(operation).detach();
        }
        both_run.wait();
        done.wait();
    }

    #[test]
    fn busy_queues_do_not_starve_other_operations() {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..100 {
            keep_busy(&Arc::default(), &stop);
        }
        let (done, is_done) = mpsc::channel();
        spawn_file_operation(move || done.send(())).detach();
        is_done.recv().expect("the operation runs");
        stop.store(true, Ordering::Relaxed);
    }
}
