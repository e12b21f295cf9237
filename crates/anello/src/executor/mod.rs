//! The executor: one thread, its tasks, its timers and its driver, in one loop.
//!
//! ```text
//!   ┌─> run ready tasks (POLLS_PER_TURN or once each) ─> fire timers ─> turn the driver ─┐
//!   └────────────────────── wakers of what happened, the inbox <────────────────────┘
//! ```
//!
//! The driver's turn submits what the tasks asked for and, when no task is ready, sleeps until something completes,
//! another thread rings or the next timer is due: one system call does all of it. Fairness: a turn is taken after a
//! bounded number of polls however busy the tasks are, and a task that always finds data has to yield when its budget
//! is spent.

mod blocking;
mod context;
mod join;
mod mailbox;
#[cfg(feature = "compat-hyper")]
mod runtime_clock;
mod scheduled;
mod task;
mod task_memory;
mod workers;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::driver::{
    Driver, DriverInfo, DriverKind, DriverMetrics, DriverOptions, Wait, WakeQueue, catch_and_log_panic, log,
};
use context::{EnterGuard, Inbox, POLLS_PER_TURN};
use task::TaskPointer;

pub use blocking::{
    BlockingHandle, MOST_THREADS as MAX_BLOCKING_THREADS, spawn_blocking, spawn_file_operation,
};
pub(crate) use context::{Shared, current, flush_wakes_before_blocking, with_current};
pub use context::{consume_budget, unconstrained, yield_now};
pub use join::{JoinError, JoinHandle};
pub use workers::{WorkerContext, Workers, WorkersBuilder, allowed_cores};

/// The name of the environment variable that overrides the choice of driver.
const DRIVER_VARIABLE: &str = "ANELLO_DRIVER";

/// A runtime of one thread: it polls tasks, fires timers and drives sockets.
///
/// It stays on the thread that built it. Dropping it drops every task, sends what was accepted (for at most
/// [`RuntimeBuilder::drain_timeout`]), cancels everything in flight and waits for the kernel to let go of it before memory is freed. When
/// `process::exit` in one of its tasks drops it, as the value of a `thread_local!`, it is leaked instead.
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
    shared: Rc<Shared>,
    drain_timeout: Duration,
}

impl Runtime {
    /// A builder with the default options.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// A runtime with the default options: the driver is io_uring where it works, else epoll.
    ///
    /// # Errors
    /// As [`RuntimeBuilder::build`].
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }

    /// Which driver runs, with which kernel features, and why not the other.
    pub fn driver(&self) -> DriverInfo {
        self.shared.driver.borrow().description().clone()
    }

    /// What the driver has counted so far.
    pub fn metrics(&self) -> DriverMetrics {
        self.shared.driver.borrow().metrics()
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        Handle { inbox: Arc::clone(&self.shared.inbox) }
    }

    /// Runs a future to its end, and every spawned task beside it.
    ///
    /// # Panics
    /// When a runtime runs on this thread already; when the future panics; when the kernel refuses to wait, which
    /// means that the driver's descriptor was closed by somebody else.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !context::is_entered(),
            "a runtime runs on this thread already: await the future instead of calling block_on"
        );
        let _entered = EnterGuard::new(&self.shared);
        let _on_unwind = FlushOnUnwind(&self.shared);
        let main = Arc::new(MainTask { woken: AtomicBool::new(true), inbox: Arc::clone(&self.shared.inbox) });
        let waker = Waker::from(Arc::clone(&main));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(Some(future));
        // Changes places with the list of ready tasks: both have memory from the start, so that no wake allocates.
        let mut in_hand = Vec::with_capacity(POLLS_PER_TURN);
        let mut turn = Turn { wakes: WakeQueue::new(&task::WAKER_VTABLE, context::has_ready_tasks) };
        loop {
            if main.woken.load(Ordering::Relaxed) && main.woken.swap(false, Ordering::Acquire) {
                self.shared.reset_budget();
                let polled = future.as_mut().as_pin_mut().map(|future| future.poll(&mut context));
                if let Some(Poll::Ready(output)) = polled {
                    // Sockets that it still owns are closed by the last turns.
                    future.set(None);
                    // Nobody knows when this runtime runs again: bytes that were accepted and wakes of other workers go
                    // out now.
                    self.shared.flush_driver();
                    return output;
                }
            }
            run_ready(&self.shared, &mut in_hand);
            let busy = main.woken.load(Ordering::Relaxed) || !self.shared.ready.borrow().is_empty();
            if let Err(error) = turn.take(&self.shared, busy, &main.woken) {
                panic!("the {} driver cannot go on: {error}", self.driver().name);
            }
        }
    }
}

/// Hands to the kernel what was noted when `block_on` unwinds: the runtime may not run again for long, and other workers wait
/// for wake-ups that were queued.
struct FlushOnUnwind<'a>(&'a Shared);

impl Drop for FlushOnUnwind<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            catch_and_log_panic("a waker panicked while block_on unwound", || self.0.flush_driver());
        }
    }
}

/// Polls the tasks that are ready, and those that they wake, until none is left or it is the driver's turn: after so
/// many polls, or when one has spent its budget.
#[inline]
fn run_ready(shared: &Shared, in_hand: &mut Vec<TaskPointer>) {
    let mut polls = 0;
    while polls < POLLS_PER_TURN {
        std::mem::swap(in_hand, &mut *shared.ready.borrow_mut());
        if in_hand.is_empty() {
            return;
        }
        polls += in_hand.len();
        for pointer in in_hand.drain(..) {
            shared.run(pointer);
        }
        if shared.yield_requested.replace(false) {
            return;
        }
    }
}

/// One turn of the driver and the timers, with the memory it reuses.
struct Turn {
    wakes: WakeQueue,
}

impl Turn {
    #[inline]
    fn take(&mut self, shared: &Shared, busy: bool, main_is_woken: &AtomicBool) -> io::Result<()> {
        let mailbox = shared.inbox.mailbox();
        let mut wait = Wait::No;
        if !busy && !mailbox.is_notified() {
            wait = time_to_wait(shared);
        }
        if wait != Wait::No && !mailbox.prepare_to_sleep() {
            wait = Wait::No;
        }
        // Woken by two threads since it was looked at: the second one saw that the worker is awake, and the first one may
        // keep its notification queued for long.
        if wait != Wait::No && main_is_woken.load(Ordering::SeqCst) {
            mailbox.finish_sleep();
            wait = Wait::No;
        }
        let turned = shared.driver.borrow_mut().turn(wait, &mut self.wakes);
        if wait != Wait::No {
            mailbox.finish_sleep();
        }
        turned?;
        if !shared.timers.borrow().is_empty() {
            let now_ns = shared.now_ns();
            shared.timers.borrow_mut().expire(now_ns, self.wakes.deferred_wakers_mut());
        }
        // Called when nothing is borrowed any more: a waker may do anything.
        self.wakes.call();
        if mailbox.is_notified() {
            shared.drain_mailbox();
        }
        Ok(())
    }
}

/// Until the next timer.
#[inline]
fn time_to_wait(shared: &Shared) -> Wait {
    let timers = shared.timers.borrow();
    // Mostly there is none, which costs less to see than the next deadline.
    if timers.is_empty() {
        return Wait::Forever;
    }
    let Some(deadline_ns) = timers.next_deadline_ns() else { return Wait::Forever };
    drop(timers);
    match deadline_ns.saturating_sub(shared.now_ns()) {
        0 => Wait::No,
        left_ns => Wait::For(left_ns),
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.shared.is_entered() {
            // `process::exit` in a task, with the runtime in a `thread_local!`: the C library calls the destructors of those.
            // The stack below still uses the future that is being polled, and all that the runtime owns.
            std::mem::forget(Rc::clone(&self.shared));
            return log(|| tracing::error!("the runtime was dropped while it runs: it is leaked, not freed"));
        }
        // Of a runtime around this one, which waits until this one has drained.
        catch_and_log_panic("a waker panicked before a runtime was dropped", flush_wakes_before_blocking);
        let entered = EnterGuard::new(&self.shared);
        // Tasks go first: what they own is released into the driver.
        self.shared.cancel_tasks();
        drop(entered);
        self.shared.shut_down(self.drain_timeout);
        self.shared.inbox.close();
    }
}

/// The future of `block_on`, woken from anywhere.
struct MainTask {
    woken: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Wake for MainTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(true, Ordering::SeqCst) {
            // Another worker may have woken it, and keep the notification queued for long.
            return self.inbox.notify_if_asleep();
        }
        let own = with_current(|shared| Arc::ptr_eq(&shared.inbox, &self.inbox));
        if own != Some(true) {
            self.inbox.notify_worker();
        }
    }
}

/// Reaches a runtime from other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: Arc<Inbox>,
}

impl Handle {
    /// Spawns a future on the runtime's thread (`MSG_RING` between io_uring workers, an eventfd otherwise).
    ///
    /// From a task of an io_uring runtime, the message goes with the next turn, as all wakes of other workers do: a task
    /// that blocks its thread until the other has done something waits for ever.
    ///
    /// When the runtime is gone the task is dropped, and its handle says that it was cancelled.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.inbox.spawn(future)
    }
}

/// Spawns a future on the runtime of this thread.
///
/// # Panics
/// When no runtime runs on this thread.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    with_current(|shared| shared.spawn(future)).unwrap_or_else(|| {
        panic!("no runtime runs on this thread: call spawn inside Runtime::block_on or a spawned task")
    })
}

/// The driver of the runtime that runs on this thread, if one does.
pub fn current_driver() -> Option<DriverInfo> {
    with_current(|shared| shared.driver.borrow().description().clone())
}

/// What the driver of this thread's runtime has counted, if one runs.
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
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        Self {
            kind: DriverKind::Auto,
            options: DriverOptions::default(),
            drain_timeout: Duration::from_secs(1),
            environment: true,
        }
    }
}

impl RuntimeBuilder {
    /// Which driver to run on. The environment variable `ANELLO_DRIVER` (`auto`, `uring`, `epoll`) overrides it, except
    /// for the simulated one.
    pub fn driver(mut self, kind: DriverKind) -> Self {
        self.kind = kind;
        self
    }

    /// Limits and ways of the driver.
    pub fn options(mut self, options: DriverOptions) -> Self {
        self.options = options;
        self
    }

    /// How long dropping the runtime may take to send what was accepted; 1 second by default.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Whether `ANELLO_DRIVER` is looked at; it is by default. A program that compares drivers says no.
    pub fn driver_from_environment(mut self, enabled: bool) -> Self {
        self.environment = enabled;
        self
    }

    /// Builds the runtime on the calling thread.
    ///
    /// # Errors
    /// When the driver asked for by name is not to be had here (the error names the cause and the remedy), when the
    /// process has no descriptors left, or when `ANELLO_DRIVER` names no driver.
    pub fn build(&self) -> io::Result<Runtime> {
        let kind = self.effective_kind()?;
        let driver = Driver::new(&kind, &self.options)?;
        let description = driver.description();
        match &description.fallback_reason {
            Some(reason) => tracing::info!(driver = description.name, reason, "io_uring was not taken"),
            None => {
                tracing::info!(driver = description.name, features = description.features, "driver ready")
            }
        }
        Ok(Runtime { shared: Shared::new(driver)?, drain_timeout: self.drain_timeout })
    }

    fn effective_kind(&self) -> io::Result<DriverKind> {
        if matches!(self.kind, DriverKind::Sim(_)) || !self.environment {
            return Ok(self.kind.clone());
        }
        match std::env::var(DRIVER_VARIABLE) {
            Ok(name) => name.parse().map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("{DRIVER_VARIABLE}: {error}"))
            }),
            Err(_) => Ok(self.kind.clone()),
        }
    }
}
