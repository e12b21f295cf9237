//! Waiting for a task: its result, its panic, its end.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::task::{Abort, abort};
use crate::driver::{catch_and_log_panic, wake_all};

/// Waits for the result of a spawned task.
///
/// Dropping the handle lets the task run on by itself; [`abort`](Self::abort) ends it. Awaiting is cancel-safe: a
/// handle that was polled and not ready can be awaited again.
#[must_use = "dropping the handle detaches the task: say so with `.detach()`"]
pub struct JoinHandle<T> {
    shared: Arc<Join<T>>,
    task: Waker,
}

/// What a task and its handle share.
pub(super) struct Join<T> {
    state: Mutex<State<T>>,
}

enum State<T> {
    Running(Option<Waker>),
    Finished(Result<T, JoinError>),
    Taken,
}

impl<T> Join<T> {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Running(None)) })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code of the program runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result, once it is there; before, `context` is woken when it comes.
    pub fn poll(&self, context: &Context<'_>) -> Poll<Result<T, JoinError>> {
        // Cloning and dropping a waker may run any code.
        let clone = context.waker().clone();
        let mut state = self.lock();
        if let State::Running(waker) = &mut *state {
            let before = waker.replace(clone);
            drop(state);
            drop(before);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Finished(result) => Poll::Ready(result),
            State::Running(_) | State::Taken => Poll::Ready(Err(JoinError(None))),
        }
    }

    /// Leaves the result, once.
    pub fn end(&self, result: Result<T, JoinError>) {
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
    pub(super) fn new(shared: Arc<Join<T>>, task: Waker) -> Self {
        Self { shared, task }
    }

    /// Lets the task run on by itself. A panic in it is then reported to nobody.
    pub fn detach(self) {}

    /// Ends the task: its future is dropped by its worker instead of being polled again. Does nothing to a task that
    /// has ended.
    pub fn abort(&self) {
        abort(&self.task);
    }

    /// Whether the task has ended.
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

/// Why a task has no result: it panicked, or it was aborted, or its runtime was dropped before it was done.
pub struct JoinError(pub(super) Option<Box<dyn Any + Send>>);

impl JoinError {
    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        self.0.is_some()
    }

    /// What the task panicked with, to be resumed by `std::panic::resume_unwind`; `None` when it was cancelled.
    pub fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.0
    }

    fn message(&self) -> Option<&str> {
        let panic = self.0.as_ref()?;
        let text = panic.downcast_ref::<&str>().copied();
        text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.message()) {
            (Some(_), Some(message)) => write!(formatter, "the task panicked: {message}"),
            (Some(_), None) => formatter.write_str("the task panicked"),
            (None, _) => {
                formatter.write_str("the task was cancelled: its runtime was dropped or it was aborted")
            }
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

/// The future of a task as the executor polls it: a panic becomes its result, and so does being dropped.
///
/// The future comes first: it begins in the cache line of the task's header.
#[repr(C)]
pub(super) struct JoinFuture<F: Future> {
    /// `None` once it has ended.
    future: Option<F>,
    shared: Arc<Join<F::Output>>,
}

impl<F: Future> JoinFuture<F> {
    pub fn new(future: F, shared: Arc<Join<F::Output>>) -> Self {
        Self { future: Some(future), shared }
    }

    fn parts(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &Join<F::Output>) {
        // SAFETY: `future` is pinned with `self`: it is never moved out, only dropped in place by `set(None)`; `shared`
        // is not pinned.
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
        end(future, shared, result);
        Poll::Ready(())
    }
}

impl<F: Future> Abort for JoinFuture<F> {
    fn abort(self: Pin<&mut Self>) {
        let (future, shared) = self.parts();
        end(future, shared, Err(JoinError(None)));
    }
}

/// Drops what the future owns, where a panic in it is still the task's own, and leaves the result.
fn end<F: Future>(
    mut future: Pin<&mut Option<F>>,
    shared: &Join<F::Output>,
    mut result: Result<F::Output, JoinError>,
) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| future.set(None))) {
        let replaced = std::mem::replace(&mut result, Err(JoinError(Some(panic))));
        catch_and_log_panic("the result of a task panicked while it was dropped", || drop(replaced));
    }
    shared.end(result);
}

impl<F: Future> Drop for JoinFuture<F> {
    fn drop(&mut self) {
        self.shared.end(Err(JoinError(None)));
    }
}
