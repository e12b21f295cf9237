//! Who waits for a socket, and how they are woken.
//!
//! A waker may run any code, even code that uses the driver; so wakers are called when the driver is not borrowed, out
//! of a list. But nearly all belong to tasks of the executor, and waking those only touches its queues: they are
//! recognised by their table, woken in place, and kept for the next time, which saves a reference count each way.

use std::task::{RawWakerVTable, Waker};

use super::catch_panic::catch_and_log_panic;

/// One direction of a socket: the task that waits for it, if one does.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot {
    /// Kept after a wake: mostly the same task waits again.
    waker: Option<Waker>,
    waiting: bool,
}

/// What was woken in a turn.
#[derive(Debug, Default)]
pub(crate) struct WakeQueue {
    /// The table of wakers that may be called at any time.
    task_vtable: Option<&'static RawWakerVTable>,
    /// All others, for the executor to call.
    deferred_wakers: Vec<Waker>,
    has_work: bool,
    /// Whether tasks have become ready meanwhile: code of the application runs in a turn, too, where it drops what was sent.
    has_ready_tasks: Option<fn() -> bool>,
}

impl WakerSlot {
    /// Waits with this waker, without work when the same task waited last.
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

    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Who waits, to be woken when the driver is not borrowed; nobody does then.
    pub fn take(&mut self) -> Option<Waker> {
        if std::mem::take(&mut self.waiting) { self.waker.take() } else { None }
    }

    /// Wakes whoever waits.
    #[inline]
    pub fn wake(&mut self, wakes: &mut WakeQueue) {
        if !std::mem::take(&mut self.waiting) {
            return;
        }
        wakes.has_work = true;
        match &self.waker {
            Some(waker) if wakes.task_vtable.is_some_and(|table| std::ptr::eq(table, waker.vtable())) => {
                waker.wake_by_ref();
            }
            _ => wakes.deferred_wakers.extend(self.waker.take()),
        }
    }
}

/// Never unwinds: see [`drop_catching_panics`].
impl Drop for WakerSlot {
    #[inline]
    fn drop(&mut self) {
        if self.waker.is_some() {
            drop_catching_panics(self.waker.take());
        }
    }
}

/// Drops a waker while the driver is borrowed: its destructor is code of the application, and a panic in it must not stop
/// what the driver does for other streams.
#[inline(never)]
fn drop_catching_panics(waker: Option<Waker>) {
    if let Some(waker) = waker {
        catch_and_log_panic("a waker panicked while it was dropped", || drop(waker));
    }
}

/// Calls every waker. One that panics is foreign code of one task: the others are called all the same.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut wakers = wakers.into_iter();
    let mut is_done = false;
    while !is_done {
        // The iterator stands behind the one that panicked.
        catch_and_log_panic("a waker panicked", || {
            wakers.by_ref().for_each(Waker::wake);
            is_done = true;
        });
    }
}

impl WakeQueue {
    /// Wakers with this table may be called while the driver is borrowed, and so may `has_ready_tasks`.
    pub fn new(task_vtable: &'static RawWakerVTable, has_ready_tasks: fn() -> bool) -> Self {
        Self { task_vtable: Some(task_vtable), has_ready_tasks: Some(has_ready_tasks), ..Self::default() }
    }

    /// Whether anybody was woken, or the worker rung, since the last [`call`](Self::call), or a task is ready: the driver must
    /// not sleep then.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_work || self.has_ready_tasks.is_some_and(|has_ready_tasks| has_ready_tasks())
    }

    /// Another thread has rung: the executor looks into its inbox, and nothing may sleep before.
    pub fn mark_notified(&mut self) {
        self.has_work = true;
    }

    /// Wakes somebody else than who waits for a socket, with the rest.
    pub fn extend(&mut self, wakers: Vec<Waker>) {
        self.has_work |= !wakers.is_empty();
        self.deferred_wakers.extend(wakers);
    }

    /// Wakers of something else than sockets, to be called with the rest.
    pub fn deferred_wakers_mut(&mut self) -> &mut Vec<Waker> {
        &mut self.deferred_wakers
    }

    /// Calls the wakers that had to be put off. The driver must not be borrowed.
    #[inline]
    pub fn call(&mut self) {
        self.has_work = false;
        if !self.deferred_wakers.is_empty() {
            wake_all(self.deferred_wakers.drain(..));
        }
    }
}
