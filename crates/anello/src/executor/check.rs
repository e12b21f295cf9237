//! Checks of the tasks, queues and timers of a runtime, in debug builds. Its main loop calls them after each turn.

use super::context::Shared;
use super::runtime::Batch;
use crate::driver::is_check_due;

impl Shared {
    /// Checks the runtime as a whole. `batch` contains the tasks that are polled next.
    ///
    /// # Panics
    /// Panics if an invariant is broken.
    pub(super) fn check(&self, batch: &Batch) {
        self.inbox.mailbox.check_awake();
        assert!(self.tasks.running.get().is_none(), "invariant 12: a task is running between two turns");
        let turns = self.turn.checked.get() + 1;
        self.turn.checked.set(turns);
        if is_check_due(self.time.wheel.borrow().len(), turns, self.is_simulated()) {
            self.time.wheel.borrow_mut().check();
        }
        let tasks = self.tasks.table.borrow();
        let ready = self.tasks.ready.borrow();
        if !is_check_due(tasks.len().max(ready.len()), turns, self.is_simulated()) {
            return;
        }
        tasks.check();
        for pointer in ready.iter().chain(batch.rest()) {
            let listed = tasks.get(pointer.key()).map(|task| task.pointer().address());
            assert_eq!(
                listed,
                Some(pointer.address()),
                "invariant 12: a task in a queue is not in the table"
            );
            assert!(pointer.is_scheduled(), "invariant 12: a task in a queue is not scheduled");
        }
        // Short queues are compared in place: tests count the allocations of requests.
        let addresses = || ready.iter().chain(batch.rest()).map(|pointer| pointer.address());
        let is_distinct = if ready.len() + batch.rest().len() <= 16 {
            addresses()
                .enumerate()
                .all(|(index, address)| addresses().skip(index + 1).all(|other| other != address))
        } else {
            let mut sorted: Vec<_> = addresses().collect();
            sorted.sort_unstable();
            sorted.windows(2).all(|pair| pair[0] != pair[1])
        };
        assert!(is_distinct, "invariant 12: a task is queued twice");
        for task in tasks.values() {
            let pointer = task.pointer();
            assert!(
                !pointer.is_done() || pointer.is_scheduled(),
                "invariant 12: a task that has ended is neither queued nor removed"
            );
        }
    }
}
