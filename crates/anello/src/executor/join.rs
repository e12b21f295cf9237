//! Join handles and task results.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::join_error::JoinError;
use super::task::{Abort, Owner, Task, TaskHandle};
use super::task_info::{Id, Info};
use crate::driver::{catch_and_log_panic, rethrow_broken_invariant, wake_all};

/// A handle to a spawned task, and a future that returns its result.
///
/// [`spawn_blocking`](crate::spawn_blocking) returns the same type. Dropping the handle detaches the task, which
/// continues to run. [`abort`](Self::abort) cancels it. Awaiting `&mut handle` is cancel-safe: the handle can be awaited
/// again. It can be awaited on any thread and by any executor, if the result is `Send`.
///
/// # Errors
/// The future returns a [`JoinError`] if the task panicked or was cancelled.
///
/// ```
/// # anello::example! {
/// let mut task = anello::spawn(async { 40 + 2 });
/// let result = anello::time::timeout(std::time::Duration::from_secs(1), &mut task).await;
/// assert_eq!(result.ok().and_then(Result::ok), Some(42));
/// assert!(task.is_finished());
/// # }
/// ```
#[must_use = "dropping the handle detaches the task; call `.detach()` if this is intended"]
pub struct JoinHandle<T> {
    shared: Arc<Join<T>>,
    target: Target,
}

/// What a handle aborts.
#[derive(Clone)]
enum Target {
    Task(TaskHandle),
    Blocking(Arc<dyn Cancel>),
}

/// Blocking work that has an owner on another thread.
trait Cancel: RefUnwindSafe + Send + Sync {
    /// Completes the work with a cancellation error, unless it has started.
    fn cancel(&self);
    fn is_finished(&self) -> bool;
}

impl Target {
    fn abort(&self) {
        match self {
            Self::Task(task) => task.abort(),
            Self::Blocking(work) => work.cancel(),
        }
    }
}

/// State shared between a task, or blocking work, and its handle.
pub(super) struct Join<T> {
    id: Id,
    state: Mutex<State<T>>,
}

enum State<T> {
    /// Blocking work that has not started. Contains the waker of the task that awaits the result.
    Queued(Option<Waker>),
    Running(Option<Waker>),
    Finished(Result<T, JoinError>),
    Taken,
}

impl<T> State<T> {
    /// Returns the waker slot until the result is available.
    fn waker(&mut self) -> Option<&mut Option<Waker>> {
        match self {
            Self::Queued(waker) | Self::Running(waker) => Some(waker),
            Self::Finished(_) | Self::Taken => None,
        }
    }
}

impl<T> Join<T> {
    fn new(id: Id) -> Arc<Self> {
        Arc::new(Self { id, state: Mutex::new(State::Running(None)) })
    }

    pub fn id(&self) -> Id {
        self.id
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No application code runs while the lock is held, so a panic cannot poison it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waker in place of the current one. Returns `false` if the result is available.
    fn wait(&self, waker: &Waker) -> bool {
        // Cloning and dropping a waker can run arbitrary code, so neither happens while the lock is held.
        let clone = waker.clone();
        let mut state = self.lock();
        let Some(current) = state.waker() else { return false };
        let replaced = current.replace(clone);
        drop(state);
        drop(replaced);
        true
    }

    /// Returns the result, or a cancellation error if it is not available or was taken before: a handle can be polled
    /// again after it has returned the result.
    fn take(&self) -> Result<T, JoinError> {
        match std::mem::replace(&mut *self.lock(), State::Taken) {
            State::Finished(result) => result,
            State::Queued(_) | State::Running(_) | State::Taken => Err(JoinError::cancelled(self.id)),
        }
    }

    /// Returns the result once it is available. Until then, registers the waker of `context`.
    fn poll(&self, context: &Context<'_>) -> Poll<Result<T, JoinError>> {
        match self.wait(context.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(self.take()),
        }
    }

    /// Stores the result and wakes the waiting task. Only the first call has an effect, because dropping a future stores
    /// a cancellation whether or not the future has completed.
    pub fn complete(&self, result: Result<T, JoinError>) {
        let mut state = self.lock();
        if let Some(waker) = state.waker() {
            let waker = waker.take();
            *state = State::Finished(result);
            drop(state);
            wake_all(waker);
        }
    }

    /// Stores the result of blocking work, or the payload of its panic.
    pub fn complete_work(&self, result: std::thread::Result<T>) {
        self.complete(result.map_err(|payload| JoinError::panicked(self.id, payload)));
    }

    /// Completes blocking work with the error that the queue of its thread pool was full.
    pub fn reject(&self, limit: usize) {
        self.complete(Err(JoinError::queue_full(self.id, limit)));
    }

    /// Called before blocking work starts. Returns `false` if it has been cancelled.
    pub fn start(&self) -> bool {
        let mut state = self.lock();
        match &mut *state {
            State::Queued(waker) => {
                *state = State::Running(waker.take());
                true
            }
            State::Running(_) => {
                debug_assert!(false, "blocking work is started twice");
                false
            }
            // Cancelled, and perhaps reported.
            State::Finished(_) | State::Taken => false,
        }
    }

    fn is_finished(&self) -> bool {
        matches!(*self.lock(), State::Finished(_) | State::Taken)
    }
}

/// The destructor of a result that was not taken runs application code. As in tokio, a panic in it does not unwind into
/// the owner of the handle.
impl<T> Drop for Join<T> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Finished(_) = state {
            let result = std::mem::replace(state, State::Taken);
            catch_and_log_panic("result of a task panicked while being dropped", || drop(result));
        }
    }
}

impl<T: Send> Cancel for Join<T> {
    fn cancel(&self) {
        let mut state = self.lock();
        if let State::Queued(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Finished(Err(JoinError::cancelled(self.id)));
            drop(state);
            wake_all(waker);
        }
    }

    fn is_finished(&self) -> bool {
        Self::is_finished(self)
    }
}

impl<T> JoinHandle<T> {
    pub(super) fn new_task<F: Future<Output = T>, O: Owner>(
        future: F,
        owner: Arc<O>,
        info: Info,
    ) -> (Task<O>, Self) {
        let shared = Join::new(info.id);
        let task =
            Task::new(JoinFuture { future: Some(future), shared: Some(Arc::clone(&shared)) }, owner, info);
        let handle = Self { shared, target: Target::Task(task.handle()) };
        (task, handle)
    }

    /// Creates the state of blocking work that has not started, and its handle.
    pub(super) fn new_blocking() -> (Arc<Join<T>>, Self)
    where
        T: Send + 'static,
    {
        let shared = Arc::new(Join { id: Id::next(), state: Mutex::new(State::Queued(None)) });
        let target = Target::Blocking(Arc::clone(&shared) as Arc<dyn Cancel>);
        (Arc::clone(&shared), Self { shared, target })
    }

    /// Detaches the task, which continues to run. If the task panics afterwards, the panic is not reported.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::sync::oneshot;
    ///
    /// let (sender, receiver) = oneshot::channel();
    /// anello::spawn(async move { sender.send(42) }).detach();
    /// assert_eq!(receiver.await, Ok(42));
    /// # }
    /// ```
    pub fn detach(self) {}

    /// Cancels the task: its worker drops the future instead of polling it again. Does nothing if the task has
    /// finished.
    ///
    /// The handle still has to be awaited to learn when the future has been dropped. It returns the task's result
    /// if the task finishes first. A closure passed to [`spawn_blocking`](crate::spawn_blocking) is cancelled only if
    /// it has not started.
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::spawn(std::future::pending::<()>());
    /// task.abort();
    /// assert!(task.await.unwrap_err().is_cancelled());
    /// # }
    /// ```
    pub fn abort(&self) {
        self.target.abort();
    }

    /// Returns a handle that can only abort the task.
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::spawn(std::future::pending::<()>());
    /// let abort = task.abort_handle();
    /// // The task can still be awaited elsewhere.
    /// anello::spawn(async move { abort.abort() }).detach();
    /// assert!(task.await.unwrap_err().is_cancelled());
    /// # }
    /// ```
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { target: self.target.clone(), id: self.shared.id }
    }

    /// Returns whether the task has finished.
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::spawn(async { 42 });
    /// assert!(!task.is_finished(), "the task has not been polled yet");
    /// anello::task::yield_now().await;
    /// assert!(task.is_finished());
    /// # }
    /// ```
    pub fn is_finished(&self) -> bool {
        self.shared.is_finished()
    }

    /// Returns the id of the task.
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::spawn(async { anello::task::id() });
    /// let id = task.id();
    /// assert_eq!(task.await?, id);
    /// # }
    /// ```
    pub fn id(&self) -> Id {
        self.shared.id
    }

    /// Registers a waker in place of the one of the last poll. Returns `false` if the result is available.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        self.shared.wait(waker)
    }

    /// Returns the result, or a cancellation error if it is not available.
    pub(crate) fn take(self) -> Result<T, JoinError> {
        self.shared.take()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.poll(context)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, is_finished) = (self.id(), self.is_finished());
        formatter.debug_struct("JoinHandle").field("id", &id).field("is_finished", &is_finished).finish()
    }
}

/// A handle that aborts a task but does not return its result. Can be cloned and sent to other threads.
///
/// Dropping it has no effect on the task. It keeps the memory of the task, but not its future.
///
/// ```
/// # anello::example! {
/// let task = anello::spawn(std::future::pending::<()>());
/// let abort = task.abort_handle();
/// assert_eq!(abort.id(), task.id());
/// std::thread::spawn(move || abort.abort());
/// assert!(task.await.unwrap_err().is_cancelled());
/// # }
/// ```
#[derive(Clone)]
pub struct AbortHandle {
    target: Target,
    id: Id,
}

impl AbortHandle {
    /// Cancels the task, like [`JoinHandle::abort`].
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::spawn(std::future::pending::<()>());
    /// let abort = task.abort_handle();
    /// // On any thread.
    /// std::thread::spawn(move || abort.abort());
    /// assert!(task.await.unwrap_err().is_cancelled());
    /// # }
    /// ```
    pub fn abort(&self) {
        self.target.abort();
    }

    /// Returns whether the task has finished. On a thread other than that of the task, this may still be `false` for a
    /// moment after the [`JoinHandle`] has returned the result.
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::spawn(async { 42 });
    /// let abort = task.abort_handle();
    /// assert!(!abort.is_finished());
    /// assert_eq!(task.await?, 42);
    /// assert!(abort.is_finished());
    /// # }
    /// ```
    pub fn is_finished(&self) -> bool {
        match &self.target {
            Target::Task(task) => task.is_done(),
            Target::Blocking(work) => work.is_finished(),
        }
    }

    /// Returns the id of the task.
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::spawn(async {});
    /// assert_eq!(task.abort_handle().id(), task.id());
    /// # }
    /// ```
    pub fn id(&self) -> Id {
        self.id
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AbortHandle").field("id", &self.id).finish()
    }
}

type SharedJoin<T> = Option<Arc<Join<T>>>;

/// Stores the result of a task: the output of its future, a panic or a cancellation.
///
/// The future is the first field, so that it starts in the same cache line as the task's header.
#[repr(C)]
struct JoinFuture<F: Future> {
    /// `None` once the future has completed.
    future: Option<F>,
    /// `None` after a poll that has found the task detached: the task then occupies no memory for its result.
    shared: SharedJoin<F::Output>,
}

impl<F: Future> JoinFuture<F> {
    fn parts(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &mut SharedJoin<F::Output>) {
        // SAFETY: `future` is structurally pinned: it is never moved out and is only dropped in place, by `set(None)`.
        // `shared` is not pinned.
        unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.shared)
        }
    }
}

impl<F: Future> Future for JoinFuture<F> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (mut future, shared) = self.parts();
        let polled = catch_unwind(AssertUnwindSafe(|| match future.as_mut().as_pin_mut() {
            Some(future) => future.poll(context).map(Some),
            None => Poll::Ready(None),
        }));
        let result = match polled {
            Ok(Poll::Pending) => {
                // Only the task has a reference, so its result cannot be taken any more.
                if shared.as_ref().is_some_and(|shared| Arc::strong_count(shared) == 1) {
                    release(shared);
                }
                return Poll::Pending;
            }
            Ok(Poll::Ready(Some(output))) => Ok(output),
            Ok(Poll::Ready(None)) => Err(None),
            Err(panic) => Err(Some(rethrow_broken_invariant(panic))),
        };
        complete(future, shared, result);
        Poll::Ready(())
    }
}

impl<F: Future> Abort for JoinFuture<F> {
    fn abort(self: Pin<&mut Self>) {
        let (future, shared) = self.parts();
        complete(future, shared, Err(None));
    }
}

/// Frees the shared state of a detached task. It may contain the last waker of the handle.
#[cold]
fn release<T>(shared: &mut SharedJoin<T>) {
    let shared = shared.take();
    catch_and_log_panic("waker of a join handle panicked while being dropped", || drop(shared));
}

/// Drops the future and then stores the result: the output, the payload of a panic, or `None` after a cancellation. A
/// panic in the future's destructor replaces the result.
fn complete<F: Future>(
    mut future: Pin<&mut Option<F>>,
    shared: &mut SharedJoin<F::Output>,
    mut result: Result<F::Output, Option<Box<dyn Any + Send>>>,
) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| future.set(None))) {
        let replaced = std::mem::replace(&mut result, Err(Some(panic)));
        catch_and_log_panic("result of a task panicked while being dropped", || drop(replaced));
    }
    let Some(shared) = shared else {
        return catch_and_log_panic("result of a task panicked while being dropped", || drop(result));
    };
    shared.complete(result.map_err(|panic| match panic {
        Some(panic) => JoinError::panicked(shared.id, panic),
        None => JoinError::cancelled(shared.id),
    }));
}

impl<F: Future> Drop for JoinFuture<F> {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.complete(Err(JoinError::cancelled(shared.id)));
        }
    }
}
