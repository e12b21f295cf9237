//! Waker slots of a socket, and the queue of deferred wake-ups.
//!
//! A waker can run arbitrary code, including code that uses the driver. Wakers are therefore collected in a list and
//! called when the driver is not borrowed. Nearly all wakers belong to tasks of the executor, and calling them only
//! changes its queues. Such wakers are recognised by their vtable, called immediately, and kept for the next wait,
//! which avoids incrementing and decrementing the reference count.

use std::io;
use std::task::{Poll, RawWakerVTable, Waker};

use crate::driver::errors::catch_panic::catch_and_log_panic;

pub(crate) type PollIo<T> = Poll<io::Result<T>>;

/// The waker of the task that is waiting for one direction of a socket, if any.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot {
    /// Kept after a wake-up, because the same task usually waits again.
    waker: Option<Waker>,
    waiting: bool,
}

#[derive(Debug, Default)]
pub(crate) struct WakeQueue {
    /// Vtable of the wakers that may be called while the driver is borrowed.
    task_vtable: Option<&'static RawWakerVTable>,
    /// Wakers with a different vtable, and wakers of expired timers. [`call`](Self::call) calls them.
    pub deferred_wakers: Vec<Waker>,
    has_work: bool,
    /// Returns `true` if tasks are ready. Needed because destructors of sent buffers can wake tasks.
    has_ready_tasks: Option<fn() -> bool>,
}

impl WakerSlot {
    /// Stores the waker of the waiting task. Does not clone it if it belongs to the task that waited last.
    #[inline]
    pub fn wait(&mut self, waker: &Waker) {
        self.waiting = true;
        match &self.waker {
            Some(current) if current.will_wake(waker) => {}
            _ => self.replace(waker),
        }
    }

    #[inline(never)]
    fn replace(&mut self, waker: &Waker) {
        drop_catching_panics(self.waker.replace(waker.clone()));
    }

    /// Forgets that the task is waiting. Keeps the waker for the next wait.
    pub fn stop_waiting(&mut self) {
        self.waiting = false;
    }

    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Takes the waker of the waiting task, if any. The returned waker must be called while the driver is not borrowed.
    pub fn take(&mut self) -> Option<Waker> {
        debug_assert!(!self.waiting || self.waker.is_some(), "invariant 10: a task waits without a waker");
        if std::mem::take(&mut self.waiting) { self.waker.take() } else { None }
    }

    /// Wakes the waiting task, if any.
    #[inline]
    pub fn wake(&mut self, wakes: &mut WakeQueue) {
        if !std::mem::take(&mut self.waiting) {
            return;
        }
        debug_assert!(self.waker.is_some(), "invariant 10: a task waits without a waker");
        wakes.has_work = true;
        // Invariant 10: only wakers of tasks, which run no application code, are called here.
        match &self.waker {
            Some(waker) if wakes.task_vtable.is_some_and(|table| std::ptr::eq(table, waker.vtable())) => {
                waker.wake_by_ref();
            }
            _ => wakes.deferred_wakers.extend(self.waker.take()),
        }
    }
}

/// Does not panic; see [`drop_catching_panics`].
impl Drop for WakerSlot {
    #[inline]
    fn drop(&mut self) {
        if self.waker.is_some() {
            drop_catching_panics(self.waker.take());
        }
    }
}

/// Drops a waker while the driver is borrowed. Its destructor is application code, and a panic in it must not interrupt
/// the driver's work for other streams.
#[inline(never)]
fn drop_catching_panics(waker: Option<Waker>) {
    if let Some(waker) = waker {
        catch_and_log_panic("waker panicked while being dropped", || drop(waker));
    }
}

/// Calls every waker. A panic in one waker is caught and logged, and the remaining wakers are still called.
#[doc(hidden)]
pub fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut wakers = wakers.into_iter();
    let mut is_done = false;
    while !is_done {
        // After a panic, the iterator is past the waker that panicked.
        catch_and_log_panic("waker panicked", || {
            wakers.by_ref().for_each(Waker::wake);
            is_done = true;
        });
    }
}

impl WakeQueue {
    /// Wakers with the given vtable, and `has_ready_tasks`, may be called while the driver is borrowed.
    pub fn new(task_vtable: &'static RawWakerVTable, has_ready_tasks: fn() -> bool) -> Self {
        Self { task_vtable: Some(task_vtable), has_ready_tasks: Some(has_ready_tasks), ..Self::default() }
    }

    /// Returns `true` if a task is ready, or if a task was woken or the worker was notified since the last
    /// [`call`](Self::call). The driver must then not sleep.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_work || self.has_ready_tasks.is_some_and(|has_ready_tasks| has_ready_tasks())
    }

    /// Records a notification. The driver must not sleep until the executor has drained the worker's mailbox.
    pub fn mark_notified(&mut self) {
        self.has_work = true;
    }

    /// Adds wakers that do not belong to any of the driver's sockets.
    pub fn extend(&mut self, wakers: Vec<Waker>) {
        self.has_work |= !wakers.is_empty();
        self.deferred_wakers.extend(wakers);
    }

    /// Calls the deferred wakers. The driver must not be borrowed.
    #[inline]
    pub fn call(&mut self) {
        self.has_work = false;
        if !self.deferred_wakers.is_empty() {
            wake_all(self.deferred_wakers.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ptr;
    use std::sync::Arc;
    use std::task::{RawWaker, Wake};

    use super::*;

    thread_local! {
        /// Numbers of clones and calls of the wakers of tasks.
        static COUNTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    static TASK_VTABLE: RawWakerVTable = RawWakerVTable::new(clone_task, wake_task, wake_task, |_| {});

    fn clone_task(task: *const ()) -> RawWaker {
        COUNTS.set((COUNTS.get().0 + 1, COUNTS.get().1));
        RawWaker::new(task, &TASK_VTABLE)
    }

    fn wake_task(_: *const ()) {
        COUNTS.set((COUNTS.get().0, COUNTS.get().1 + 1));
    }

    fn task_waker(task: usize) -> Waker {
        // SAFETY: the functions of the vtable do not use the data.
        unsafe { Waker::from_raw(RawWaker::new(ptr::without_provenance(task), &TASK_VTABLE)) }
    }

    #[test]
    fn waker_of_a_task_is_called_immediately_and_kept() {
        let mut wakes = WakeQueue::new(&TASK_VTABLE, || false);
        let mut slot = WakerSlot::default();
        slot.wake(&mut wakes);
        assert!(!wakes.has_work() && COUNTS.get() == (0, 0), "no task waits");
        for waits in 1..4 {
            slot.wait(&task_waker(1));
            slot.wake(&mut wakes);
            slot.wake(&mut wakes);
            assert_eq!(COUNTS.get(), (1, waits), "cloned once, called once for each wait");
        }
        slot.wait(&task_waker(2));
        assert!(COUNTS.get() == (2, 3) && wakes.deferred_wakers.is_empty() && wakes.has_work());
    }

    #[test]
    fn other_wakers_are_called_with_the_queue() {
        for mut wakes in [WakeQueue::default(), WakeQueue::new(&TASK_VTABLE, || false)] {
            let waker = Arc::new(PanickingDrop(false));
            let mut slot = WakerSlot::default();
            slot.wait(&Arc::clone(&waker).into());
            slot.wake(&mut wakes);
            assert_eq!((wakes.deferred_wakers.len(), Arc::strong_count(&waker)), (1, 2));
            assert!(wakes.has_work());
            wakes.call();
            assert!(!wakes.has_work() && Arc::strong_count(&waker) == 1);
        }
    }

    #[test]
    fn only_a_waiting_task_has_a_waker_to_take() {
        let mut slot = WakerSlot::default();
        assert!(slot.take().is_none());
        slot.wait(&task_waker(1));
        assert!(slot.is_waiting() && slot.take().is_some());
        assert!(!slot.is_waiting() && slot.take().is_none());
        slot.wait(&task_waker(1));
        slot.stop_waiting();
        assert!(!slot.is_waiting() && slot.take().is_none());
    }

    struct PanickingDrop(bool);

    impl Wake for PanickingDrop {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for PanickingDrop {
        fn drop(&mut self) {
            assert!(!self.0, "panic of a waker's destructor");
        }
    }

    #[test]
    fn panics_of_destructors_are_caught() {
        let mut slot = WakerSlot::default();
        slot.wait(&Arc::new(PanickingDrop(true)).into());
        slot.wait(&Arc::new(PanickingDrop(true)).into());
        drop(slot);
    }

    #[test]
    fn notifications_and_wakers_are_work_until_the_call() {
        let mut wakes = WakeQueue::default();
        wakes.extend(Vec::new());
        assert!(!wakes.has_work());
        wakes.extend(vec![task_waker(1)]);
        wakes.extend(Vec::new());
        assert!(wakes.has_work());
        wakes.call();
        assert!(!wakes.has_work() && COUNTS.get().1 == 1);
        wakes.mark_notified();
        assert!(wakes.has_work());
        wakes.call();
        assert!(!wakes.has_work() && WakeQueue::new(&TASK_VTABLE, || true).has_work());
    }
}
