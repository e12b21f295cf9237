//! Runtimes and their main loop.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use super::context::{
    self, BUDGET_PER_POLL, EnterGuard, Inbox, MailboxMessage, POLLS_PER_TURN, Shared, TaskPointer,
    flush_wakes_before_blocking, with_current,
};
use super::join::JoinHandle;
use super::task::Owner;
use super::task_counters::add;
use crate::driver::{
    Driver, DriverInfo, DriverKind, DriverMetrics, DriverOptions, Wait, WakeQueue, catch_and_log_panic, log,
};

/// Environment variable that overrides the driver selection.
const DRIVER_VARIABLE: &str = "ANELLO_DRIVER";

/// A single-threaded runtime for tasks, timers and sockets.
///
/// A runtime stays on the thread that built it. Dropping it
///
/// 1. drops every task,
/// 2. sends bytes that streams have already accepted, for at most [`RuntimeBuilder::drain_timeout`],
/// 3. cancels all operations in flight and waits until the kernel has completed them, and
/// 4. frees its memory.
///
/// A runtime in a `thread_local!` is leaked instead if one of its tasks calls `process::exit`.
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
}

impl Runtime {
    /// Returns a builder with the default options.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Builds a runtime with the default options. It uses io_uring if available, otherwise epoll.
    ///
    /// # Errors
    /// Returns the errors of [`RuntimeBuilder::build`].
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }

    /// Returns the name of the driver, the kernel features that it uses and, after a fallback to epoll, the reason.
    pub fn driver(&self) -> DriverInfo {
        self.shared.driver.borrow().description.clone()
    }

    /// Returns a handle for spawning tasks on this runtime from other threads.
    pub fn handle(&self) -> Handle {
        Handle { inbox: Arc::clone(&self.shared.inbox) }
    }

    /// Runs a future to completion, and runs the spawned tasks concurrently with it.
    ///
    /// Tasks that have not finished when the future completes stay in the runtime. The next call continues to run them.
    ///
    /// # Panics
    /// Panics if a runtime is already running on this thread, if the future panics, or if the driver fails to wait for
    /// events (for example because other code has closed its file descriptor).
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            with_current(|_| ()).is_none(),
            "a runtime already runs on this thread (await the future instead of calling block_on)"
        );
        let _entered = EnterGuard::new(&self.shared);
        let _on_unwind = FlushOnUnwind(&self.shared);
        let inbox = Arc::clone(&self.shared.inbox);
        let main = Arc::new(MainTask { is_woken: AtomicBool::new(true), inbox });
        let waker = Waker::from(Arc::clone(&main));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(Some(future));
        // Swapped with the ready queue. Both queues have capacity from the start, so that a wake-up does not allocate.
        let mut batch = Vec::with_capacity(POLLS_PER_TURN);
        let mut wakes = WakeQueue::new(&context::WAKER_VTABLE, context::has_ready_tasks);
        loop {
            if main.is_woken.load(Ordering::Relaxed) && main.is_woken.swap(false, Ordering::Acquire) {
                self.shared.budget.set(BUDGET_PER_POLL);
                add(&self.shared.counters.polls, 1);
                let mut poll = || future.as_mut().as_pin_mut().map(|future| future.poll(&mut context));
                let polled = self.shared.measure_poll(&mut poll);
                if let Some(Poll::Ready(output)) = polled {
                    // Drops the sockets that the future still owns. This runtime might not run again for a long time,
                    // so they are closed now, and accepted bytes and notifications for other workers are submitted.
                    future.set(None);
                    self.shared.flush_driver();
                    return output;
                }
            }
            run_ready(&self.shared, &mut batch);
            let busy = main.is_woken.load(Ordering::Relaxed) || !self.shared.ready.borrow().is_empty();
            if let Err(error) = take_turn(&self.shared, &mut wakes, busy, &main.is_woken) {
                panic!("{} driver failed: {error}", self.driver().name);
            }
        }
    }
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

/// Polls the ready tasks, and the tasks that they wake, until no task is ready, `POLLS_PER_TURN` polls have been made
/// or a task has exhausted its budget.
#[inline]
fn run_ready(shared: &Shared, batch: &mut Vec<TaskPointer>) {
    let mut polls = 0;
    while polls < POLLS_PER_TURN {
        std::mem::swap(batch, &mut *shared.ready.borrow_mut());
        if batch.is_empty() {
            return;
        }
        polls += batch.len();
        add(&shared.counters.polls, batch.len() as u64);
        if shared.counters.longest_poll_ns.is_some() {
            run_measured(shared, batch);
        }
        for pointer in batch.drain(..) {
            shared.run(pointer);
        }
        if shared.yield_requested.replace(false) {
            return;
        }
    }
}

/// Polls the tasks of a batch, and records the duration of each poll.
#[cold]
#[inline(never)]
fn run_measured(shared: &Shared, batch: &mut Vec<TaskPointer>) {
    for pointer in batch.drain(..) {
        shared.measure_poll(|| shared.run(pointer));
    }
}

/// Runs the driver and the timers for one iteration of the main loop.
#[inline]
fn take_turn(
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
    let turned = shared.driver.borrow_mut().turn(wait, wakes);
    if wait != Wait::None {
        mailbox.finish_sleep();
    }
    turned?;
    if !shared.timers.borrow().is_empty() {
        let now_ns = shared.now_ns();
        shared.timers.borrow_mut().expire(now_ns, &mut wakes.deferred_wakers);
    }
    // Nothing may be borrowed here, because a waker can run arbitrary code.
    wakes.call();
    if mailbox.is_notified() {
        shared.drain_mailbox();
    }
    Ok(())
}

/// Returns how long the worker can sleep before the next timer is due.
#[inline]
fn time_to_wait(shared: &Shared) -> Wait {
    let timers = shared.timers.borrow();
    // Usually, no timer is pending, and checking this is cheaper than computing the next deadline.
    if timers.is_empty() {
        return Wait::Forever;
    }
    let Some(deadline_ns) = timers.next_deadline_ns() else { return Wait::Forever };
    drop(timers);
    match deadline_ns.saturating_sub(shared.now_ns()) {
        0 => Wait::None,
        remaining_ns => Wait::For(remaining_ns),
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.shared.is_entered.get() {
            // A task has called `process::exit`, and the C library is running the destructor of a `thread_local!` that
            // contains this runtime. Outer stack frames still use the runtime and the future being polled.
            std::mem::forget(Rc::clone(&self.shared));
            return log(|| tracing::error!("runtime dropped while running; leaking it"));
        }
        // An outer runtime on this thread cannot submit its queued notifications until this one has been dropped.
        catch_and_log_panic("waker panicked before a runtime was dropped", flush_wakes_before_blocking);
        let entered = EnterGuard::new(&self.shared);
        // Drops the tasks, which release their sockets to the driver.
        self.shared.cancel_tasks();
        drop(entered);
        self.shared.shut_down(self.drain_timeout);
        self.shared.inbox.notifier.close();
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

/// A handle to a runtime, which can be sent to other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: Arc<Inbox>,
}

impl Handle {
    /// Spawns a future on the runtime's thread.
    ///
    /// If the target and the caller's runtime both use io_uring, the target is notified through `MSG_RING`, otherwise
    /// through an eventfd. A task on an io_uring runtime only queues the notification, which that runtime submits in
    /// its next turn. Such a task therefore deadlocks if it blocks its thread until the spawned task has run.
    ///
    /// If the runtime has been dropped, the future is dropped and the returned handle resolves to a cancellation error.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (task, handle) = JoinHandle::new_task(future, Arc::clone(&self.inbox));
        self.inbox.send(MailboxMessage::Spawn(task));
        handle
    }

    /// Calls `make` on the runtime's thread and spawns the future that it returns. The closure is `Send`; the future
    /// does not need to be, so it can contain sockets, `Rc` and other values of the runtime's thread.
    ///
    /// Notifies the runtime like [`spawn`](Self::spawn). If the runtime has been dropped, the closure is dropped, and
    /// the returned handle resolves to a cancellation error. A panic of the closure is a panic of the task.
    ///
    /// ```
    /// use std::rc::Rc;
    ///
    /// let runtime = anello::Runtime::new()?;
    /// let task = runtime.handle().spawn_with(|| async {
    ///     let shared = Rc::new(40);
    ///     anello::yield_now().await;
    ///     *shared + 2
    /// });
    /// assert_eq!(runtime.block_on(task).ok(), Some(42));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn spawn_with<M, F>(&self, make: M) -> JoinHandle<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        // Before its first poll, this future contains only the closure, which is `Send`.
        let (task, handle) = JoinHandle::new_task(async move { make().await }, Arc::clone(&self.inbox));
        self.inbox.send(MailboxMessage::Spawn(task));
        handle
    }
}

/// Spawns a future on the current thread's runtime.
///
/// # Panics
/// Panics if no runtime is running on this thread.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    with_current(|shared| shared.spawn(future)).unwrap_or_else(|| {
        panic!("no anello runtime on this thread (call spawn from Runtime::block_on or a spawned task)")
    })
}

/// Returns the driver of the runtime that is running on this thread, or `None` outside of a runtime.
pub fn current_driver() -> Option<DriverInfo> {
    with_current(|shared| shared.driver.borrow().description.clone())
}

/// Returns the driver counters of the runtime that is running on this thread, or `None` outside of a runtime.
pub fn current_metrics() -> Option<DriverMetrics> {
    with_current(|shared| shared.driver.borrow().metrics())
}

/// Builds a [`Runtime`].
#[derive(Clone, Debug)]
pub struct RuntimeBuilder {
    kind: DriverKind,
    options: DriverOptions,
    drain_timeout: Duration,
    environment: bool,
    measures_polls: bool,
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        Self {
            kind: DriverKind::Auto,
            options: DriverOptions::default(),
            drain_timeout: Duration::from_secs(1),
            environment: true,
            measures_polls: false,
        }
    }
}

impl RuntimeBuilder {
    /// Sets the driver. The default is [`DriverKind::Auto`].
    ///
    /// The environment variable `ANELLO_DRIVER` (`auto`, `uring` or `epoll`) overrides any driver set here except the
    /// simulated driver.
    pub fn driver(mut self, kind: DriverKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the options of the driver.
    pub fn options(mut self, options: DriverOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the maximum time that dropping the runtime spends sending bytes that streams have already accepted. The
    /// default is 1 second.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets whether `ANELLO_DRIVER` can override the driver. The default is `true`. Disable it in a benchmark that
    /// compares drivers.
    pub fn driver_from_environment(mut self, enabled: bool) -> Self {
        self.environment = enabled;
        self
    }

    /// Sets whether the duration of each poll is measured for [`RuntimeMetrics::longest_poll`](crate::RuntimeMetrics::longest_poll). The default is `false`.
    /// Measuring reads the clock twice per poll (`clock_gettime(2)`, about 40 ns). On the simulated driver, virtual
    /// time advances only by 50 ns per clock read during a poll.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = anello::Runtime::builder().measure_polls(true).build()?;
    /// runtime.block_on(async { std::thread::sleep(Duration::from_millis(2)) });
    /// assert!(runtime.metrics().longest_poll >= Some(Duration::from_millis(2)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn measure_polls(mut self, enabled: bool) -> Self {
        self.measures_polls = enabled;
        self
    }

    /// Builds the runtime on the calling thread.
    ///
    /// # Errors
    /// Returns an error if the requested driver is unavailable (the message contains the cause and a remedy), if the
    /// open file limit is reached, or if `ANELLO_DRIVER` contains an unknown driver name.
    pub fn build(&self) -> io::Result<Runtime> {
        let mut kind = self.kind.clone();
        if self.environment
            && !matches!(kind, DriverKind::Sim(_))
            && let Ok(name) = std::env::var(DRIVER_VARIABLE)
        {
            kind = name.parse::<DriverKind>().map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("{DRIVER_VARIABLE}: {error}"))
            })?;
        }
        let driver = Driver::new(&kind, &self.options)?;
        let description = &driver.description;
        match &description.fallback_reason {
            Some(reason) => {
                tracing::info!(driver = description.name, reason, "io_uring unavailable; using epoll")
            }
            None => {
                tracing::info!(driver = description.name, features = description.features, "driver ready")
            }
        }
        Ok(Runtime { shared: Shared::new(driver, self.measures_polls)?, drain_timeout: self.drain_timeout })
    }
}
