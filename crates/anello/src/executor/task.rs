//! A task: a future in memory of its own, which wakers on any thread point to and only its worker polls and drops.
//!
//! ```text
//!   Task (the worker's list) ─┐      ┌──────────── TaskCell<F> ────────────┐
//!   Waker, on any thread ─────┼────> │ Header: references, scheduled, home │
//!   ready queue, mailbox ─────┘      │ future: Some until done             │
//!   (not counted)                    └─────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! - The worker's list holds one reference from the task's spawning until it is done *and* in no queue. So a pointer
//!   in the ready queue or the mailbox needs no reference of its own.
//! - `scheduled` is set exactly while the pointer is in a queue, and for ever once the task is done: the thread that sets it
//!   puts the pointer into a queue.
//! - The future is touched by the worker alone and is gone (`None`) before the worker gives its reference up: what the
//!   last waker frees, wherever it is dropped, is memory without a future in it.

use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use super::context::Inbox;
use super::scheduled::Scheduled;
use super::task_memory;
use crate::driver::{Key, catch_and_log_panic};

/// The part of a task that does not depend on its future.
pub(super) struct Header {
    references: AtomicU32,
    scheduled: Scheduled,
    /// The future is to be ended instead of polled. Here and not beside the result, which no poll has to touch.
    aborted: AtomicBool,
    /// The future has ended. Only the worker looks.
    done: Cell<bool>,
    /// Place in the worker's list, once it has one. Only the worker looks.
    key: Cell<Key>,
    /// The worker that polls it.
    owner: Arc<Inbox>,
    vtable: &'static TaskVtable,
}

/// What depends on the future.
struct TaskVtable {
    // SAFETY of calling each: the `# Safety` of the function below that stands here.
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> bool,
    abort: unsafe fn(NonNull<Header>),
    drop_future: unsafe fn(NonNull<Header>),
    free: unsafe fn(NonNull<Header>),
}

/// A future that can say that it was ended before it was done.
pub(super) trait Abort: Future<Output = ()> {
    fn abort(self: Pin<&mut Self>);
}

/// From the start of a cache line, so that the header and the beginning of the future are in one.
#[repr(C, align(64))]
struct TaskCell<F> {
    header: Header,
    future: UnsafeCell<Option<F>>,
}

/// The worker's reference to a task.
#[derive(Debug)]
pub(super) struct Task(TaskPointer);

/// A task in a queue: not counted (see the module's invariants).
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPointer(NonNull<Header>);

// SAFETY: the pointer is only followed by the worker of the task, whose list keeps it alive.
unsafe impl Send for TaskPointer {}

/// One table for all tasks, so that a waker can be recognised as one of ours: waking it only ever touches queues.
pub(crate) static WAKER_VTABLE: RawWakerVTable =
    RawWakerVTable::new(clone_waker, wake_by_value, wake_by_reference, drop_waker);

impl Task {
    /// A task, scheduled by whoever makes it. The future must be dropped by its worker's thread unless it is `Send`:
    /// that thread calls [`run`](TaskPointer::run) and drops the task.
    pub fn new<F: Abort>(future: F, owner: Arc<Inbox>) -> Self {
        let cell = task_memory::allocate(Layout::new::<TaskCell<F>>()).cast::<TaskCell<F>>();
        let task = TaskCell {
            header: Header {
                references: AtomicU32::new(1),
                scheduled: Scheduled::new(),
                aborted: AtomicBool::new(false),
                done: Cell::new(false),
                // Nobody's.
                key: Cell::new(Key { index: u32::MAX, generation: 0 }),
                owner,
                vtable: const {
                    &TaskVtable {
                        poll: poll::<F>,
                        abort: abort_future::<F>,
                        drop_future: drop_future::<F>,
                        free: free::<F>,
                    }
                },
            },
            future: UnsafeCell::new(Some(future)),
        };
        // SAFETY: memory of this layout, and nobody else's.
        unsafe { cell.write(task) };
        // The header is the first field of a `repr(C)` cell.
        Self(TaskPointer(cell.cast()))
    }

    pub fn pointer(&self) -> TaskPointer {
        self.0
    }

    pub fn waker(&self) -> Waker {
        let data = self.0.0.as_ptr().cast_const().cast();
        // SAFETY: `clone_waker` counts the reference that the waker will give back; the table is made for headers.
        unsafe { Waker::from_raw(clone_waker(data)) }
    }

    pub fn set_key(&self, key: Key) {
        self.0.header().key.set(key);
    }

    /// Ends a task that is not done: its future is dropped here, and it is never scheduled again.
    #[cold]
    #[inline(never)]
    fn cancel(&self) {
        let header = self.0.header();
        header.done.set(true);
        header.scheduled.set();
        catch_and_log_panic("a task panicked while it was dropped with its runtime", || {
            // SAFETY: by the worker, or for a future that is `Send` and was never polled (see `new`).
            unsafe { (header.vtable.drop_future)(self.0.0) }
        });
    }
}

/// Never unwinds. The future of a task that is not done goes before the reference does, however the task came to be dropped.
impl Drop for Task {
    fn drop(&mut self) {
        if !self.0.header().done.get() {
            self.cancel();
        }
        // SAFETY: gives back the reference that `new` counted; the future is gone.
        unsafe { drop_waker(self.0.0.as_ptr().cast_const().cast()) }
    }
}

impl TaskPointer {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the worker's list (or the `Task` at hand) keeps the header alive (see the module's invariants).
        unsafe { self.0.as_ref() }
    }

    /// Polls the task, taken out of a queue by its worker. Its place in the list when the worker should let go of it.
    #[inline]
    pub fn run(self) -> Option<Key> {
        let header = self.header();
        if header.done.get() {
            // Woken while it ran to its end: this was its last place in a queue.
            return Some(header.key.get());
        }
        // Before the poll: a wake during it puts the task into the queue again.
        header.scheduled.clear();
        let data = self.0.as_ptr().cast_const().cast();
        // SAFETY: a waker that borrows the worker's reference: it is never dropped.
        let waker = std::mem::ManuallyDrop::new(unsafe { Waker::new(data, &WAKER_VTABLE) });
        if header.aborted.load(Ordering::Relaxed) {
            // SAFETY: called by the worker, and not while the task is being polled.
            unsafe { (header.vtable.abort)(self.0) }
        // SAFETY: as above.
        } else if !unsafe { (header.vtable.poll)(self.0, &mut Context::from_waker(&waker)) } {
            return None;
        }
        header.done.set(true);
        header.scheduled.set().then(|| header.key.get())
    }
}

/// Has a task ended instead of polled: its worker does it, woken as by the waker, which must be one of
/// [`Task::waker`]. Does nothing to a task that is done.
pub(super) fn abort(waker: &Waker) {
    assert!(std::ptr::eq(waker.vtable(), &WAKER_VTABLE), "the waker is not one of a task");
    // SAFETY: wakers with this table hold a reference to a header.
    let header = unsafe { &*waker.data().cast::<Header>() };
    header.aborted.store(true, Ordering::Release);
    waker.wake_by_ref();
}

/// Whether the future has ended; it is dropped then.
///
/// # Safety
/// The header must be the head of a `TaskCell<F>`; only the worker may call this, and not from within itself.
unsafe fn poll<F: Future<Output = ()>>(header: NonNull<Header>, context: &mut Context<'_>) -> bool {
    // SAFETY: by the caller, the cell is of this type and nobody else touches the future.
    let future = unsafe { &mut *header.cast::<TaskCell<F>>().as_ref().future.get() };
    // SAFETY: the future stays in its cell until it is dropped there.
    let polled =
        future.as_mut().is_none_or(|future| unsafe { Pin::new_unchecked(future) }.poll(context).is_ready());
    if polled {
        end(future);
    }
    polled
}

/// # Safety
/// As [`poll`].
unsafe fn abort_future<F: Abort>(header: NonNull<Header>) {
    // SAFETY: by the caller, the cell is of this type and nobody else touches the future.
    let future = unsafe { &mut *header.cast::<TaskCell<F>>().as_ref().future.get() };
    if let Some(future) = future {
        // SAFETY: the future stays in its cell until it is dropped there.
        unsafe { Pin::new_unchecked(future) }.abort();
    }
    end(future);
}

/// Drops a future that has ended, and with it a result that nobody waits for. A panic in that is nobody's.
fn end<F>(future: &mut Option<F>) {
    catch_and_log_panic("the result of a detached task panicked while it was dropped", || *future = None);
}

/// # Safety
/// As [`poll`].
unsafe fn drop_future<F>(header: NonNull<Header>) {
    // SAFETY: by the caller.
    unsafe { *header.cast::<TaskCell<F>>().as_ref().future.get() = None }
}

/// # Safety
/// The header must be the head of a `TaskCell<F>` without references and with its future gone.
unsafe fn free<F>(header: NonNull<Header>) {
    let cell = header.cast::<TaskCell<F>>();
    // SAFETY: allocated with this layout and written in `Task::new`; nobody refers to it any more.
    unsafe {
        cell.drop_in_place();
        task_memory::free(cell.cast(), Layout::new::<TaskCell<F>>());
    }
}

/// # Safety
/// `data` must be the pointer of a waker of a task, whose reference is still held.
unsafe fn clone_waker(data: *const ()) -> RawWaker {
    // SAFETY: a waker holds a reference, so the header is alive.
    let before = unsafe { &*data.cast::<Header>() }.references.fetch_add(1, Ordering::Relaxed);
    if before > i32::MAX.cast_unsigned() {
        // As `Arc` does: a count that overflowed would free memory in use.
        std::process::abort();
    }
    RawWaker::new(data, &WAKER_VTABLE)
}

/// # Safety
/// `data` must be the pointer of a waker of a task, whose reference is still held.
unsafe fn wake_by_value(data: *const ()) {
    // SAFETY: the waker's reference is still held, and given back after the wake.
    unsafe {
        wake_by_reference(data);
        drop_waker(data);
    }
}

/// # Safety
/// `data` must be the pointer of a waker of a task, whose reference is still held.
unsafe fn wake_by_reference(data: *const ()) {
    // SAFETY: a waker holds a reference, so the header is alive.
    let header = unsafe { &*data.cast::<Header>() };
    // Of the pointer and not of the header, because it leads to the future behind it, too.
    // SAFETY: a waker's pointer is not null.
    let pointer = TaskPointer(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) });
    if header.scheduled.set() {
        if header.owner.schedule(pointer) {
            notify_if_woken_again(header);
        }
    } else if !header.owner.is_current() {
        wake_again(header, pointer);
    }
}

/// Wakes a task that is scheduled, from another thread than its worker's.
#[cold]
fn wake_again(header: &Header, pointer: TaskPointer) {
    if !header.scheduled.set_again() {
        header.owner.notify_if_asleep();
    } else if header.owner.schedule(pointer) {
        notify_if_woken_again(header);
    }
}

/// Notifies the worker of a task at once, after a notification was queued, if another thread has woken the task since it was
/// scheduled.
#[cold]
fn notify_if_woken_again(header: &Header) {
    if header.scheduled.is_woken_again() {
        header.owner.notify();
    }
}

/// # Safety
/// `data` must be the pointer of a waker of a task, whose reference is still held.
unsafe fn drop_waker(data: *const ()) {
    let header = data.cast::<Header>();
    // SAFETY: the reference that is given back kept the header alive until here.
    if unsafe { &*header }.references.fetch_sub(1, Ordering::Release) == 1 {
        // Everything that was done under other references happens before the memory goes.
        fence(Ordering::Acquire);
        // SAFETY: that was the last reference; the pointer came from `NonNull`, and the future is gone.
        unsafe { ((*header).vtable.free)(NonNull::new_unchecked(header.cast_mut())) }
    }
}
