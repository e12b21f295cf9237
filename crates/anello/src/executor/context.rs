//! The current thread's runtime, and the state that its tasks share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, RawWakerVTable, Waker};
use std::time::Duration;

use super::heap_trim::HeapTrim;
use super::mailbox::{Mailbox, NotifyResult};
#[cfg(feature = "compat-hyper")]
use super::runtime_clock::RuntimeClock;
use super::task::{self, Owner};
use super::task_counters::TaskCounters;
use super::turn_limit::TurnLimit;
use super::wait_queue::WaitQueue;
use super::watchdog::WatchedWorker;
use super::wheel::{TimerKey, Wheel};
use crate::driver::{
    Clock, Driver, Key, Lingering, Notifier, OwnerProcess, Packed, PollIo, Table, Wait, WakeQueue,
    catch_and_log_panic, log_event, wake_all,
};

/// Number of polls after which the driver gets a turn, even if tasks are ready. The current batch is finished first,
/// unless it takes too long (see [`TurnLimit`]).
pub(super) const POLLS_PER_TURN: usize = 256;

/// Budget of a task for each poll. An operation costs 1, plus 1 per 4 KiB of data.
pub(super) const BUDGET_PER_POLL: i64 = 128;

/// Maximum number of turns per flush. A send that is queued behind another one needs its own turn.
const MAX_FLUSH_TURNS: usize = 4;

/// The heap is not trimmed after a smaller burst of tasks and streams. A task and its stream take about 0.5 KiB.
const MIN_FREED_TASKS: usize = 4096;

/// The parts of a runtime that its sockets, timers and tasks use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub driver: RefCell<Driver>,
    pub(super) inbox: Arc<Inbox>,
    pub time: Time,
    pub(super) tasks: Tasks,
    pub(super) turn: Turn,
    pub(super) lifecycle: Lifecycle,
    pub sockets: SocketState,
}

/// Code of the application, which may panic, runs while none of the cells is borrowed.
impl RefUnwindSafe for Shared {}

/// Clocks and timers, which sleeping futures use.
#[derive(Debug)]
pub(crate) struct Time {
    pub wheel: RefCell<Wheel<Waker>>,
    /// The driver's clock, which can be read while the driver is borrowed.
    clock: Clock,
    #[cfg(feature = "compat-hyper")]
    pub runtime_clock: RuntimeClock,
}

/// The tasks, which the methods in `schedule.rs` spawn, wake and poll.
#[derive(Debug)]
pub(super) struct Tasks {
    pub table: RefCell<Table<Task, Packed>>,
    /// Tasks ready to run, in FIFO order. They run after the current batch.
    pub ready: RefCell<Vec<TaskPointer>>,
    /// The task that is being polled or dropped. Set only while the task is in the table. Not reset between the polls of
    /// a batch.
    pub running: Cell<Option<TaskPointer>>,
    pub counters: TaskCounters,
}

/// Budgets of tasks and turns, and what is done after a turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// Remaining budget of the running task. Negative if the last operation cost more than the remaining budget.
    pub budget: Cell<i64>,
    /// Set by a task that has exhausted its budget. The driver and the timers then run before it is polled again.
    pub yield_requested: Cell<bool>,
    pub limit: TurnLimit,
    pub heap_trim: HeapTrim,
    /// Number of turns after which [`Shared::check`] was called.
    #[cfg(debug_assertions)]
    pub checked: Cell<u64>,
}

/// Whether the runtime is running, has been dropped, or still has to shut down its driver.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    /// True while any frame on this thread's stack is polling or dropping the runtime's tasks, even if another runtime
    /// has been entered since.
    pub is_entered: Cell<bool>,
    /// True once the runtime has been dropped. New tasks are then cancelled immediately.
    pub is_closed: Cell<bool>,
    /// Drain timeout. Set if the runtime was dropped while its driver was borrowed: the next use of a socket then shuts
    /// the driver down.
    deferred_shut_down: Cell<Option<Duration>>,
}

/// State that the sockets of a runtime share, apart from the driver.
#[derive(Debug)]
pub(crate) struct SocketState {
    /// Released streams that may still be sending accepted bytes.
    pub lingering: RefCell<Lingering>,
    /// Futures that wait for a stream to become readable (`false`) or writable (`true`). Empty if there are none.
    pub ready_queues: RefCell<BTreeMap<(Key, bool), Rc<WaitQueue>>>,
    /// Limits the rate of the warnings that no descriptors are left.
    pub exhaustion_log: Cell<ExhaustionLog>,
}

/// Time of the last warning, and the counts since then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExhaustionLog {
    pub logged_at_ns: Option<u64>,
    pub rejected: usize,
    pub suppressed: u64,
}

/// The part of a runtime that other threads can access.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(super) mailbox: Mailbox<MailboxMessage>,
    pub(super) notifier: Notifier,
    /// Identifies this worker in the state of other workers' mailboxes.
    pub(super) worker_id: u64,
    /// `None` unless polls that do not return are reported.
    pub(super) watched: Option<Arc<WatchedWorker>>,
}

#[derive(Debug)]
pub(super) enum MailboxMessage {
    Spawn(Task),
    /// A task of this worker that another thread has woken.
    Wake(TaskPointer),
}

// SAFETY: a task in a message has not been polled yet. It was created from a `Send` future (`Handle::spawn`), or from an
// `async` block that captures only a `Send` closure and is otherwise empty until it is polled (`Handle::spawn_with`).
unsafe impl Send for MailboxMessage {}

pub(super) type Task = task::Task<Inbox>;
pub(super) type TaskPointer = task::TaskPointer<Inbox>;

/// The waker vtable of all tasks. A waker with this vtable only accesses queues and runs no application code.
pub(super) static WAKER_VTABLE: RawWakerVTable = task::waker_vtable::<Inbox>();

thread_local! {
    static CURRENT: Cell<Option<NonNull<Shared>>> = const { Cell::new(None) };
    /// The process in which a frame on this thread's stack polls or drops tasks, of any runtime, if there is one.
    static RUNNING_IN: Cell<Option<OwnerProcess>> = const { Cell::new(None) };
    /// Serial number of the [`ContextGuard`] that has set `CURRENT`, and the highest number used so far.
    static ENTERED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Calls `action` with the current runtime of this thread: the one that is running or has been entered. Returns `None`
/// outside of a runtime.
///
/// `action` must not run application code, which could leave a runtime that has only been entered, and drop it. Use
/// [`try_current`] instead, which keeps the runtime alive.
#[inline]
pub(crate) fn with_current<T>(action: impl FnOnce(&Shared) -> T) -> Option<T> {
    // SAFETY: `ContextGuard` sets the pointer, and keeps its `Rc` alive until the pointer has been reset on this
    // thread. So the pointer is valid whenever it can be read here, and it stays valid during `action`, which runs no
    // application code and therefore drops no guard.
    CURRENT.get().map(|shared| action(unsafe { shared.as_ref() }))
}

/// Returns the current runtime of this thread. Panics if there is none.
#[track_caller]
pub(crate) fn current() -> Rc<Shared> {
    let Some(shared) = try_current() else {
        panic!(
            "no anello runtime on this thread (call from Runtime::block_on or a spawned task; on other threads, use Handle::spawn_with)"
        )
    };
    shared
}

/// Returns the current runtime of this thread, if any.
pub(crate) fn try_current() -> Option<Rc<Shared>> {
    CURRENT.get().map(|shared| {
        // SAFETY: the pointer came from an `Rc` that `ContextGuard` still holds (see `with_current`). The reference
        // count is incremented for the new `Rc`.
        unsafe {
            Rc::increment_strong_count(shared.as_ptr());
            Rc::from_raw(shared.as_ptr())
        }
    })
}

/// Returns whether the running task of the current runtime has budget left. If not, the task yields. Returns `None`
/// outside of a runtime.
#[inline]
pub(crate) fn has_budget_or_yield(context: &Context<'_>) -> Option<bool> {
    let has_budget = with_current(|shared| shared.turn.budget.get() > 0)?;
    Some(has_budget || may_proceed_without_budget(context))
}

#[cold]
#[inline(never)]
fn may_proceed_without_budget(context: &Context<'_>) -> bool {
    try_current().is_none_or(|shared| shared.may_proceed_without_budget(context))
}

/// Returns whether the ready queue of this thread's runtime contains tasks. Tasks in the current batch are not counted.
pub(super) fn has_ready_tasks() -> bool {
    with_current(|shared| !shared.tasks.ready.borrow().is_empty()) == Some(true)
}

/// Submits the notifications for other workers that this thread's runtime has queued. Must be called before the thread
/// blocks to wait for another worker, because the driver's next turn, which would otherwise submit the notifications,
/// runs only after the wait.
pub(crate) fn flush_wakes_before_blocking() {
    if let Some(shared) = try_current() {
        shared.flush_driver();
    }
}

/// Returns whether a runtime is polling or dropping tasks on this thread. The thread must then not block. Returns `false`
/// in a child that was forked in a poll: the parent's runtime does not run there, so that the child can run its own.
pub(crate) fn is_running() -> bool {
    RUNNING_IN.get().is_some_and(OwnerProcess::is_current)
}

/// Makes a runtime the current one on this thread until the guard is dropped.
///
/// The guards of a thread form a stack. Applications can drop them in any order, or leak them. A guard therefore has a
/// unique serial number and restores its predecessor only if it is the innermost one. A guard that is not leaks its
/// runtime's memory, because a later guard will restore the runtime as its predecessor.
#[derive(Debug)]
pub(super) struct ContextGuard {
    shared: Rc<Shared>,
    serial: u64,
    previous: Option<NonNull<Shared>>,
    previous_serial: u64,
}

impl ContextGuard {
    pub fn new(shared: &Rc<Shared>) -> Self {
        let (previous_serial, last) = ENTERED.get();
        let serial = last + 1;
        ENTERED.set((serial, serial));
        let previous = CURRENT.replace(NonNull::new(Rc::as_ptr(shared).cast_mut()));
        Self { shared: Rc::clone(shared), serial, previous, previous_serial }
    }

    fn is_innermost(&self) -> bool {
        ENTERED.get().0 == self.serial
    }

    /// Restores the runtime that was current before this guard was created. The guards that precede this one must still
    /// be on the stack.
    fn restore(&self) {
        CURRENT.set(self.previous);
        ENTERED.set((self.previous_serial, ENTERED.get().1));
    }
}

impl Drop for ContextGuard {
    #[track_caller]
    fn drop(&mut self) {
        if self.is_innermost() {
            return self.restore();
        }
        std::mem::forget(Rc::clone(&self.shared));
        assert!(
            std::thread::panicking(),
            "EnterGuard dropped out of order (drop the guards of a thread in reverse order of their creation)"
        );
    }
}

/// Marks a runtime as running on this thread, and makes it the current one, until the guard is dropped. Such guards are
/// local variables of this crate, so they are dropped in reverse order.
pub(super) struct RunGuard {
    context: ContextGuard,
    outer_running_in: Option<OwnerProcess>,
}

impl RunGuard {
    pub fn new(shared: &Rc<Shared>) -> Self {
        shared.lifecycle.is_entered.set(true);
        let outer_running_in = RUNNING_IN.replace(Some(OwnerProcess::current()));
        Self { context: ContextGuard::new(shared), outer_running_in }
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let shared = &self.context.shared;
        shared.tasks.running.set(None);
        shared.lifecycle.is_entered.set(false);
        RUNNING_IN.set(self.outer_running_in);
        if !self.context.is_innermost() {
            // A task has entered a runtime and has not left it. That guard is removed from the stack with this one.
            ENTERED.set((self.context.serial, ENTERED.get().1));
        }
    }
}

impl Shared {
    pub(super) fn new(
        driver: Driver,
        counters: TaskCounters,
        watched: Option<Arc<WatchedWorker>>,
    ) -> std::io::Result<Rc<Self>> {
        static RUNTIMES: AtomicU64 = AtomicU64::new(0);
        let worker_id = RUNTIMES.fetch_add(1, Ordering::Relaxed);
        let inbox = Inbox { mailbox: Mailbox::new(), notifier: driver.notifier()?, worker_id, watched };
        let clock = driver.clock();
        let (is_simulated, receives_in_polls) = (driver.is_simulated(), driver.receives_in_polls());
        #[cfg(feature = "compat-hyper")]
        let runtime_clock = RuntimeClock::new(|| clock.now_ns());
        let wheel = Wheel::new(clock.now_ns(), is_simulated);
        let sockets = SocketState {
            lingering: RefCell::new(driver.lingering()),
            ready_queues: RefCell::default(),
            exhaustion_log: Cell::default(),
        };
        Ok(Rc::new(Self {
            driver: RefCell::new(driver),
            inbox: Arc::new(inbox),
            time: Time {
                wheel: RefCell::new(wheel),
                clock,
                #[cfg(feature = "compat-hyper")]
                runtime_clock,
            },
            tasks: Tasks {
                table: RefCell::new(Table::new()),
                ready: RefCell::new(Vec::with_capacity(POLLS_PER_TURN)),
                running: Cell::new(None),
                counters,
            },
            turn: Turn {
                budget: Cell::new(BUDGET_PER_POLL),
                yield_requested: Cell::new(false),
                limit: TurnLimit::new(is_simulated, receives_in_polls),
                heap_trim: HeapTrim::new(MIN_FREED_TASKS),
                #[cfg(debug_assertions)]
                checked: Cell::new(0),
            },
            lifecycle: Lifecycle::default(),
            sockets,
        }))
    }

    /// Shuts down the driver. Destructors and wakers may run arbitrary code in the meantime.
    ///
    /// If the driver is borrowed, it is calling the destructor or waker that has dropped the runtime. The shutdown is
    /// then deferred to the next use of a socket, or to the destructor of the driver.
    pub(super) fn shut_down(&self, drain: Duration) {
        let Ok(mut driver) = self.driver.try_borrow_mut() else {
            self.lifecycle.deferred_shut_down.set(Some(drain));
            // Makes the next poll of a socket take the slow path, which performs the deferred shutdown.
            self.turn.budget.set(0);
            return;
        };
        let mut wakes = WakeQueue::default();
        let mut shut_down = Ok(());
        catch_and_log_panic("driver panicked during shutdown", || {
            shut_down = driver.shut_down(drain, &mut wakes);
        });
        drop(driver);
        if let Err(error) = shut_down {
            log_event!(ERROR, %error, "shutdown incomplete: operations still in flight; leaking their buffers");
        }
        debug_assert!(
            self.task_count() == 0,
            "invariant 14: the driver is shut down before all tasks are dropped"
        );
        // These wakers wake tasks of other runtimes that take over connections accepted by this runtime, or wait for its
        // sockets.
        catch_and_log_panic("waker panicked while a runtime was being dropped", || wakes.call());
        // No task runs after this point, so budgets are no longer needed.
        self.turn.budget.set(i64::MAX);
    }

    /// Returns `false` if no deferred shutdown was pending.
    #[cold]
    fn shut_down_if_deferred(&self) -> bool {
        let Some(drain) = self.lifecycle.deferred_shut_down.take() else { return false };
        // An outer runtime on this thread cannot submit its queued notifications until this one has drained.
        catch_and_log_panic("waker panicked before a runtime was shut down", flush_wakes_before_blocking);
        self.shut_down(drain);
        true
    }

    /// Flushes the driver if this runtime is not running, because it is unknown when the runtime will run again.
    pub fn flush_driver_unless_current(&self) {
        if with_current(|current| std::ptr::eq(current, self)) != Some(true) {
            self.flush_driver();
        }
    }

    /// Submits queued operations and processes their immediate completions, without waiting for the next turn.
    pub fn flush_driver(&self) {
        if self.lifecycle.is_closed.get() {
            // A closed driver has nothing to submit.
            self.shut_down_if_deferred();
            return;
        }
        let mut wakes = WakeQueue::default();
        for _ in 0..MAX_FLUSH_TURNS {
            // The driver is borrowed either by a turn or by an operation that is followed by a turn.
            let Ok(mut driver) = self.driver.try_borrow_mut() else { return };
            if driver.is_foreign() || !driver.needs_turn() {
                return;
            }
            let turned = driver.turn(Wait::None, &mut wakes);
            drop(driver);
            debug_assert!(
                self.driver.try_borrow_mut().is_ok(),
                "invariant 10: wakers are called while the driver is borrowed"
            );
            wakes.call();
            if let Err(error) = turned {
                log_event!(ERROR, %error, "flush failed; queued operations wait for the next turn");
                return;
            }
        }
    }

    /// Releases the key of a stream or listener in a separate task. Used if the driver is borrowed because it is
    /// dropping a waker or a buffer's owner whose destructor has dropped the stream or listener. `own` creates the
    /// owner of the key.
    pub fn release_deferred<T: 'static>(self: &Rc<Self>, key: Key, own: fn(Rc<Self>, Key) -> T) {
        let shared = Rc::downgrade(self);
        self.spawn(async move { drop(shared.upgrade().map(|shared| own(shared, key))) }).detach();
    }

    /// Returns a number that identifies the runtime in this process.
    pub fn worker_id(&self) -> u64 {
        self.inbox.worker_id
    }

    /// Returns whether the runtime polls this thread's futures. If not, it may only have been entered, and takes no turns.
    pub fn is_running(&self) -> bool {
        self.lifecycle.is_entered.get()
    }

    pub fn is_simulated(&self) -> bool {
        matches!(self.time.clock, Clock::Virtual(_))
    }

    /// Returns whether this is the runtime of one of several simulated hosts.
    pub fn has_simulated_disk(&self) -> bool {
        self.is_simulated() && self.driver.borrow().has_simulated_disk()
    }

    pub fn clock(&self) -> &Clock {
        &self.time.clock
    }

    pub fn now_ns(&self) -> u64 {
        self.time.clock.now_ns()
    }

    /// Returns whether the runtime has been dropped.
    pub fn is_closed(&self) -> bool {
        self.lifecycle.is_closed.get()
    }

    /// Removes all timers and wakes the tasks that wait for them, which belong to other runtimes.
    pub(super) fn cancel_timers(&self) {
        let mut wakers = Vec::new();
        self.time.wheel.borrow_mut().expire(u64::MAX, &mut wakers);
        wake_all(wakers);
    }

    /// Sets the waker of a timer. Returns `false` if the timer is no longer in the wheel.
    pub fn wait_on(&self, timer: TimerKey, waker: &Waker) -> bool {
        let mut timers = self.time.wheel.borrow_mut();
        let Some(current) = timers.get_mut(timer) else { return false };
        let replaced = (!current.will_wake(waker)).then(|| std::mem::replace(current, waker.clone()));
        // Dropping a waker can run arbitrary code, so the borrow ends first.
        drop(timers);
        drop(replaced);
        true
    }

    pub fn cancel_timer(&self, timer: TimerKey) {
        let waker = self.time.wheel.borrow_mut().cancel(timer);
        drop(waker);
    }

    /// Returns whether the running task has budget left. If not, the task yields.
    #[inline]
    pub fn has_budget_or_yield(&self, context: &Context<'_>) -> bool {
        self.turn.budget.get() > 0 || self.may_proceed_without_budget(context)
    }

    #[cold]
    #[inline(never)]
    fn may_proceed_without_budget(&self, context: &Context<'_>) -> bool {
        let is_shut_down = self.shut_down_if_deferred();
        if !is_shut_down {
            self.yield_task(context);
        }
        is_shut_down
    }

    pub(super) fn yield_task(&self, context: &Context<'_>) {
        self.turn.yield_requested.set(true);
        context.waker().wake_by_ref();
    }

    #[inline]
    pub fn spend_budget(&self, bytes: usize) {
        let cost = 1 + (bytes >> 12) as i64;
        self.turn.budget.set(self.turn.budget.get() - cost);
    }

    /// Polls the driver if the running task has budget left, and charges the budget for the bytes transferred.
    #[inline]
    pub fn poll_driver<T>(
        &self,
        context: &Context<'_>,
        poll: impl FnOnce(&mut Driver, &Waker) -> PollIo<T>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> PollIo<T> {
        if !self.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let polled = poll(&mut self.driver.borrow_mut(), context.waker());
        if let Poll::Ready(result) = &polled {
            self.spend_budget(result.as_ref().map_or(0, bytes));
        }
        polled
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The sleep futures in `compat` do not own the runtime, so their timers can still be in the wheel.
        let mut wakers = Vec::new();
        self.time.wheel.get_mut().expire(u64::MAX, &mut wakers);
        for waker in wakers {
            catch_and_log_panic("waker panicked while being dropped with its runtime", || drop(waker));
        }
    }
}

impl Inbox {
    /// Sends a message and notifies the worker. Returns the result of [`notify_worker`](Self::notify_worker).
    #[cold]
    pub(super) fn send(&self, message: MailboxMessage) -> bool {
        // If the runtime has been dropped, the message is dropped here, which cancels the task to be spawned.
        // Invariant 11: the message is queued before the state of the mailbox changes.
        self.mailbox.push(message).is_ok() && self.notify_worker()
    }

    /// Notifies the worker, whether or not its mailbox contains messages, and wakes it if it is asleep.
    ///
    /// Returns `true` if this thread's io_uring runtime sends the notification: immediately or, if the kernel does not
    /// take it, in the next turn. Otherwise, an eventfd wakes the worker immediately if it is asleep.
    #[cold]
    pub(super) fn notify_worker(&self) -> bool {
        let queued = with_current(|shared| {
            // The driver is borrowed while it calls application code.
            let mut driver = shared.driver.try_borrow_mut().ok()?;
            if !driver.can_send_wake() {
                return None;
            }
            match self.mailbox.queue_notify(shared.inbox.worker_id) {
                NotifyResult::Queue if driver.send_wake(&self.notifier) => Some(NotifyResult::Queue),
                NotifyResult::Queue => Some(NotifyResult::Sleeping),
                result => Some(result),
            }
        });
        let result = queued.flatten().unwrap_or_else(|| self.mailbox.notify());
        if result == NotifyResult::Sleeping {
            self.notifier.notify();
        }
        result == NotifyResult::Queue
    }
}

impl Owner for Inbox {
    /// Uses the ready queue on the worker's own thread, and the mailbox on any other thread.
    #[inline]
    fn schedule(&self, pointer: TaskPointer) -> bool {
        let local = with_current(|shared| {
            let own = std::ptr::eq(&*shared.inbox, self);
            if own {
                shared.push_ready(pointer);
            }
            own
        });
        local != Some(true) && self.send(MailboxMessage::Wake(pointer))
    }

    #[inline]
    fn is_current(&self) -> bool {
        with_current(|shared| std::ptr::eq(&*shared.inbox, self)) == Some(true)
    }

    #[inline]
    fn notify_if_asleep(&self) {
        if self.mailbox.is_asleep() {
            self.notify_worker();
        }
    }

    #[cold]
    fn notify(&self) {
        self.notifier.notify();
    }

    #[inline]
    fn waker_vtable() -> &'static RawWakerVTable {
        &WAKER_VTABLE
    }
}
