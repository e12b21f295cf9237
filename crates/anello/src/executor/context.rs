//! The runtime of the current thread, and what its tasks share.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::join::{Join, JoinFuture, JoinHandle};
use super::mailbox::{Mailbox, NotifyResult};
#[cfg(feature = "compat-hyper")]
use super::runtime_clock::RuntimeClock;
use super::task::{Task, TaskPointer};
use crate::driver::table::Table;
use crate::driver::{Clock, Driver, Key, Notifier, Wait, WakeQueue, catch_and_log_panic, log};
use crate::net::LingerQueue;
use crate::time::wheel::{TimerKey, Wheel};

/// Polls after which the driver has a turn although tasks are still ready; all that are ready have one first.
pub(super) const POLLS_PER_TURN: usize = 256;

/// What a task may do between two polls before it has to let others run: operations, each counted once and once more
/// for every 4 KiB.
const BUDGET_PER_POLL: i64 = 128;

/// Most turns by which something is handed over: a send that was queued behind another needs one of its own.
const MAX_FLUSH_TURNS: usize = 4;

/// The parts of a runtime that its sockets, timers and tasks use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub driver: RefCell<Driver>,
    pub timers: RefCell<Wheel<Waker>>,
    /// The driver's clock, which can be read while the driver is borrowed.
    clock: Clock,
    /// Tasks ready to run, in order, behind those that the executor has in hand.
    pub(super) ready: RefCell<Vec<TaskPointer>>,
    pub(super) inbox: Arc<Inbox>,
    /// Every task that is not done.
    tasks: RefCell<Table<Task>>,
    /// The runtime is current on its thread: it polls tasks, or drops them.
    entered: Cell<bool>,
    /// The runtime was dropped: a task that is spawned from now on is cancelled at once.
    is_closed: Cell<bool>,
    /// The runtime was dropped while its driver was in use, which is to be shut down at the next use of a socket: for how
    /// long to send.
    deferred_shut_down: Cell<Option<Duration>>,
    /// What is left of it; below zero when the last operation was larger than what was left.
    budget: Cell<i64>,
    /// A task has spent its budget: the driver and the timers come first, then it goes on.
    pub(super) yield_requested: Cell<bool>,
    /// Streams that were dropped with bytes to send.
    pub linger_queue: RefCell<LingerQueue>,
    #[cfg(feature = "compat-hyper")]
    pub runtime_clock: RuntimeClock,
}

/// The part that other threads reach.
#[derive(Debug)]
pub(crate) struct Inbox {
    mailbox: Mailbox<MailboxMessage>,
    notifier: Notifier,
    /// By which other mailboxes know the worker.
    number: u32,
}

/// What other threads send.
#[derive(Debug)]
pub(super) enum MailboxMessage {
    /// A new task.
    Spawn(Task),
    /// A task of this worker that was woken elsewhere.
    Wake(TaskPointer),
}

// SAFETY: a task in the mail was made from a `Send` future that was not yet polled (see `Inbox::spawn`).
unsafe impl Send for MailboxMessage {}

thread_local! {
    static CURRENT: Cell<Option<NonNull<Shared>>> = const { Cell::new(None) };
}

/// Calls `use_it` with the runtime that runs on this thread, if one does.
#[inline]
pub(crate) fn with_current<T>(use_it: impl FnOnce(&Shared) -> T) -> Option<T> {
    // SAFETY: the pointer is set by `EnterGuard`, which keeps its `Rc` alive and takes the pointer back when dropped, on
    // this thread; so it is valid whenever it can be read here.
    CURRENT.get().map(|shared| use_it(unsafe { shared.as_ref() }))
}

/// The runtime that runs on this thread.
///
/// # Panics
/// When there is none.
pub(crate) fn current() -> Rc<Shared> {
    let Some(shared) = CURRENT.get() else {
        panic!("no runtime runs on this thread: call this inside Runtime::block_on or a spawned task")
    };
    // SAFETY: the pointer came from an `Rc` that `EnterGuard` still holds (see `with_current`); the count is raised for
    // the new one.
    unsafe {
        Rc::increment_strong_count(shared.as_ptr());
        Rc::from_raw(shared.as_ptr())
    }
}

/// Whether a task of the runtime that runs on this thread is ready, besides those that it has in hand.
pub(super) fn has_ready_tasks() -> bool {
    with_current(|shared| !shared.ready.borrow().is_empty()) == Some(true)
}

/// Hands wake-ups of other workers to the kernel that the runtime of this thread has queued, if one runs. To be called before
/// the thread blocks until another one has done something: the next turn, which would submit them, may depend on it.
pub(crate) fn flush_wakes_before_blocking() {
    with_current(Shared::flush_driver);
}

/// Makes a runtime the current one of this thread until dropped.
pub(super) struct EnterGuard {
    before: Option<NonNull<Shared>>,
    was_entered: bool,
    shared: Rc<Shared>,
}

impl EnterGuard {
    pub fn new(shared: &Rc<Shared>) -> Self {
        let shared = Rc::clone(shared);
        let pointer = NonNull::new(Rc::as_ptr(&shared).cast_mut());
        Self { before: CURRENT.replace(pointer), was_entered: shared.entered.replace(true), shared }
    }
}

impl Drop for EnterGuard {
    fn drop(&mut self) {
        debug_assert_eq!(
            CURRENT.get().map(|shared| shared.as_ptr().cast_const()),
            Some(Rc::as_ptr(&self.shared))
        );
        CURRENT.set(self.before);
        self.shared.entered.set(self.was_entered);
    }
}

/// Whether a runtime is running on this thread.
pub(super) fn is_entered() -> bool {
    CURRENT.get().is_some()
}

impl Shared {
    pub fn new(driver: Driver) -> std::io::Result<Rc<Self>> {
        let notifier = driver.notifier()?;
        #[cfg(feature = "compat-hyper")]
        let runtime_clock = RuntimeClock::new(|| driver.now_ns());
        let (timers, clock) = (Wheel::new(driver.now_ns()), driver.clock());
        Ok(Rc::new(Self {
            driver: RefCell::new(driver),
            timers: RefCell::new(timers),
            clock,
            ready: RefCell::new(Vec::with_capacity(POLLS_PER_TURN)),
            inbox: Arc::new(Inbox::new(notifier)),
            tasks: RefCell::new(Table::new()),
            entered: Cell::new(false),
            is_closed: Cell::new(false),
            deferred_shut_down: Cell::new(None),
            budget: Cell::new(BUDGET_PER_POLL),
            yield_requested: Cell::new(false),
            linger_queue: RefCell::default(),
            #[cfg(feature = "compat-hyper")]
            runtime_clock,
        }))
    }

    /// Whether it runs on this thread.
    pub fn is_current(&self) -> bool {
        with_current(|current| std::ptr::eq(current, self)) == Some(true)
    }

    /// Whether the runtime is current somewhere on the stack of its thread.
    pub(super) fn is_entered(&self) -> bool {
        self.entered.get()
    }

    /// Shuts the driver down, whatever destructors and wakers do meanwhile. When the driver is in use, one of them has
    /// dropped the runtime: then the next use of a socket shuts it down, or the destructor of the driver.
    pub(super) fn shut_down(&self, drain: Duration) {
        let Ok(mut driver) = self.driver.try_borrow_mut() else {
            self.deferred_shut_down.set(Some(drain));
            // Seen by the next poll.
            self.budget.set(0);
            return;
        };
        let mut wakes = WakeQueue::default();
        catch_and_log_panic("the driver panicked while it was shut down", || {
            if let Err(error) = driver.shut_down(drain, &mut wakes) {
                tracing::error!(%error, "the kernel has not ended all operations: their memory is leaked, not freed");
            }
        });
        drop(driver);
        // Tasks of other runtimes, which inherit what was accepted here.
        catch_and_log_panic("a waker panicked while its runtime was dropped", || wakes.call());
        // No task runs any more that others have to be protected from.
        self.budget.set(i64::MAX);
    }

    /// Shuts the driver down if that was deferred. Returns whether it was.
    #[cold]
    fn shut_down_if_deferred(&self) -> bool {
        let Some(drain) = self.deferred_shut_down.take() else { return false };
        // Of a runtime around this one, which waits until this one has drained.
        catch_and_log_panic("a waker panicked before a runtime was shut down", flush_wakes_before_blocking);
        self.shut_down(drain);
        true
    }

    /// Hands what was noted to the kernel, and does what that answers at once, where it must not wait for the next turn.
    pub fn flush_driver(&self) {
        if self.is_closed.get() {
            // A closed driver has nothing to hand over.
            self.shut_down_if_deferred();
            return;
        }
        let mut wakes = WakeQueue::default();
        for _ in 0..MAX_FLUSH_TURNS {
            // Borrowed by a turn, or by what ends with one.
            let Ok(mut driver) = self.driver.try_borrow_mut() else { return };
            if !driver.needs_turn() {
                return;
            }
            let turned = driver.turn(Wait::No, &mut wakes);
            drop(driver);
            wakes.call();
            if let Err(error) = turned {
                return log(|| tracing::error!(%error, "what was noted waits for the next turn"));
            }
        }
    }

    /// Gives up a stream or a listener, which `own` makes, right after what the driver does now: it was dropped with
    /// something that the driver drops, a waker or the owner of bytes.
    pub fn release_deferred<T: 'static>(self: &Rc<Self>, key: Key, own: fn(Rc<Self>, Key) -> T) {
        let shared = Rc::downgrade(self);
        self.spawn(async move { drop(shared.upgrade().map(|shared| own(shared, key))) }).detach();
    }

    /// Whether time and network are simulated.
    pub fn is_simulated(&self) -> bool {
        matches!(self.clock, Clock::Virtual(_))
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Waits with this waker for a timer, if it is still in the wheel; whether it is.
    pub fn wait_on(&self, timer: TimerKey, waker: &Waker) -> bool {
        let mut timers = self.timers.borrow_mut();
        let Some(waiting) = timers.get_mut(timer) else { return false };
        let replaced = (!waiting.will_wake(waker)).then(|| std::mem::replace(waiting, waker.clone()));
        // Dropping a waker may run any code.
        drop(timers);
        drop(replaced);
        true
    }

    /// Takes a timer out of the wheel.
    pub fn cancel_timer(&self, timer: TimerKey) {
        let waker = self.timers.borrow_mut().cancel(timer);
        drop(waker);
    }

    #[inline]
    pub(super) fn reset_budget(&self) {
        self.budget.set(BUDGET_PER_POLL);
    }

    /// Whether the running task may do more before it lets others run; if not, it is woken again at once.
    #[inline]
    pub fn has_budget_or_yield(&self, context: &Context<'_>) -> bool {
        self.budget.get() > 0 || self.may_proceed_without_budget(context)
    }

    #[cold]
    #[inline(never)]
    fn may_proceed_without_budget(&self, context: &Context<'_>) -> bool {
        if self.shut_down_if_deferred() {
            return true;
        }
        self.yield_task(context);
        false
    }

    /// Has the running task polled again when the driver and the timers have had a turn.
    fn yield_task(&self, context: &Context<'_>) {
        self.yield_requested.set(true);
        context.waker().wake_by_ref();
    }

    /// Polls without a budget.
    fn poll_unconstrained<T>(&self, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        let budget = self.budget.replace(i64::MAX);
        let polled = poll();
        self.budget.set(budget);
        polled
    }

    /// Counts an operation on `bytes` bytes against the running task.
    #[inline]
    pub fn spend_budget(&self, bytes: usize) {
        let cost = 1 + (bytes >> 12) as i64;
        self.budget.set(self.budget.get() - cost);
    }

    /// Spawns a future that stays on this thread.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let join = Join::new();
        let task = Task::new(JoinFuture::new(future, Arc::clone(&join)), Arc::clone(&self.inbox));
        let handle = JoinHandle::new(join, task.waker());
        self.register_task(task);
        handle
    }

    /// Enters a new task into the list and the ready queue.
    fn register_task(&self, task: Task) {
        if self.is_closed.get() {
            // For example the task that closes lingering streams, when a stream outlives its runtime: it would own the
            // runtime that owns the list.
            return drop(task);
        }
        let pointer = task.pointer();
        let mut tasks = self.tasks.borrow_mut();
        let key = tasks.insert(task);
        if let Some(task) = tasks.get(key) {
            task.set_key(key);
        }
        self.ready.borrow_mut().push(pointer);
    }

    /// Puts a task behind those that are ready.
    #[inline]
    fn push_ready(&self, pointer: TaskPointer) {
        let mut ready = self.ready.borrow_mut();
        if ready.len() == ready.capacity() {
            grow(&mut ready);
        }
        ready.push(pointer);
    }

    /// Takes what other threads have sent.
    pub(super) fn drain_mailbox(&self) {
        for message in self.inbox.mailbox.take() {
            match message {
                MailboxMessage::Spawn(task) => self.register_task(task),
                MailboxMessage::Wake(pointer) => self.ready.borrow_mut().push(pointer),
            }
        }
    }

    /// Polls a task that was ready.
    #[inline]
    pub(super) fn run(&self, pointer: TaskPointer) {
        self.budget.set(BUDGET_PER_POLL);
        if let Some(key) = pointer.run() {
            let task = self.tasks.borrow_mut().remove(key);
            drop(task);
        }
    }

    /// Drops every task, and whatever they spawn while they are dropped. No task runs after this. Never unwinds: what runs
    /// code of the application is the destructor of a task, which contains it.
    pub(super) fn cancel_tasks(&self) {
        let mut message = self.inbox.mailbox.close();
        loop {
            let keys = self.tasks.borrow().keys();
            if keys.is_empty() && message.is_empty() {
                break;
            }
            for key in keys {
                let task = self.tasks.borrow_mut().remove(key);
                drop(task);
            }
            message.clear();
        }
        self.ready.borrow_mut().clear();
        self.is_closed.set(true);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Of sleeps that do not own the runtime, and so did not take them out (`compat`).
        let mut wakers = Vec::new();
        self.timers.get_mut().expire(u64::MAX, &mut wakers);
        for waker in wakers {
            catch_and_log_panic("a waker panicked while it was dropped with its runtime", || drop(waker));
        }
    }
}

/// Apart, so that the way without it needs no frame.
#[cold]
#[inline(never)]
fn grow(ready: &mut Vec<TaskPointer>) {
    ready.reserve(1);
}

impl Inbox {
    fn new(notifier: Notifier) -> Self {
        static RUNTIMES: AtomicU32 = AtomicU32::new(0);
        // Half of the numbers: the mailbox marks one by a bit.
        let number = RUNTIMES.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
        Self { mailbox: Mailbox::new(), notifier, number }
    }

    /// Makes a task ready: directly on its own thread, through the mailbox from any other. Returns whether the notification of
    /// its worker is only queued.
    #[inline]
    pub(super) fn schedule(&self, pointer: TaskPointer) -> bool {
        let local = with_current(|shared| {
            let own = self.is_of(shared);
            if own {
                shared.push_ready(pointer);
            }
            own
        });
        local != Some(true) && self.send(MailboxMessage::Wake(pointer))
    }

    fn is_of(&self, shared: &Shared) -> bool {
        std::ptr::eq(Arc::as_ptr(&shared.inbox), self)
    }

    /// Whether the worker runs on this thread.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        with_current(|shared| self.is_of(shared)) == Some(true)
    }

    /// Returns what [`notify_worker`](Self::notify_worker) returns.
    #[cold]
    fn send(&self, message: MailboxMessage) -> bool {
        match self.mailbox.push(message) {
            Ok(()) => self.notify_worker(),
            // The runtime is gone, and with it the tasks that were woken; one that was to be is cancelled here.
            Err(message) => {
                drop(message);
                false
            }
        }
    }

    /// Rings unless the worker is awake or being notified at once.
    #[inline]
    pub(super) fn notify_if_asleep(&self) {
        if self.mailbox.is_asleep() {
            self.notify_worker();
        }
    }

    /// Ends the sleep of the worker at once.
    #[cold]
    pub(super) fn notify(&self) {
        self.notifier.notify();
    }

    /// Rings, with mail or without, and ends the sleep of the worker: on io_uring, with the next turn of this thread's own
    /// worker, if there is one; at once by the eventfd otherwise. Returns whether the notification is only queued.
    #[cold]
    pub fn notify_worker(&self) -> bool {
        let queued = with_current(|shared| {
            // Borrowed while the driver calls foreign code.
            let mut driver = shared.driver.try_borrow_mut().ok()?;
            if !driver.can_queue_wake() {
                return None;
            }
            match self.mailbox.queue_notify(shared.inbox.number) {
                NotifyResult::Queue if driver.queue_wake(&self.notifier) => Some(NotifyResult::Queue),
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

    /// Closes the descriptors by which other threads reach the worker, which has ended.
    pub(super) fn close(&self) {
        self.notifier.close();
    }

    /// Spawns a future that may move between threads.
    pub fn spawn<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let join = Join::new();
        let task = Task::new(JoinFuture::new(future, Arc::clone(&join)), Arc::clone(self));
        let handle = JoinHandle::new(join, task.waker());
        self.send(MailboxMessage::Spawn(task));
        handle
    }

    #[inline]
    pub(super) fn mailbox(&self) -> &Mailbox<MailboxMessage> {
        &self.mailbox
    }
}

/// Lets other tasks run, and the driver: the task goes on when the driver and the timers have had a turn.
///
/// Outside of a runtime of this crate, it wakes its task and goes on at the next poll. Cancel-safe.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        if with_current(|shared| shared.yield_task(context)).is_none() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

/// Takes one operation from the budget of the running task, and waits for the next turn of the driver when it is spent.
///
/// A poll may do 128 operations on sockets and timers (one more for each 4 KiB of data) before its task has to let
/// others run. Futures of other crates, such as channels, do not count: a task that always finds the next item in a channel
/// would keep its worker from timers and sockets. Call this once for each item, in loops whose futures may always be ready
/// and in long computations.
///
/// Does nothing outside of a runtime of this crate. Cancel-safe.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// let mut items = (0..10_000).collect::<std::collections::VecDeque<u32>>();
/// let mut sum = 0;
/// while let Some(item) = items.pop_front() {
///     anello::task::consume_budget().await;
///     sum += item;
/// }
/// assert_eq!(sum, 49_995_000);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn consume_budget() {
    poll_fn(|context| {
        let has_budget_or_yield = with_current(|shared| {
            let has_budget_or_yield = shared.has_budget_or_yield(context);
            if has_budget_or_yield {
                shared.spend_budget(0);
            }
            has_budget_or_yield
        });
        if has_budget_or_yield == Some(false) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// Runs a future without a budget: it may do as many operations in a poll as it finds ready.
///
/// For futures that must not be interrupted between ready operations. While one runs, other tasks, sockets and timers of
/// the worker wait. Cancel-safe if the future is.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// let sum = anello::task::unconstrained(async {
///     let mut sum = 0;
///     for item in 0..1000 {
///         anello::task::consume_budget().await; // Never waits here.
///         sum += item;
///     }
///     sum
/// });
/// assert_eq!(sum.await, 499_500);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn unconstrained<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        with_current(|shared| shared.poll_unconstrained(|| future.as_mut().poll(context)))
            .unwrap_or_else(|| future.as_mut().poll(context))
    })
    .await
}
