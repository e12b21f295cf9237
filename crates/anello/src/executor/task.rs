//! Tasks: heap allocations with a header and a future. Wakers on any thread can point to a task, but only its worker
//! polls and drops the future.
//!
//! ```text
//!   Task (the worker's table) ─┐      ┌──────────── TaskCell<F, O> ─────────────┐
//!   Waker, on any thread ──────┼────> │ Header: references, scheduled, owner │
//!   ready queue, mailbox ──────┘      │ future: Some until done              │
//!   (not counted)                     └──────────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! - The worker's table holds one reference to the task, from the time it is spawned until it is done *and* in no
//!   queue. A pointer in the ready queue or the mailbox therefore needs no reference of its own.
//! - `scheduled` is set exactly while the pointer is in a queue, and permanently once the task is done and has been
//!   removed from the table. The thread that sets it pushes the pointer into a queue.
//! - Only the worker accesses the future, and it drops the future (`None`) before it releases its reference. The last
//!   waker, on whichever thread it is dropped, only frees memory that no longer contains a future.
//!
//! The loom models at the end of this file check the interleavings of wake-ups by other threads and by the worker, one of
//! them up to a number of preemptions.

use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use super::mailbox::Scheduled;
use super::task_info::Info;
use super::task_memory;
use super::task_pages;
use crate::driver::{Key, catch_and_log_panic};

/// Operations that the wakers of a task perform on the task's worker.
pub(super) trait Owner: Sized + Send + Sync + 'static {
    /// Pushes a task into the ready queue or the mailbox of its worker. Returns whether the notification to the worker
    /// is only queued.
    fn schedule(&self, pointer: TaskPointer<Self>) -> bool;
    /// Returns whether the worker is running on this thread.
    fn is_current(&self) -> bool;
    /// Notifies the worker, unless it is awake or an immediate notification is in progress.
    fn notify_if_asleep(&self);
    /// Wakes the worker immediately.
    fn notify(&self);
    /// Returns the vtable created by [`waker_vtable`], at the same address in every call.
    fn waker_vtable() -> &'static RawWakerVTable;
}

/// The part of a task that does not depend on its future. The status comes first, so that a handle can find it without
/// knowing the owner's type.
#[repr(C)]
pub(super) struct Header<O: 'static> {
    status: Status,
    /// Key in the worker's table, once the task is registered. Accessed only by the worker.
    key: Cell<Key>,
    owner: Arc<O>,
    vtable: &'static TaskVtable<O>,
}

struct Status {
    references: AtomicU32,
    scheduled: Scheduled,
    /// `ABORTED`, `DONE` or both. Not stored next to the result, so that a poll does not access that memory.
    flags: AtomicU8,
}

/// The future is to be dropped instead of polled. Any thread can set this flag.
const ABORTED: u8 = 1;

/// The future has been dropped and must not be polled again. Only the worker sets this flag.
const DONE: u8 = 2;

struct TaskVtable<O: 'static> {
    // SAFETY: each field has the safety requirements of the function below that is stored in it.
    poll: unsafe fn(NonNull<Header<O>>, &mut Context<'_>) -> bool,
    abort: unsafe fn(NonNull<Header<O>>),
    drop_future: unsafe fn(NonNull<Header<O>>),
    free: unsafe fn(NonNull<Header<O>>),
    info: unsafe fn(NonNull<Header<O>>) -> NonNull<Info>,
}

pub(super) trait Abort: Future<Output = ()> {
    /// Drops the wrapped future and reports the cancellation.
    fn abort(self: Pin<&mut Self>);
}

/// A header and its future.
#[repr(C)]
struct TaskCell<F, O: 'static> {
    header: Header<O>,
    future: UnsafeCell<Option<F>>,
    /// Last, because polls do not access it.
    info: Info,
}

impl<F, O> TaskCell<F, O> {
    /// Aligned to a cache line, so that the header and the start of the future share a line.
    const LAYOUT: Layout = task_pages::padded(Layout::new::<Self>());
}

/// The worker's reference to a task.
#[derive(Debug)]
pub(super) struct Task<O: Owner>(TaskPointer<O>);

/// A pointer to a task in a queue. It does not own a reference (see the invariants of this module).
#[derive(Debug)]
pub(super) struct TaskPointer<O: 'static>(NonNull<Header<O>>);

/// A reference to a task, held through one of its wakers. Can be used on any thread.
#[derive(Clone)]
pub(super) struct TaskHandle(Waker);

// SAFETY: only the worker of the task dereferences the pointer, and its table keeps the task alive.
unsafe impl<O: Owner> Send for TaskPointer<O> {}

impl<O> Clone for TaskPointer<O> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for TaskPointer<O> {}

pub(super) const fn waker_vtable<O: Owner>() -> RawWakerVTable {
    RawWakerVTable::new(clone_waker::<O>, wake_by_value::<O>, wake_by_reference::<O>, drop_waker::<O>)
}

impl<O: Owner> Task<O> {
    /// Creates a task in the scheduled state. The caller must push its pointer into a queue.
    ///
    /// Unless the future is `Send`, only the worker's thread may call [`run`](TaskPointer::run) or drop the task.
    pub fn new<F: Abort>(future: F, owner: Arc<O>, info: Info) -> Self {
        let cell = task_memory::allocate(TaskCell::<F, O>::LAYOUT).cast::<TaskCell<F, O>>();
        let task = TaskCell {
            header: Header {
                status: Status {
                    references: AtomicU32::new(1),
                    scheduled: Scheduled::new(),
                    flags: AtomicU8::new(0),
                },
                // A key that does not belong to any task.
                key: Cell::new(Key { index: u32::MAX, generation: 0 }),
                owner,
                vtable: const {
                    &TaskVtable {
                        poll: poll::<F, O>,
                        abort: abort_future::<F, O>,
                        drop_future: drop_future::<F, O>,
                        free: free::<F, O>,
                        info: info_of::<F, O>,
                    }
                },
            },
            future: UnsafeCell::new(Some(future)),
            info,
        };
        // SAFETY: the memory has this layout, and nothing else refers to it.
        unsafe { cell.write(task) };
        // The header is the first field of a `repr(C)` cell.
        Self(TaskPointer(cell.cast()))
    }

    pub fn pointer(&self) -> TaskPointer<O> {
        self.0
    }

    pub fn handle(&self) -> TaskHandle {
        let data = self.0.0.as_ptr().cast_const().cast();
        // SAFETY: `clone_waker` adds the reference that the waker releases when dropped, and the vtable expects a
        // pointer to a header.
        TaskHandle(unsafe { Waker::from_raw(clone_waker::<O>(data)) })
    }

    /// Cancels a task that is not done: drops its future and prevents the task from being scheduled again.
    #[cold]
    #[inline(never)]
    fn cancel(&self) {
        let header = self.0.header();
        header.status.flags.store(DONE, Ordering::Release);
        // Whether or not the task is in a queue, it is not queued again.
        header.status.scheduled.set();
        catch_and_log_panic("task panicked while being dropped with its runtime", || {
            // SAFETY: called by the worker, or for a future that is `Send` and was never polled (see `new`).
            unsafe { (header.vtable.drop_future)(self.0.0) }
        });
    }
}

/// Never panics. If the task is not done, drops its future before releasing the reference.
impl<O: Owner> Drop for Task<O> {
    fn drop(&mut self) {
        if !self.0.header().is_done() {
            self.cancel();
        }
        // SAFETY: releases the reference that `new` counted, and the future has been dropped.
        unsafe { drop_waker::<O>(self.0.0.as_ptr().cast_const().cast()) }
    }
}

impl<O: Owner> TaskPointer<O> {
    #[inline]
    fn header(&self) -> &Header<O> {
        // SAFETY: the worker's table (or the `Task` that contains this pointer) keeps the header alive (see the
        // invariants of this module).
        unsafe { self.0.as_ref() }
    }

    /// Called after the task has been inserted into the worker's table.
    pub fn set_key(self, key: Key) {
        let previous = self.header().key.replace(key);
        debug_assert_eq!(previous.index, u32::MAX, "invariant 12: a task is in the table twice");
    }

    /// Returns the key in the worker's table. Called only by its worker.
    #[cfg(debug_assertions)]
    pub fn key(self) -> Key {
        self.header().key.get()
    }

    /// Returns `true` if the task belongs to the worker with this owner.
    pub fn belongs_to(&self, owner: &Arc<O>) -> bool {
        Arc::ptr_eq(&self.header().owner, owner)
    }

    /// Returns a number that identifies the task while it is in the table.
    #[cfg(debug_assertions)]
    pub fn address(self) -> usize {
        self.0.addr().get()
    }

    /// Returns what is known about the task. Called only by its worker.
    pub fn info(&self) -> &Info {
        // SAFETY: the header belongs to a cell of the vtable's type, and the cell lives as long as the header (see
        // `header`). Nothing accesses the info exclusively.
        unsafe { (self.header().vtable.info)(self.0).as_ref() }
    }

    /// Returns whether the task is in a queue.
    pub fn is_scheduled(&self) -> bool {
        self.header().status.scheduled.is_set()
    }

    pub fn is_done(&self) -> bool {
        self.header().is_done()
    }

    /// Polls the task, which its worker has removed from a queue. Returns its key if it must be removed from the table.
    #[inline]
    pub fn run(self) -> Option<Key> {
        let header = self.header();
        // Cleared before the poll, so that a wake-up during the poll pushes the task into the queue again.
        header.status.scheduled.clear();
        // Read after `scheduled` is cleared, so that an abort either is seen here or schedules the task again.
        if header.status.flags.load(Ordering::Relaxed) != 0 {
            return self.abort_or_finish();
        }
        let data = self.0.as_ptr().cast_const().cast();
        // SAFETY: the waker borrows the worker's reference; `ManuallyDrop` keeps it from being dropped.
        let waker = std::mem::ManuallyDrop::new(unsafe { Waker::new(data, O::waker_vtable()) });
        // SAFETY: called by the worker, and not while it polls the task.
        if !unsafe { (header.vtable.poll)(self.0, &mut Context::from_waker(&waker)) } {
            return None;
        }
        self.finish()
    }

    /// Drops the future of an aborted task. If the task is done, it was woken during its last poll.
    #[cold]
    fn abort_or_finish(self) -> Option<Key> {
        let header = self.header();
        if !header.is_done() {
            // SAFETY: called by the worker, and not while it polls the task.
            unsafe { (header.vtable.abort)(self.0) }
        }
        self.finish()
    }

    /// Marks the task as done. Returns its key, unless another pointer to the task is in a queue.
    fn finish(self) -> Option<Key> {
        let header = self.header();
        // Overwrites `ABORTED`, which has no meaning any more.
        header.status.flags.store(DONE, Ordering::Release);
        header.status.scheduled.set().then(|| header.key.get())
    }
}

impl<O> Header<O> {
    fn is_done(&self) -> bool {
        self.status.flags.load(Ordering::Acquire) & DONE != 0
    }
}

impl TaskHandle {
    /// Requests that the task be aborted, and wakes it: its worker then drops the future instead of polling it. Does
    /// nothing if the task is done.
    pub fn abort(&self) {
        self.status().flags.fetch_or(ABORTED, Ordering::Release);
        self.0.wake_by_ref();
    }

    pub fn is_done(&self) -> bool {
        self.status().flags.load(Ordering::Acquire) & DONE != 0
    }

    fn status(&self) -> &Status {
        // SAFETY: the waker belongs to a task, so its data points to a header, which starts with the status. The waker
        // holds a reference.
        unsafe { &*self.0.data().cast::<Status>() }
    }
}

/// Polls the future, and drops it if it has completed. Returns whether the future has completed.
///
/// # Safety
/// The header must be the first field of a `TaskCell<F, O>`. Only the worker may call this function, and not
/// recursively while it is polling the same task.
unsafe fn poll<F: Future<Output = ()>, O: 'static>(
    header: NonNull<Header<O>>,
    context: &mut Context<'_>,
) -> bool {
    // SAFETY: the caller guarantees that the cell has this type and that nothing else accesses the future.
    let future = unsafe { &mut *header.cast::<TaskCell<F, O>>().as_ref().future.get() };
    debug_assert!(future.is_some(), "invariant 12: a task is polled after it has ended");
    // SAFETY: the future stays in its cell until it is dropped there.
    let polled =
        future.as_mut().is_none_or(|future| unsafe { Pin::new_unchecked(future) }.poll(context).is_ready());
    if polled {
        drop_completed(future);
    }
    polled
}

/// # Safety
/// Same as for [`poll`].
unsafe fn abort_future<F: Abort, O: 'static>(header: NonNull<Header<O>>) {
    // SAFETY: the caller guarantees that the cell has this type and that nothing else accesses the future.
    let future = unsafe { &mut *header.cast::<TaskCell<F, O>>().as_ref().future.get() };
    if let Some(future) = future {
        // SAFETY: the future stays in its cell until it is dropped there.
        unsafe { Pin::new_unchecked(future) }.abort();
    }
    drop_completed(future);
}

/// Drops a completed future and, if the task is detached, its result.
fn drop_completed<F>(future: &mut Option<F>) {
    catch_and_log_panic("result of a detached task panicked while being dropped", || *future = None);
}

/// # Safety
/// Same as for [`poll`].
unsafe fn drop_future<F, O: 'static>(header: NonNull<Header<O>>) {
    // SAFETY: the caller guarantees that the cell has this type and that nothing else accesses the future.
    unsafe { *header.cast::<TaskCell<F, O>>().as_ref().future.get() = None }
}

/// # Safety
/// The header must be the first field of a `TaskCell<F, O>`.
unsafe fn info_of<F, O: 'static>(header: NonNull<Header<O>>) -> NonNull<Info> {
    let cell = header.cast::<TaskCell<F, O>>().as_ptr();
    // SAFETY: the caller guarantees that the cell has this type. No reference to the cell is created, because the worker
    // may be accessing the future. A pointer to a field is not null.
    unsafe { NonNull::new_unchecked(&raw mut (*cell).info) }
}

/// # Safety
/// The header must be the first field of a `TaskCell<F, O>` to which no references exist, and whose future has been
/// dropped.
unsafe fn free<F, O: 'static>(header: NonNull<Header<O>>) {
    let cell = header.cast::<TaskCell<F, O>>();
    debug_assert!(
        // SAFETY: the caller guarantees that nothing else refers to the cell.
        unsafe { (*cell.as_ref().future.get()).is_none() },
        "invariant 12: the memory of a task is freed with its future"
    );
    // SAFETY: the cell was allocated with this layout and written in `Task::new`, and nothing refers to it any more.
    unsafe {
        cell.drop_in_place();
        task_memory::free(cell.cast(), TaskCell::<F, O>::LAYOUT);
    }
}

/// # Safety
/// `data` must be the data pointer of a task's waker that still holds its reference.
unsafe fn clone_waker<O: Owner>(data: *const ()) -> RawWaker {
    // SAFETY: a waker holds a reference, so the header is alive.
    let previous = unsafe { &*data.cast::<Status>() }.references.fetch_add(1, Ordering::Relaxed);
    if previous > i32::MAX.cast_unsigned() {
        // As in `Arc`: if the reference count overflowed, memory still in use would be freed.
        std::process::abort();
    }
    RawWaker::new(data, O::waker_vtable())
}

/// # Safety
/// `data` must be the data pointer of a task's waker that still holds its reference.
unsafe fn wake_by_value<O: Owner>(data: *const ()) {
    // SAFETY: the waker's reference is still held, and is released after the wake-up.
    unsafe {
        wake_by_reference::<O>(data);
        drop_waker::<O>(data);
    }
}

/// # Safety
/// `data` must be the data pointer of a task's waker that still holds its reference.
unsafe fn wake_by_reference<O: Owner>(data: *const ()) {
    // SAFETY: a waker holds a reference, so the header is alive.
    let header = unsafe { &*data.cast::<Header<O>>() };
    // Derived from `data` and not from the header reference, because the pointer's provenance must include the future.
    // SAFETY: a waker's pointer is not null.
    let pointer = TaskPointer(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) });
    if header.status.scheduled.set() {
        if header.owner.schedule(pointer) {
            notify_if_rescheduled(header);
        }
    } else if !header.owner.is_current() {
        wake_scheduled(header, pointer);
    }
}

/// Wakes a task that is already scheduled. Called on a thread other than that of its worker.
#[cold]
fn wake_scheduled<O: Owner>(header: &Header<O>, pointer: TaskPointer<O>) {
    if !header.status.scheduled.set_rescheduled() {
        header.owner.notify_if_asleep();
    } else if header.owner.schedule(pointer) {
        notify_if_rescheduled(header);
    }
}

/// Immediately notifies the task's worker if another thread has woken the task since it was scheduled. Called after a
/// notification has been queued.
#[cold]
fn notify_if_rescheduled<O: Owner>(header: &Header<O>) {
    if header.status.scheduled.is_rescheduled() {
        header.owner.notify();
    }
}

/// # Safety
/// `data` must be the data pointer of a task's waker that still holds its reference.
unsafe fn drop_waker<O: Owner>(data: *const ()) {
    let header = data.cast::<Header<O>>();
    // All accesses through other references happen before the memory is freed. An acquire fence on the last release would
    // suffice, but ThreadSanitizer does not support fences.
    // SAFETY: the reference that is released here has kept the header alive.
    let references = unsafe { &*header }.status.references.fetch_sub(1, Ordering::AcqRel);
    debug_assert_ne!(references, 0, "invariant 12: more references to a task are released than were counted");
    if references == 1 {
        // SAFETY: this was the last reference, the pointer came from `NonNull`, and the future has been dropped.
        unsafe { ((*header).vtable.free)(NonNull::new_unchecked(header.cast_mut())) }
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Mutex;
    use std::task::Poll;

    use loom::sync::atomic::AtomicBool;
    use loom::sync::mpsc::{Receiver, Sender, channel};
    use loom::thread::{self, ThreadId};

    use super::*;
    use crate::executor::mailbox::{Mailbox, NotifyResult};

    /// A worker with the queues of a runtime. Its sleep ends only if a sender must wake it, so a lost wake-up causes a
    /// deadlock, which loom reports.
    struct Worker {
        thread: ThreadId,
        mailbox: Mailbox<TaskPointer<Worker>>,
        /// Used only by the thread of the worker, so loom need not know the lock.
        ready: Mutex<Vec<TaskPointer<Worker>>>,
        wake: Sender<()>,
    }

    loom::thread_local! {
        /// Whether this thread is another worker, which queues its notifications and never submits them.
        static QUEUES: Cell<bool> = Cell::new(false);
    }

    static VTABLE: RawWakerVTable = waker_vtable::<Worker>();

    impl Worker {
        fn new() -> (Arc<Self>, Receiver<()>) {
            let (wake, woken) = channel();
            let thread = thread::current().id();
            (Arc::new(Self { thread, mailbox: Mailbox::new(), ready: Mutex::default(), wake }), woken)
        }

        /// Takes the tasks of both queues.
        fn take(&self) -> Vec<TaskPointer<Self>> {
            let mut taken = self.mailbox.take();
            taken.append(&mut self.ready.lock().unwrap());
            taken
        }

        fn notify_worker(&self) -> bool {
            let queues = QUEUES.with(Cell::get);
            let result = if queues { self.mailbox.queue_notify(7) } else { self.mailbox.notify() };
            if result == NotifyResult::Sleeping {
                self.notify();
            }
            result == NotifyResult::Queue
        }
    }

    impl Owner for Worker {
        fn schedule(&self, pointer: TaskPointer<Self>) -> bool {
            if self.is_current() {
                self.ready.lock().unwrap().push(pointer);
                return false;
            }
            self.mailbox.push(pointer).is_ok() && self.notify_worker()
        }

        fn is_current(&self) -> bool {
            thread::current().id() == self.thread
        }

        fn notify_if_asleep(&self) {
            if self.mailbox.is_asleep() {
                self.notify_worker();
            }
        }

        fn notify(&self) {
            self.wake.send(()).unwrap();
        }

        fn waker_vtable() -> &'static RawWakerVTable {
            &VTABLE
        }
    }

    struct PollFn<F>(F);

    impl<F: FnMut(&mut Context<'_>) -> Poll<()> + Unpin> Future for PollFn<F> {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            (self.0)(context)
        }
    }

    impl<F: FnMut(&mut Context<'_>) -> Poll<()> + Unpin> Abort for PollFn<F> {
        fn abort(self: Pin<&mut Self>) {}
    }

    fn task(
        worker: &Arc<Worker>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<()> + Unpin + 'static,
    ) -> Task<Worker> {
        Task::new(PollFn(poll), Arc::clone(worker), Info::new(None))
    }

    /// Two threads wake one task. The first is a worker that queues its notification and never submits it. The wake-up
    /// from the second thread must still cause a poll, no matter when the task's worker goes to sleep, and even if the
    /// worker itself wakes the task before.
    #[test]
    fn fault_14_second_wake_up_of_task_is_not_suppressed() {
        let mut model = loom::model::Builder::new();
        // Checking all interleavings would take hours.
        model.preemption_bound = Some(5);
        model.check(|| {
            let (worker, woken) = Worker::new();
            let is_signalled = loom::sync::Arc::new(AtomicBool::new(false));
            let (signal, is_polled) = (loom::sync::Arc::clone(&is_signalled), Rc::new(Cell::new(false)));
            let polled = Rc::clone(&is_polled);
            let task = task(&worker, move |_| {
                polled.set(is_signalled.load(Ordering::Relaxed));
                Poll::Pending
            });
            // Idle until it is woken.
            task.pointer().run();
            let wakers = [true, false].map(|queues| {
                let (waker, signal) = (task.handle(), loom::sync::Arc::clone(&signal));
                thread::spawn(move || {
                    QUEUES.with(|own| own.set(queues));
                    if !queues {
                        signal.store(true, Ordering::Relaxed);
                    }
                    waker.0.wake_by_ref();
                })
            });
            let mut own_waker = Some(task.handle());
            while !is_polled.get() {
                let mut ready = worker.mailbox.take();
                // After the mailbox has been emptied: a task that is only now queued there waits for a notification.
                if let Some(waker) = own_waker.take() {
                    waker.0.wake_by_ref();
                }
                ready.append(&mut worker.ready.lock().unwrap());
                for pointer in ready {
                    pointer.run();
                }
                if !is_polled.get() && worker.mailbox.prepare_to_sleep() {
                    woken.recv().unwrap();
                    worker.mailbox.finish_sleep();
                }
            }
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }

    /// Two threads wake a task while its worker polls it for the last time, and later. The worker must remove the task
    /// once, when no pointer to it is in a queue. The task may wake itself in its last poll.
    #[test]
    fn fault_14_finished_task_is_removed_when_in_no_queue() {
        for wakes_itself in [false, true] {
            loom::model(move || {
                let (worker, _woken) = Worker::new();
                let task = task(&worker, move |context| {
                    if wakes_itself {
                        context.waker().wake_by_ref();
                    }
                    Poll::Ready(())
                });
                worker.ready.lock().unwrap().push(task.pointer());
                let wakers = [(), ()].map(|()| {
                    let waker = task.handle();
                    thread::spawn(move || waker.0.wake_by_ref())
                });
                let table = RefCell::new(Some(task));
                let run_queued = || {
                    for pointer in worker.take() {
                        assert!(table.borrow().is_some(), "the pointer dangles");
                        if pointer.run().is_some() {
                            drop(table.take());
                        }
                    }
                };
                run_queued();
                for waker in wakers {
                    waker.join().unwrap();
                }
                run_queued();
                run_queued();
                assert!(table.borrow().is_none());
            });
        }
    }
}
