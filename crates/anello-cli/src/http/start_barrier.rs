//! All workers begin to serve together, when each of them listens; or none does.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the workers wait at.
#[derive(Debug)]
pub struct StartBarrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// So many workers are not ready yet.
    Waiting(usize),
    Released,
    /// For good, with what went wrong.
    Failed(io::ErrorKind, String),
}

/// One worker's place at the gate. If it is given up before the worker has passed, nobody passes.
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
        // The state is replaced in one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only while somebody still waits.
    fn fail_all(&self, kind: io::ErrorKind, why: String) {
        let mut state = self.lock();
        if matches!(*state, State::Waiting(_)) {
            *state = State::Failed(kind, why);
            self.changed.notify_all();
        }
    }
}

impl BarrierTicket<'_> {
    /// Waits, blocking the thread, until all workers are here. The last one to come does `last` before any of them passes.
    ///
    /// # Errors
    /// That of `last`, or of the worker that failed: the same for all.
    pub fn wait(&self, last: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.0.lock();
        if let State::Waiting(missing) = &mut *state {
            *missing -= 1;
            if *missing == 0 {
                *state = match last() {
                    Ok(()) => State::Released,
                    Err(error) => State::Failed(error.kind(), error.to_string()),
                };
                self.0.changed.notify_all();
            }
        }
        loop {
            match &*state {
                State::Waiting(_) => {}
                State::Released => return Ok(()),
                State::Failed(kind, why) => return Err(io::Error::new(*kind, why.clone())),
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// This worker will not come.
    pub fn fail(&self, error: &io::Error) {
        self.0.fail_all(error.kind(), error.to_string());
    }
}

impl Drop for BarrierTicket<'_> {
    fn drop(&mut self) {
        // Nobody has said why: a panic has.
        self.0.fail_all(io::ErrorKind::Other, "a worker ended before it served".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_last_to_come_opens_it_for_all() {
        let (start_barrier, ready, opened) = (StartBarrier::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let ticket = start_barrier.ticket();
                    ready.fetch_add(1, Ordering::SeqCst);
                    let open = || {
                        assert_eq!(ready.load(Ordering::SeqCst), 3);
                        opened.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    };
                    ticket.wait(open).expect("it opens");
                    assert_eq!(opened.load(Ordering::SeqCst), 1);
                });
            }
        });
    }

    #[test]
    fn whoever_fails_fails_all_with_its_own_error() {
        let taken = io::Error::new(io::ErrorKind::AddrInUse, "the port is taken");
        type Failure<'a> = &'a (dyn Fn(BarrierTicket<'_>) + Sync);
        let failures: [(Failure<'_>, &str); 3] = [
            (&|ticket| ticket.fail(&taken), "the port is taken"),
            (&|ticket| drop(ticket), "before it served"),
            (&|ticket| assert!(ticket.wait(|| Err(io::Error::other("no sandbox"))).is_err()), "no sandbox"),
        ];
        for (failure, why) in failures {
            let start_barrier = StartBarrier::new(2);
            thread::scope(|scope| {
                let waiting =
                    scope.spawn(|| start_barrier.ticket().wait(|| Err(io::Error::other("no sandbox"))));
                failure(start_barrier.ticket());
                let error = waiting.join().expect("no panic").expect_err("it stays shut");
                assert!(error.to_string().contains(why), "{error}");
            });
        }
    }
}
