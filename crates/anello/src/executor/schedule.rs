//! The tasks of a runtime: how they are spawned, queued, polled and dropped.

use std::future::Future;
use std::sync::Arc;

use super::context::{BUDGET_PER_POLL, MailboxMessage, Shared, Task, TaskPointer, with_current};
use super::join::JoinHandle;
use super::task_counters::add;
use super::task_info::Info;
use crate::driver::Key;

/// Spawns a future on the current thread's runtime.
///
/// ```
/// # anello::example! {
/// let shared = std::rc::Rc::new(42);
/// // The future need not be `Send`.
/// let task = anello::spawn(async move { *shared });
/// assert_eq!(task.await?, 42);
/// # }
/// ```
///
/// # Panics
/// Panics if no runtime is running on this thread.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    spawn_with_info(future, Info::new(None))
}

#[track_caller]
pub(super) fn spawn_with_info<F>(future: F, info: Info) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    match with_current(|shared| shared.spawn_with_info(future, info)) {
        Some(handle) => handle,
        None => {
            panic!(
                "no anello runtime on this thread (call spawn from Runtime::block_on or a spawned task; on other threads, use Handle::spawn_with)"
            )
        }
    }
}

impl Shared {
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.spawn_with_info(future, Info::new(None))
    }

    pub(super) fn spawn_with_info<F>(&self, future: F, info: Info) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let (task, handle) = JoinHandle::new_task(future, Arc::clone(&self.inbox), info);
        self.register_task(task);
        handle
    }

    fn register_task(&self, task: Task) {
        if self.lifecycle.is_closed.get() {
            // For example, a stream that outlives its runtime spawns a task to close lingering streams. Adding that
            // task to the table would create a reference cycle: the task owns the runtime, which owns the table.
            return drop(task);
        }
        add(&self.tasks.counters.spawned, 1);
        let pointer = task.pointer();
        pointer.set_key(self.tasks.table.borrow_mut().insert(task));
        self.tasks.ready.borrow_mut().push(pointer);
    }

    pub(super) fn task_count(&self) -> usize {
        self.tasks.table.borrow().len()
    }

    #[inline]
    pub(super) fn push_ready(&self, pointer: TaskPointer) {
        let mut ready = self.tasks.ready.borrow_mut();
        if ready.len() == ready.capacity() {
            grow(&mut ready);
        }
        ready.push(pointer);
    }

    pub(super) fn drain_mailbox(&self) {
        for message in self.inbox.mailbox.take() {
            match message {
                MailboxMessage::Spawn(task) => self.register_task(task),
                MailboxMessage::Wake(pointer) => {
                    debug_assert!(
                        pointer.belongs_to(&self.inbox),
                        "invariant 12: a task is woken in the mailbox of another worker"
                    );
                    self.tasks.ready.borrow_mut().push(pointer);
                }
            }
        }
    }

    #[inline]
    pub(super) fn run(&self, pointer: TaskPointer) {
        debug_assert!(pointer.belongs_to(&self.inbox), "invariant 12: a task is polled by another worker");
        // Invariant 13: each poll has a new budget, and an operation without budget makes the task yield.
        self.turn.budget.set(BUDGET_PER_POLL);
        self.tasks.running.set(Some(pointer));
        if let Some(key) = pointer.run() {
            self.remove_task(key);
        }
    }

    /// Polls a task like [`run`](Self::run), and records the duration of the poll.
    pub(super) fn run_measured(&self, pointer: TaskPointer) {
        self.turn.budget.set(BUDGET_PER_POLL);
        self.tasks.running.set(Some(pointer));
        // The task is still in the table when its information is updated.
        if let Some(key) = self.measure_poll(Some(pointer.info()), || pointer.run()) {
            self.remove_task(key);
        }
    }

    fn remove_task(&self, key: Key) {
        self.tasks.running.set(None);
        let task = self.tasks.table.borrow_mut().remove(key);
        debug_assert!(task.is_some(), "invariant 12: a task that has ended is not in the table");
        drop(task);
    }

    /// Called after a batch of tasks has been polled.
    #[inline]
    pub(super) fn finish_batch(&self) {
        self.tasks.running.set(None);
    }

    /// Returns the task that is being polled or dropped.
    pub(super) fn running_task(&self) -> Option<TaskPointer> {
        self.tasks.running.get()
    }

    /// Calls `visit` for each task. `visit` must not run application code.
    pub(super) fn for_each_task(&self, mut visit: impl FnMut(TaskPointer)) {
        self.tasks.table.borrow().values().for_each(|task| visit(task.pointer()));
    }

    /// Drops all tasks, including tasks spawned by their destructors. No task runs after this. Never panics: `Task`
    /// catches the panics of destructors.
    pub(super) fn cancel_tasks(&self) {
        drop(self.inbox.mailbox.close());
        loop {
            let keys = self.tasks.table.borrow().keys();
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let task = self.tasks.table.borrow_mut().remove(key);
                // The task's memory lives until its future has been dropped.
                self.tasks.running.set(task.as_ref().map(Task::pointer));
                drop(task);
                self.tasks.running.set(None);
            }
        }
        self.tasks.ready.borrow_mut().clear();
        self.lifecycle.is_closed.set(true);
        self.cancel_timers();
    }
}

/// Not inlined, so that the fast path of `push_ready` needs no stack frame.
#[cold]
#[inline(never)]
fn grow(ready: &mut Vec<TaskPointer>) {
    ready.reserve(1);
}
