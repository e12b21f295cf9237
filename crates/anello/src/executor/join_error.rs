//! The error of a task that returned no result.

use std::any::Any;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::task_info::Id;

/// The error of a task that returned no result, because it panicked or was aborted, because its runtime was dropped
/// before the task finished, or because the queue of the thread pool was full.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// let task = anello::spawn(std::future::pending::<()>());
/// task.abort();
/// let error = task.await.unwrap_err();
/// assert!(error.is_cancelled() && !error.is_panic());
///
/// let error = anello::spawn(async { panic!("on purpose") }).await.map(|()| ()).unwrap_err();
/// assert_eq!(error.to_string(), "task panicked: on purpose");
/// assert_eq!(error.into_panic().downcast_ref(), Some(&"on purpose"));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct JoinError {
    id: Id,
    /// `None` if the task was cancelled. The box keeps the error, and so every task, small.
    failure: Option<Box<Failure>>,
}

type Payload = Box<dyn Any + Send>;

enum Failure {
    /// The mutex makes the error `Sync`.
    Panic(Mutex<Payload>),
    /// The queue of the thread pool had this number of entries, its limit.
    QueueFull(usize),
}

impl JoinError {
    pub(super) fn cancelled(id: Id) -> Self {
        Self { id, failure: None }
    }

    pub(super) fn queue_full(id: Id, limit: usize) -> Self {
        Self { id, failure: Some(Box::new(Failure::QueueFull(limit))) }
    }

    pub(super) fn panicked(id: Id, payload: Payload) -> Self {
        Self { id, failure: Some(Box::new(Failure::Panic(Mutex::new(payload)))) }
    }

    /// Returns whether the task was cancelled: it was aborted, its runtime was dropped before it finished, or it was
    /// blocking work that did not start because the queue of the thread pool was full.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let task = anello::spawn(std::future::pending::<()>());
    /// task.abort();
    /// assert!(task.await.unwrap_err().is_cancelled());
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_cancelled(&self) -> bool {
        !self.is_panic()
    }

    /// Returns whether the task panicked.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let task = anello::spawn(async { assert_eq!(1, 2, "on purpose") });
    /// let error = task.await.unwrap_err();
    /// assert!(error.is_panic() && !error.is_cancelled());
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_panic(&self) -> bool {
        matches!(self.failure.as_deref(), Some(Failure::Panic(_)))
    }

    /// Returns the panic payload, for use with `std::panic::resume_unwind`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let task = anello::spawn(async { assert!(false, "on purpose") });
    /// let payload = task.await.unwrap_err().into_panic();
    /// assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if the task did not panic. [`try_into_panic`](Self::try_into_panic) returns an error instead.
    #[track_caller]
    pub fn into_panic(self) -> Box<dyn Any + Send + 'static> {
        match self.try_into_panic() {
            Ok(payload) => payload,
            Err(error) => panic!("cannot return panic payload: {error} (check is_panic first)"),
        }
    }

    /// Returns the panic payload, for use with `std::panic::resume_unwind`.
    ///
    /// # Errors
    /// Returns the unchanged error if the task did not panic.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let task = anello::spawn(async { panic!("on purpose") });
    /// let result: Result<(), _> = task.await;
    /// let panicked = result.is_err_and(|error| error.try_into_panic().is_ok());
    /// assert!(panicked);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send + 'static>, Self> {
        match self.failure.map(|failure| *failure) {
            Some(Failure::Panic(payload)) => Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner)),
            Some(failure) => Err(Self { id: self.id, failure: Some(Box::new(failure)) }),
            None => Err(Self { id: self.id, failure: None }),
        }
    }

    /// Returns the id of the task.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let task = anello::spawn(std::future::pending::<()>());
    /// let id = task.id();
    /// task.abort();
    /// assert_eq!(task.await.unwrap_err().id(), id);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn id(&self) -> Id {
        self.id
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let panic = match self.failure.as_deref() {
            Some(Failure::Panic(panic)) => panic,
            Some(Failure::QueueFull(limit)) => {
                return write!(
                    formatter,
                    "cannot queue blocking work: {limit} closures are waiting for a thread (limit the number of \
                     concurrent calls, for example with a semaphore)"
                );
            }
            None => return formatter.write_str("task cancelled: it was aborted or its runtime was dropped"),
        };
        let payload = panic.lock().unwrap_or_else(PoisonError::into_inner);
        match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
            (Some(message), _) => write!(formatter, "task panicked: {message}"),
            (None, Some(message)) => write!(formatter, "task panicked: {message}"),
            (None, None) => formatter.write_str("task panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "JoinError({}: {self})", self.id)
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> Self {
        Self::other(error.to_string())
    }
}
