//! Start barrier: workers begin to serve only after all of them are listening. If one worker fails, all fail.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The shared state of the barrier.
#[derive(Debug)]
pub struct StartBarrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// Number of workers that are not ready yet.
    Waiting(usize),
    /// The outcome; an error is reported to all workers.
    Decided(Result<(), (io::ErrorKind, String)>),
}

/// One worker's participation in the barrier. Dropping it before all workers are ready fails the barrier.
#[derive(Debug)]
pub struct BarrierTicket<'a>(&'a StartBarrier);

impl StartBarrier {
    pub fn new(workers: usize) -> Self {
        Self { state: Mutex::new(State::Waiting(workers)), changed: Condvar::new() }
    }

    pub fn ticket(&self) -> BarrierTicket<'_> {
        BarrierTicket(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if the lock is poisoned, because it is replaced in a single assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the outcome unless it is already set.
    fn decide(&self, state: &mut State, outcome: io::Result<()>) {
        if let State::Waiting(_) = state {
            *state = State::Decided(outcome.map_err(|error| (error.kind(), error.to_string())));
            self.changed.notify_all();
        }
    }
}

impl BarrierTicket<'_> {
    /// Blocks the thread until all workers are ready. The last worker calls `last` before any worker is released.
    ///
    /// # Errors
    /// Returns the error from `last` or from the worker that failed; all workers receive the same error.
    pub fn wait(&self, last: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.0.lock();
        if let State::Waiting(missing_workers) = &mut *state {
            *missing_workers -= 1;
            if *missing_workers == 0 {
                self.0.decide(&mut state, last());
            }
        }
        loop {
            if let State::Decided(outcome) = &*state {
                return outcome.clone().map_err(|(kind, reason)| io::Error::new(kind, reason));
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Fails the barrier, because this worker cannot start.
    pub fn fail(&self, error: &io::Error) {
        self.0.decide(&mut self.0.lock(), Err(io::Error::new(error.kind(), error.to_string())));
    }
}

impl Drop for BarrierTicket<'_> {
    fn drop(&mut self) {
        // Has an effect only if the worker panicked, because the outcome is already set once `wait` or `fail` has
        // returned.
        self.fail(&io::Error::other("worker exited during startup"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn last_worker_releases_all() {
        let (start_barrier, ready, released) =
            (StartBarrier::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let ticket = start_barrier.ticket();
                    ready.fetch_add(1, Ordering::SeqCst);
                    let release = || {
                        assert_eq!(ready.load(Ordering::SeqCst), 3);
                        released.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    };
                    ticket.wait(release).expect("released");
                    assert_eq!(released.load(Ordering::SeqCst), 1);
                });
            }
        });
    }

    #[test]
    fn failure_of_one_worker_fails_all_with_its_error() {
        let port_in_use = io::Error::new(io::ErrorKind::AddrInUse, "port in use");
        type FailWorker<'a> = &'a (dyn Fn(BarrierTicket<'_>) + Sync);
        let failures: [(FailWorker<'_>, &str); 3] = [
            (&|ticket| ticket.fail(&port_in_use), "port in use"),
            (&|ticket| drop(ticket), "during startup"),
            (&|ticket| assert!(ticket.wait(|| Err(io::Error::other("no sandbox"))).is_err()), "no sandbox"),
        ];
        for (fail_worker, reason) in failures {
            let start_barrier = StartBarrier::new(2);
            thread::scope(|scope| {
                let waiting =
                    scope.spawn(|| start_barrier.ticket().wait(|| Err(io::Error::other("no sandbox"))));
                fail_worker(start_barrier.ticket());
                let error = waiting.join().expect("no panic").expect_err("barrier failed");
                assert!(error.to_string().contains(reason), "{error}");
            });
        }
    }
}
