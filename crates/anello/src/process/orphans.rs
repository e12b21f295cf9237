//! Children whose handles were dropped before they exited.
//!
//! A task of the runtime waits for each of them. If the runtime is dropped first, the child enters a list of the
//! process, which is checked whenever a child is started or added.

use std::future::poll_fn;
use std::process::Child;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::running::Process;
use crate::driver::PerProcess;

/// Children without a runtime. Bounded by the number of processes that the kernel permits.
static ORPHANS: PerProcess<Mutex<Vec<Child>>> = PerProcess::new(Mutex::default);

/// Process that enters the list if its task is dropped.
struct Orphan(Option<Process>);

/// Reaps a process once it exits.
pub(super) fn adopt(mut process: Process) {
    if process.has_exited() {
        return;
    }
    let shared = Rc::clone(&process.shared);
    // Not created by the future, which may be dropped before its first poll.
    let orphan = Orphan(Some(process));
    shared.spawn(orphan.reaped()).detach();
}

impl Orphan {
    async fn reaped(mut self) {
        let Some(process) = &mut self.0 else { return };
        // An error means that other code has reaped the process, or that the runtime is shutting down.
        if poll_fn(|context| process.poll_wait(context)).await.is_ok() {
            self.0 = None;
        }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let Some(process) = self.0.take() else { return };
        add(process.child);
    }
}

/// Adds a process to the list.
pub(super) fn add(child: Child) {
    orphans().push(child);
    reap();
}

/// Reaps the processes in the list that have exited.
pub(super) fn reap() {
    orphans().retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

fn orphans() -> MutexGuard<'static, Vec<Child>> {
    ORPHANS.get().lock().unwrap_or_else(PoisonError::into_inner)
}
