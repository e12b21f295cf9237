//! A task: a future that the worker polls until it is done, and the handle that waits for its result.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use async_task::FallibleTask;

use super::context::{self, Membership};

/// What a task leaves behind: its output, or what it panicked with.
pub(super) type Outcome<T> = Result<T, Box<dyn Any + Send>>;

/// Waits for the result of a spawned task.
///
/// Dropping the handle lets the task run on by itself; [`abort`](Self::abort) ends it. Awaiting is cancel-safe: a
/// handle that was polled and not ready can be awaited again.
#[must_use = "dropping the handle detaches the task: say so with `.detach()`"]
pub struct JoinHandle<T> {
    task: Option<FallibleTask<Outcome<T>>>,
}

impl<T> JoinHandle<T> {
    pub(super) fn new(task: FallibleTask<Outcome<T>>) -> Self {
        Self { task: Some(task) }
    }

    /// Lets the task run on by itself. A panic in it is then reported to nobody.
    pub fn detach(self) {}

    /// Ends the task at its next await point: its future is dropped by its worker.
    pub fn abort(mut self) {
        drop(self.task.take());
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(FallibleTask::is_finished)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = self.task.as_mut() else { return Poll::Ready(Err(JoinError(None))) };
        Pin::new(task).poll(context).map(|outcome| match outcome {
            Some(Ok(output)) => Ok(output),
            Some(Err(panic)) => Err(JoinError(Some(panic))),
            None => Err(JoinError(None)),
        })
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// Why a task has no result: it panicked, or its runtime was dropped before it was done.
pub struct JoinError(Option<Box<dyn Any + Send>>);

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
            (None, _) => formatter.write_str("the task was cancelled: its runtime was dropped or it was aborted"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

/// The future of a task as the executor polls it: a panic becomes its outcome, and the runtime knows of it, so that it
/// can be dropped with the runtime.
pub(super) struct Supervised<F> {
    future: Option<F>,
    membership: Option<Membership>,
}

impl<F> Supervised<F> {
    pub fn new(future: F) -> Self {
        Self { future: Some(future), membership: None }
    }
}

impl<F: Future> Future for Supervised<F> {
    type Output = Outcome<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `future` is pinned with `self`: it is never moved out, only dropped in place by `set(None)`;
        // `membership` is not pinned.
        let this = unsafe { self.get_unchecked_mut() };
        if this.membership.is_none() {
            this.membership = context::join(context.waker());
        }
        // SAFETY: as above.
        let mut future = unsafe { Pin::new_unchecked(&mut this.future) };
        let polled = catch_unwind(AssertUnwindSafe(|| match future.as_mut().as_pin_mut() {
            Some(future) => future.poll(context),
            None => Poll::Pending,
        }));
        let mut outcome = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        // What the future owns is dropped here, where a panic in it is still the task's own.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| future.set(None))) {
            outcome = Err(panic);
        }
        this.membership = None;
        Poll::Ready(outcome)
    }
}
