//! Runtimes and their main loop.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use super::accepted_writes;
use super::blocking;
use super::context::{
    self, BUDGET_PER_POLL, ContextGuard, Inbox, POLLS_PER_TURN, RunGuard, Shared, TaskPointer,
    flush_wakes_before_blocking, is_running, with_current,
};
use super::handle::Handle;
use super::join::JoinHandle;
use super::origin::Origin;
use super::task::Owner;
use super::task_counters::add;
use crate::driver::{DriverInfo, DriverMetrics, Wait, WakeQueue, catch_and_log_panic, log_event};

/// A single-threaded runtime for tasks, timers and sockets.
///
/// A runtime stays on the thread that built it. Dropping it
///
/// 1. drops every task,
/// 2. sends bytes that streams have already accepted, and resets each connection whose peer reads none of them for
///    [`RuntimeBuilder::drain_timeout`](crate::RuntimeBuilder::drain_timeout),
/// 3. cancels all operations in flight and waits until the kernel has completed them,
/// 4. frees its memory, and
/// 5. if it is the last runtime of the process, waits until the accepted writes to files
///    ([`File::write`](crate::fs::File::write)) and to the standard output and error have been performed.
///
/// Tasks of other runtimes that wait for its sockets and signals are woken and get an error. Those that wait for its
/// timers panic, because a timer cannot return an error. A runtime in a `thread_local!` is leaked instead if one of its
/// tasks calls `process::exit`. A child process of `fork(2)` may drop the runtime of its parent, which has no effect, and
/// panics if it uses it.
///
/// ```
/// let runtime = anello::Runtime::builder().build()?;
/// let sum = runtime.block_on(async {
///     let task = anello::spawn(async { 40 });
///     task.await.map(|forty| forty + 2)
/// });
/// assert_eq!(sum.ok(), Some(42));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Runtime {
    pub(super) shared: Rc<Shared>,
    drain_timeout: Duration,
    /// Maximum time to wait for accepted writes to files.
    max_write_wait: Option<Duration>,
}

impl Runtime {
    pub(super) fn new_with(shared: Rc<Shared>, drain_timeout: Duration) -> Self {
        accepted_writes::start_runtime();
        Self { shared, drain_timeout, max_write_wait: None }
    }

    /// Returns the name of the driver, the kernel features that it uses and, after a fallback to epoll, the reason.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let driver = runtime.driver();
    /// println!("driver {}, features {}", driver.name, driver.features);
    /// assert!(["uring", "epoll"].contains(&driver.name));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn driver(&self) -> DriverInfo {
        self.shared.driver.borrow().description.clone()
    }

    /// Returns a handle for spawning tasks on this runtime from other threads.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let handle = runtime.handle();
    /// let thread = std::thread::spawn(move || handle.spawn(async { 42 }));
    /// let task = thread.join().expect("the thread does not panic");
    /// assert_eq!(runtime.block_on(task)?, 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn handle(&self) -> Handle {
        Handle { inbox: Arc::clone(&self.shared.inbox) }
    }

    /// Spawns a future on this runtime. It runs during calls to [`block_on`](Self::block_on).
    ///
    /// Unlike a future that is spawned through a [`Handle`], it need not be `Send`, because the runtime stays on its
    /// thread.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let shared = std::rc::Rc::new(42);
    /// let task = runtime.spawn(async move { *shared });
    /// assert_eq!(runtime.block_on(task).ok(), Some(42));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.shared.spawn(future)
    }

    /// Runs a blocking closure on the blocking thread pool; see [`spawn_blocking`](crate::spawn_blocking).
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let work = runtime.spawn_blocking(|| std::fs::read_to_string("/proc/version"));
    /// assert!(runtime.block_on(work)??.starts_with("Linux"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        blocking::spawn_for(work, Some(Origin::of(&self.shared)))
    }

    /// Makes this runtime the current one on its thread until the returned guard is dropped, so that functions such as
    /// [`spawn`](crate::spawn()), [`sleep`](crate::time::sleep) and
    /// [`TcpListener::bind`](crate::net::TcpListener::bind) can be called outside [`block_on`](Self::block_on). Tasks
    /// run only during calls to `block_on`.
    ///
    /// Runtimes can be entered repeatedly. Guards must be dropped in reverse order, and must not be held across an
    /// `.await`, because other tasks would then run in the wrong context.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let entered = runtime.enter();
    /// let listener = anello::net::TcpListener::bind("127.0.0.1:0")?;
    /// let task = anello::spawn(async { 42 });
    /// drop(entered);
    /// assert_eq!(runtime.block_on(task).ok(), Some(42));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Dropping a guard panics if a guard that was created later exists.
    #[must_use = "the runtime is current only until the guard is dropped"]
    pub fn enter(&self) -> EnterGuard<'_> {
        EnterGuard { _context: ContextGuard::new(&self.shared), _runtime: PhantomData }
    }

    /// Drops the runtime with the given drain timeout instead of
    /// [`RuntimeBuilder::drain_timeout`](crate::RuntimeBuilder::drain_timeout): tasks are dropped, and the connection of
    /// each stream of which the peer reads no accepted bytes for this time is reset. Also waits at most this time for
    /// accepted writes to files.
    ///
    /// Like dropping the runtime, it does not wait for closures of [`spawn_blocking`](crate::spawn_blocking), because
    /// their threads belong to the process.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// runtime.block_on(async { /* ... */ });
    /// runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn shutdown_timeout(mut self, timeout: Duration) {
        self.drain_timeout = timeout;
        self.max_write_wait = Some(timeout);
    }

    /// Drops the runtime without waiting for streams to send the bytes that they have accepted: their connections are
    /// reset. Does not wait for accepted writes to files either. Equivalent to
    /// [`shutdown_timeout`](Self::shutdown_timeout) with a duration of zero.
    ///
    /// If the kernel has taken all bytes of a stream, it sends them. The runtime still waits until its operations have been
    /// cancelled, which takes microseconds. A runtime cannot be dropped in one of its own tasks.
    ///
    /// ```
    /// anello::Runtime::new()?.shutdown_background();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn shutdown_background(self) {
        self.shutdown_timeout(Duration::ZERO);
    }

    /// Runs a future to completion, and runs the spawned tasks concurrently with it.
    ///
    /// Tasks that have not finished when the future completes stay in the runtime. The next call continues to run them.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let task = runtime.block_on(async {
    ///     let task = anello::spawn(async {
    ///         anello::yield_now().await;
    ///         42
    ///     });
    ///     assert!(!task.is_finished());
    ///     task
    /// });
    /// // The task continues in the next call.
    /// assert_eq!(runtime.block_on(task)?, 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if a runtime is already running on this thread, if the future panics, or if the driver fails to wait for
    /// events (for example because other code has closed its file descriptor).
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !is_running(),
            "a runtime already runs on this thread (await the future instead of calling block_on)"
        );
        let _entered = RunGuard::new(&self.shared);
        let _on_unwind = FlushOnUnwind(&self.shared);
        let mut future = pin!(Some(future));
        let mut main_loop = MainLoop::new(&self.shared);
        loop {
            let mut context = Context::from_waker(&main_loop.waker);
            let poll = || future.as_mut().as_pin_mut().map(|future| future.poll(&mut context));
            if let Some(Poll::Ready(output)) = self.shared.measure_poll(None, poll) {
                // Drops the sockets that the future still owns. This runtime might not run again for a long time, so they
                // are closed now, and accepted bytes and notifications for other workers are submitted.
                future.set(None);
                self.shared.flush_driver();
                return output;
            }
            if let Err(error) = main_loop.run_until_main_is_woken() {
                panic!("{} driver failed: {error}", self.driver().name);
            }
        }
    }
}

/// Guard returned by [`Runtime::enter`].
///
/// ```
/// use anello::{EnterGuard, Handle, Runtime};
///
/// let runtime = Runtime::new()?;
/// let guard: EnterGuard<'_> = runtime.enter();
/// assert!(Handle::try_current().is_ok());
/// drop(guard);
/// assert!(Handle::try_current().is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EnterGuard<'a> {
    _context: ContextGuard,
    _runtime: PhantomData<&'a Runtime>,
}

/// Flushes the driver when a panic unwinds `block_on`, because other workers may be waiting for queued notifications.
struct FlushOnUnwind<'a>(&'a Shared);

impl Drop for FlushOnUnwind<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            catch_and_log_panic("waker panicked while block_on was unwinding", || self.0.flush_driver());
        }
    }
}

/// The part of `block_on` that does not depend on the type of its future, so that it is compiled once.
struct MainLoop<'a> {
    batch: BatchGuard<'a>,
    wakes: WakeQueue,
    main: Arc<MainTask>,
    /// Wakes `main`.
    waker: Waker,
}

impl<'a> MainLoop<'a> {
    /// Creates the loop for a main future that is polled at once.
    fn new(shared: &'a Shared) -> Self {
        let inbox = Arc::clone(&shared.inbox);
        let main = Arc::new(MainTask { is_woken: AtomicBool::new(false), inbox });
        start_main_poll(shared);
        Self {
            batch: BatchGuard(shared, Batch::new()),
            wakes: WakeQueue::new(&context::WAKER_VTABLE, context::has_ready_tasks),
            waker: Waker::from(Arc::clone(&main)),
            main,
        }
    }

    /// Runs the ready tasks, the driver and the timers until the main future must be polled, at least once. A wake-up
    /// counts once.
    fn run_until_main_is_woken(&mut self) -> io::Result<()> {
        loop {
            self.run_once()?;
            let BatchGuard(shared, batch) = &self.batch;
            if batch.is_finished()
                && self.main.is_woken.load(Ordering::Relaxed)
                && self.main.is_woken.swap(false, Ordering::Acquire)
            {
                start_main_poll(shared);
                return Ok(());
            }
        }
    }

    #[inline]
    fn run_once(&mut self) -> io::Result<()> {
        let BatchGuard(shared, batch) = &mut self.batch;
        run_ready(shared, batch);
        let busy = self.main.is_woken.load(Ordering::Relaxed)
            || !batch.is_finished()
            || !shared.tasks.ready.borrow().is_empty();
        take_turn(shared, &mut self.wakes, busy, &self.main.is_woken)?;
        #[cfg(debug_assertions)]
        shared.check(batch);
        Ok(())
    }
}

/// Starts the budget of a poll of the main future, and counts the poll.
fn start_main_poll(shared: &Shared) {
    shared.turn.budget.set(BUDGET_PER_POLL);
    add(&shared.tasks.counters.polls, 1);
}

/// Tasks that are polled in order. Tasks that a turn leaves are polled in the following turns, before the ready queue.
#[derive(Debug)]
pub(super) struct Batch {
    tasks: Vec<TaskPointer>,
    /// Index of the next task to poll.
    next: usize,
}

impl Batch {
    /// Has capacity from the start, like the ready queue with which it is swapped, so that a wake-up does not allocate.
    pub fn new() -> Self {
        Self { tasks: Vec::with_capacity(POLLS_PER_TURN), next: 0 }
    }

    /// Returns whether all tasks have been polled.
    pub fn is_finished(&self) -> bool {
        self.next == self.tasks.len()
    }

    /// Returns the tasks that have not been polled.
    #[cfg(debug_assertions)]
    pub fn rest(&self) -> &[TaskPointer] {
        &self.tasks[self.next..]
    }
}

/// Returns the tasks that have not been polled to the ready queue when `block_on` unwinds.
struct BatchGuard<'a>(&'a Shared, Batch);

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        let Self(shared, batch) = self;
        if !batch.is_finished() {
            shared.tasks.ready.borrow_mut().splice(0..0, batch.tasks.drain(batch.next..));
        }
    }
}

/// Polls the ready tasks, and the tasks that they wake, until no task is ready, `POLLS_PER_TURN` polls have been made,
/// the time limit of the turn is reached, a task has exhausted its budget, or the rest of an earlier turn's batch has been
/// polled, because the main task is polled once per batch.
#[inline]
pub(super) fn run_ready(shared: &Shared, batch: &mut Batch) {
    let mut polls = 0;
    let is_rest = !batch.is_finished();
    shared.turn.limit.start_turn();
    while polls < POLLS_PER_TURN {
        if batch.is_finished() {
            let mut ready = shared.tasks.ready.borrow_mut();
            if ready.is_empty() {
                break;
            }
            batch.next = 0;
            batch.tasks.clear();
            std::mem::swap(&mut batch.tasks, &mut *ready);
        }
        let first = batch.next;
        let is_measured = shared.tasks.counters.longest_poll_ns.is_some();
        let is_over =
            if is_measured { run_measured(shared, batch) } else { run_batch(shared, batch, Shared::run) };
        polls += batch.next - first;
        add(&shared.tasks.counters.polls, (batch.next - first) as u64);
        if shared.turn.yield_requested.replace(false) || is_over || is_rest {
            break;
        }
    }
    debug_assert!(
        polls < POLLS_PER_TURN + batch.tasks.len().max(1),
        "invariant 13: {polls} polls before a turn of the driver"
    );
    shared.finish_batch();
}

/// Polls the tasks of a batch. Returns whether the time limit of the turn has been reached.
#[inline]
fn run_batch(shared: &Shared, batch: &mut Batch, run: impl Fn(&Shared, TaskPointer)) -> bool {
    let has_unsubmitted = || shared.driver.try_borrow().is_ok_and(|driver| driver.has_unsubmitted());
    while let Some(&pointer) = batch.tasks.get(batch.next) {
        // Before the poll, so that a task is never polled twice.
        batch.next += 1;
        run(shared, pointer);
        let remaining = batch.tasks.len() - batch.next;
        if shared.turn.limit.is_reached(remaining, || shared.now_ns(), has_unsubmitted) {
            return true;
        }
    }
    false
}

/// Polls the tasks of a batch like [`run_batch`], and records the duration of each poll.
#[cold]
#[inline(never)]
fn run_measured(shared: &Shared, batch: &mut Batch) -> bool {
    run_batch(shared, batch, Shared::run_measured)
}

/// Runs the driver and the timers for one iteration of the main loop.
#[inline]
pub(super) fn take_turn(
    shared: &Shared,
    wakes: &mut WakeQueue,
    busy: bool,
    main_is_woken: &AtomicBool,
) -> io::Result<()> {
    let mailbox = &shared.inbox.mailbox;
    let mut wait = if busy || mailbox.is_notified() { Wait::None } else { time_to_wait(shared) };
    if wait != Wait::None && !mailbox.prepare_to_sleep() {
        wait = Wait::None;
    }
    // Two threads may have woken the main task since `busy` was computed. The second one saw that the worker was awake
    // and did not notify it, and the notification from the first one may stay queued for a long time.
    if wait != Wait::None && main_is_woken.load(Ordering::SeqCst) {
        mailbox.finish_sleep();
        wait = Wait::None;
    }
    debug_assert!(
        wait == Wait::None || mailbox.is_asleep() || mailbox.is_notified(),
        "invariant 11: a worker waits without the state `SLEEPING`"
    );
    let mut driver = shared.driver.borrow_mut();
    if wait != Wait::None {
        shared.turn.heap_trim.update(shared.task_count() + driver.stream_count());
    }
    let turned = driver.turn(wait, wakes);
    drop(driver);
    if wait != Wait::None {
        mailbox.finish_sleep();
    }
    turned?;
    if !shared.time.wheel.borrow().is_empty() {
        let now_ns = shared.now_ns();
        shared.time.wheel.borrow_mut().expire(now_ns, &mut wakes.deferred_wakers);
    }
    // Nothing may be borrowed here, because a waker can run arbitrary code.
    debug_assert!(
        shared.driver.try_borrow_mut().is_ok() && shared.time.wheel.try_borrow_mut().is_ok(),
        "invariant 10: wakers are called while the driver or the timers are borrowed"
    );
    wakes.call();
    if mailbox.is_notified() {
        shared.drain_mailbox();
    }
    Ok(())
}

/// Returns how long the worker can sleep before the next timer is due.
#[inline]
fn time_to_wait(shared: &Shared) -> Wait {
    let timers = shared.time.wheel.borrow();
    // Usually, no timer is pending, and checking this is cheaper than computing the next deadline.
    if timers.is_empty() {
        return Wait::Forever;
    }
    let Some(deadline_ns) = timers.next_deadline_ns() else { return Wait::Forever };
    drop(timers);
    match deadline_ns.saturating_sub(shared.now_ns()) {
        // The deadline is reached, perhaps long since.
        0 => Wait::None,
        remaining_ns => Wait::For(remaining_ns),
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.shared.driver.try_borrow().is_ok_and(|driver| driver.is_foreign()) {
            // The parent process still uses the sockets.
            return std::mem::forget(Rc::clone(&self.shared));
        }
        if self.shared.lifecycle.is_entered.get() {
            // A task has called `process::exit`, and the C library is running the destructor of a `thread_local!` that
            // contains this runtime. Outer stack frames still use the runtime and the future being polled.
            std::mem::forget(Rc::clone(&self.shared));
            return log_event!(ERROR, "runtime dropped while running; leaking it");
        }
        // An outer runtime on this thread cannot submit its queued notifications until this one has been dropped.
        catch_and_log_panic("waker panicked before a runtime was dropped", flush_wakes_before_blocking);
        let tasks = self.shared.task_count();
        let entered = RunGuard::new(&self.shared);
        // Drops the tasks, which release their sockets to the driver.
        self.shared.cancel_tasks();
        drop(entered);
        self.shared.shut_down(self.drain_timeout);
        if let Some(worker) = &self.shared.inbox.watched {
            worker.unwatch();
        }
        // Invariant 19: the handles and wakers that remain own no descriptor.
        self.shared.inbox.notifier.close();
        accepted_writes::end_runtime(self.max_write_wait);
        log_event!(DEBUG, tasks, "runtime stopped");
    }
}

/// Waker for the future passed to `block_on`. Can be called on any thread.
struct MainTask {
    is_woken: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Wake for MainTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_woken.swap(true, Ordering::SeqCst) {
            // The earlier wake-up may be from another worker, whose notification can stay queued for a long time.
            return self.inbox.notify_if_asleep();
        }
        if !self.inbox.is_current() {
            self.inbox.notify_worker();
        }
    }
}

/// Returns the driver of the runtime that is running on this thread, or `None` outside of a runtime.
///
/// ```
/// use anello::current_driver;
///
/// assert_eq!(current_driver(), None);
/// let runtime = anello::Runtime::new()?;
/// assert_eq!(runtime.block_on(async { current_driver() }), Some(runtime.driver()));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn current_driver() -> Option<DriverInfo> {
    with_current(|shared| shared.driver.borrow().description.clone())
}

/// Returns the driver counters of the runtime that is running on this thread, or `None` outside of a runtime.
///
/// ```
/// use anello::current_driver_metrics;
///
/// assert_eq!(current_driver_metrics(), None);
/// # anello::example! {
/// let listener = anello::net::TcpListener::bind("127.0.0.1:0")?;
/// assert!(current_driver_metrics().is_some_and(|metrics| metrics.accepted == 0));
/// # drop(listener);
/// # }
/// ```
pub fn current_driver_metrics() -> Option<DriverMetrics> {
    with_current(|shared| shared.driver.borrow().metrics())
}
