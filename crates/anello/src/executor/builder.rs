//! Spawning of tasks with a name.

use std::future::Future;
use std::io;

use super::handle::Handle;
use super::join::JoinHandle;
use super::runtime::Runtime;
use super::schedule::spawn_with_info;
use super::task_info::Info;
use crate::driver::{LogSpan, log_span};

/// Configures a task before it is spawned.
///
/// The name appears in [`task::dump`](crate::task::dump) and in the warnings about slow polls. It costs one allocation.
/// If the subscriber of `tracing` is interested in debugging spans, a named task runs in a span `task` with its name, which
/// costs another allocation.
///
/// ```
/// # anello::example! {
/// let task = anello::task::Builder::new().name("answer").spawn(async { 42 })?;
/// assert_eq!(task.await.ok(), Some(42));
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Builder<'a> {
    name: Option<&'a str>,
}

impl<'a> Builder<'a> {
    /// Creates a builder for a task without a name.
    ///
    /// ```
    /// # anello::example! {
    /// let task = anello::task::Builder::new().spawn(async { 42 })?;
    /// assert_eq!(task.await?, 42);
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the task.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::task::{Builder, dump};
    ///
    /// let _task = Builder::new().name("idle").spawn(std::future::pending::<()>())?;
    /// assert_eq!(dump().tasks[0].name.as_deref(), Some("idle"));
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self, name: &'a str) -> Self {
        Self { name: Some(name) }
    }

    /// Spawns a future on the current thread's runtime; see [`spawn`](crate::spawn()).
    ///
    /// ```
    /// # anello::example! {
    /// let shared = std::rc::Rc::new(42);
    /// let task = anello::task::Builder::new().name("answer").spawn(async move { *shared })?;
    /// assert_eq!(task.await?, 42);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Never fails. The result has the same type as in tokio.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread and none has been entered.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let info = Info::new(self.name);
        Ok(match span(&info) {
            Some(span) => spawn_with_info(span.instrument(future), info),
            None => spawn_with_info(future, info),
        })
    }

    /// Spawns a future on the thread of another runtime; see [`Handle::spawn`].
    ///
    /// ```
    /// use anello::task::Builder;
    ///
    /// let runtime = anello::Runtime::new()?;
    /// let handle = runtime.handle();
    /// let thread = std::thread::spawn(move || Builder::new().name("answer").spawn_on(async { 42 }, &handle));
    /// let task = thread.join().expect("the thread does not panic")?;
    /// assert_eq!(runtime.block_on(task)?, 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Never fails. The result has the same type as in tokio.
    #[track_caller]
    pub fn spawn_on<F>(self, future: F, handle: &Handle) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let info = Info::new(self.name);
        Ok(match span(&info) {
            Some(span) => handle.spawn_with_info(span.instrument(future), info),
            None => handle.spawn_with_info(future, info),
        })
    }

    /// Spawns a future on a runtime of this thread; see [`Runtime::spawn`].
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let shared = std::rc::Rc::new(42);
    /// let task = anello::task::Builder::new().name("answer").spawn_local_on(async move { *shared }, &runtime)?;
    /// assert_eq!(runtime.block_on(task)?, 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Never fails. The result has the same type as in tokio.
    #[track_caller]
    pub fn spawn_local_on<F>(self, future: F, runtime: &Runtime) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let info = Info::new(self.name);
        Ok(match span(&info) {
            Some(span) => runtime.shared.spawn_with_info(span.instrument(future), info),
            None => runtime.shared.spawn_with_info(future, info),
        })
    }
}

/// Returns the span of a named task, or `None` if the subscriber is not interested. It has no parent, because a task can
/// outlive the span in which it was spawned.
fn span(info: &Info) -> Option<LogSpan> {
    let name = info.name()?;
    let span = log_span!(parent: None, "task", name, id = %info.id, spawned_at = %info.location);
    (!span.is_none()).then_some(span)
}
