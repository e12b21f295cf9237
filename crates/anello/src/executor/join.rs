//! Join handles and task results.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::task::{Abort, Owner, Task, TaskHandle};
use crate::driver::{catch_and_log_panic, wake_all};

/// A handle to a spawned task, and a future that returns its result.
///
/// Dropping the handle detaches the task, which continues to run. [`abort`](Self::abort) cancels it. Awaiting
/// `&mut handle` is cancel-safe: the handle can be awaited again.
///
/// # Errors
/// The future returns a [`JoinError`] if the task panicked or was cancelled.
#[must_use = "dropping the handle detaches the task; call `.detach()` if this is intended"]
pub struct JoinHandle<T> {
    shared: Arc<Join<T>>,
    task: TaskHandle,
}

/// State shared between a task and its handle.
pub(super) struct Join<T>(Mutex<State<T>>);

enum State<T> {
    Running(Option<Waker>),
    Finished(Result<T, JoinError>),
    Taken,
}

impl<T> Join<T> {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Running(None))))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No application code runs while the lock is held, so a panic cannot poison it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result once it is available. Until then, registers the waker of `context`.
    pub fn poll(&self, context: &Context<'_>) -> Poll<Result<T, JoinError>> {
        // Cloning and dropping a waker can run arbitrary code, so neither happens while the lock is held.
        let clone = context.waker().clone();
        let mut state = self.lock();
        if let State::Running(waker) = &mut *state {
            let replaced = waker.replace(clone);
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Finished(result) => Poll::Ready(result),
            State::Running(_) | State::Taken => Poll::Ready(Err(JoinError(None))),
        }
    }

    /// Stores the result and wakes the waiting task. Only the first call has an effect.
    pub fn complete(&self, result: Result<T, JoinError>) {
        let mut state = self.lock();
        if let State::Running(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Finished(result);
            drop(state);
            wake_all(waker);
        }
    }
}

impl<T> JoinHandle<T> {
    pub(super) fn new_task<F: Future<Output = T>, O: Owner>(future: F, owner: Arc<O>) -> (Task<O>, Self) {
        let shared = Join::new();
        let task = Task::new(JoinFuture { future: Some(future), shared: Arc::clone(&shared) }, owner);
        let handle = Self { shared, task: task.handle() };
        (task, handle)
    }

    /// Detaches the task, which continues to run. If the task panics afterwards, the panic is not reported.
    pub fn detach(self) {}

    /// Cancels the task: its worker drops the future instead of polling it again. Does nothing if the task has
    /// finished.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Returns whether the task has finished.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.shared.lock(), State::Running(_))
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
        formatter.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// The error of a task that returned no result, because it panicked or was aborted, or because its runtime was dropped
/// before the task finished.
pub struct JoinError(pub(super) Option<Box<dyn Any + Send>>);

impl JoinError {
    /// Returns whether the task panicked.
    pub fn is_panic(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the panic payload, for use with `std::panic::resume_unwind`, or `None` if the task was cancelled.
    pub fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.0
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(panic) = &self.0 else {
            return formatter.write_str("task cancelled: it was aborted or its runtime was dropped");
        };
        match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
            (Some(message), _) => write!(formatter, "task panicked: {message}"),
            (None, Some(message)) => write!(formatter, "task panicked: {message}"),
            (None, None) => formatter.write_str("task panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

/// Stores the result of a task: the output of its future, a panic or a cancellation.
///
/// The future is the first field, so that it starts in the same cache line as the task's header.
#[repr(C)]
struct JoinFuture<F: Future> {
    /// `None` once the future has completed.
    future: Option<F>,
    shared: Arc<Join<F::Output>>,
}

impl<F: Future> JoinFuture<F> {
    fn parts(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &Join<F::Output>) {
        // SAFETY: `future` is structurally pinned: it is never moved out and is only dropped in place, by `set(None)`.
        // `shared` is not pinned.
        unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &this.shared)
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
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Some(output))) => Ok(output),
            Ok(Poll::Ready(None)) => Err(JoinError(None)),
            Err(panic) => Err(JoinError(Some(panic))),
        };
        complete(future, shared, result);
        Poll::Ready(())
    }
}

impl<F: Future> Abort for JoinFuture<F> {
    fn abort(self: Pin<&mut Self>) {
        let (future, shared) = self.parts();
        complete(future, shared, Err(JoinError(None)));
    }
}

/// Drops the future and then stores the result. A panic in the future's destructor replaces the result.
fn complete<F: Future>(
    mut future: Pin<&mut Option<F>>,
    shared: &Join<F::Output>,
    mut result: Result<F::Output, JoinError>,
) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| future.set(None))) {
        let replaced = std::mem::replace(&mut result, Err(JoinError(Some(panic))));
        catch_and_log_panic("result of a task panicked while being dropped", || drop(replaced));
    }
    shared.complete(result);
}

impl<F: Future> Drop for JoinFuture<F> {
    fn drop(&mut self) {
        self.shared.complete(Err(JoinError(None)));
    }
}
