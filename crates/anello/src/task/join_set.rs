//! Sets of tasks.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::executor::{
    AbortHandle, Builder as TaskBuilder, Handle, Id, JoinError, JoinHandle, poll_cooperatively, spawn,
    spawn_blocking,
};

/// A set of tasks whose results are returned in the order in which the tasks finish.
///
/// All tasks have the same result type. Dropping the set aborts its tasks. As everywhere in this crate, tasks and their
/// results need not be `Send`, except for [`spawn_on`](Self::spawn_on).
///
/// ```
/// # anello::example! {
/// use anello::task::JoinSet;
///
/// let mut set = JoinSet::new();
/// for number in 0..10 {
///     set.spawn(async move { number * number });
/// }
/// let mut sum = 0;
/// while let Some(result) = set.join_next().await {
///     sum += result?;
/// }
/// assert_eq!(sum, 285);
/// # }
/// ```
pub struct JoinSet<T> {
    /// Tasks whose result has not been returned. Ordered, so that a simulation is deterministic.
    tasks: BTreeMap<Id, JoinHandle<T>>,
    finished: Arc<Finished>,
}

/// The finished tasks of a set. Tasks on other workers add themselves too.
#[derive(Default)]
struct Finished {
    state: Mutex<FinishedState>,
}

#[derive(Default)]
struct FinishedState {
    ids: VecDeque<Id>,
    /// The task that waits for the next result.
    waker: Option<Waker>,
}

/// Waker that a task of a set calls when it has finished.
struct FinishWaker {
    id: Id,
    finished: Arc<Finished>,
}

impl Finished {
    fn lock(&self) -> MutexGuard<'_, FinishedState> {
        // No application code runs while the lock is held, so a panic cannot poison it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, id: Id) {
        let mut state = self.lock();
        state.ids.push_back(id);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Wake for FinishWaker {
    fn wake(self: Arc<Self>) {
        self.finished.push(self.id);
    }
}

impl<T> JoinSet<T> {
    /// Creates an empty set.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(async { 42 });
    /// assert_eq!(set.join_all().await, [42]);
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { tasks: BTreeMap::new(), finished: Arc::default() }
    }

    /// Returns the number of tasks whose result has not been returned, including finished ones.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(async {});
    /// set.spawn(async {});
    /// assert_eq!(set.len(), 2);
    /// set.join_next().await;
    /// assert_eq!(set.len(), 1);
    /// # }
    /// ```
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns whether the results of all tasks have been returned.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(async {});
    /// assert!(!set.is_empty());
    /// set.join_next().await;
    /// assert!(set.is_empty());
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Spawns a future on the current thread's runtime and adds the task to the set. The returned handle can abort it.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// let abort = set.spawn(std::future::pending::<()>());
    /// abort.abort();
    /// let error = set.join_next().await.expect("the set has a task").unwrap_err();
    /// assert!(error.is_cancelled() && error.id() == abort.id());
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread and none has been entered.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        self.insert(spawn(future))
    }

    /// Spawns a future on the thread of another runtime and adds the task to the set.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn_on(async { 42 }, &anello::Handle::current());
    /// assert_eq!(set.join_next().await.and_then(Result::ok), Some(42));
    /// # }
    /// ```
    #[track_caller]
    pub fn spawn_on<F>(&mut self, future: F, handle: &Handle) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.insert(handle.spawn(future))
    }

    /// Runs a closure on the blocking thread pool and adds it to the set; see [`spawn_blocking`]. A closure that has
    /// started cannot be aborted.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// for limit in [10, 100] {
    ///     set.spawn_blocking(move || (1..=limit).sum::<u64>());
    /// }
    /// let mut sums = set.join_all().await;
    /// sums.sort();
    /// assert_eq!(sums, [55, 5050]);
    /// # }
    /// ```
    pub fn spawn_blocking(&mut self, work: impl FnOnce() -> T + Send + 'static) -> AbortHandle
    where
        T: Send + 'static,
    {
        self.insert(spawn_blocking(work))
    }

    /// Returns a builder that gives a task a name before it is spawned.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.build_task().name("answer").spawn(async { 42 })?;
    /// assert_eq!(set.join_all().await, [42]);
    /// # }
    /// ```
    pub fn build_task(&mut self) -> Builder<'_, T> {
        Builder { set: self, builder: TaskBuilder::new() }
    }

    fn insert(&mut self, task: JoinHandle<T>) -> AbortHandle {
        let (id, abort) = (task.id(), task.abort_handle());
        let finished = Arc::clone(&self.finished);
        if !task.wait(&Waker::from(Arc::new(FinishWaker { id, finished }))) {
            // For example, the runtime of the task has been dropped.
            self.finished.push(id);
        }
        self.tasks.insert(id, task);
        abort
    }

    /// Waits until a task has finished and returns its result, or `None` if the set is empty.
    ///
    /// Consumes one unit of the task's budget. Cancel-safe: no result is lost if the future is dropped.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// for number in [1, 2, 3] {
    ///     set.spawn(async move { number * number });
    /// }
    /// let mut sum = 0;
    /// while let Some(square) = set.join_next().await {
    ///     sum += square?;
    /// }
    /// assert_eq!(sum, 14);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the task panicked or was aborted.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|context| self.poll_join_next(context)).await
    }

    /// Waits until a task has finished and returns its id and result, or `None` if the set is empty. Cancel-safe.
    ///
    /// # Errors
    /// Returns a [`JoinError`], which contains the id, if the task panicked or was aborted.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// let id = set.spawn(async { 42 }).id();
    /// assert_eq!(set.join_next_with_id().await.and_then(Result::ok), Some((id, 42)));
    /// # }
    /// ```
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        poll_fn(|context| self.poll_join_next_with_id(context)).await
    }

    /// Polls for the next result; see [`join_next`](Self::join_next). If the result is `Pending`, the waker of `context`
    /// is called when a task finishes.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(async { 42 });
    /// let next = std::future::poll_fn(|context| set.poll_join_next(context)).await;
    /// assert_eq!(next.and_then(Result::ok), Some(42));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the task panicked or was aborted.
    pub fn poll_join_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        self.poll_join_next_with_id(context).map(|next| next.map(|result| result.map(|(_, output)| output)))
    }

    /// Polls for the next result and its id; see [`join_next_with_id`](Self::join_next_with_id).
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// let id = set.spawn(async { 42 }).id();
    /// let next = std::future::poll_fn(|context| set.poll_join_next_with_id(context)).await;
    /// assert_eq!(next.and_then(Result::ok), Some((id, 42)));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the task panicked or was aborted.
    pub fn poll_join_next_with_id(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(Id, T), JoinError>>> {
        if self.tasks.is_empty() {
            return Poll::Ready(None);
        }
        let poll = |context: &mut Context<'_>| match self.take_next(Some(context.waker())) {
            Some(next) => Poll::Ready(Some(next)),
            None => Poll::Pending,
        };
        poll_cooperatively(context, poll, |_| 0)
    }

    /// Returns the result of a task that has finished, or `None` if there is none, without waiting.
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the task panicked or was aborted.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(async { 42 });
    /// assert!(set.try_join_next().is_none());
    /// anello::yield_now().await;
    /// assert_eq!(set.try_join_next().and_then(Result::ok), Some(42));
    /// # }
    /// ```
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.try_join_next_with_id().map(|result| result.map(|(_, output)| output))
    }

    /// Returns the id and result of a task that has finished, or `None` if there is none, without waiting.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// let id = set.spawn(async { 42 }).id();
    /// assert!(set.try_join_next_with_id().is_none(), "the task has not been polled yet");
    /// anello::task::yield_now().await;
    /// assert_eq!(set.try_join_next_with_id().and_then(Result::ok), Some((id, 42)));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the task panicked or was aborted.
    pub fn try_join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        self.take_next(None)
    }

    /// Returns the next result. If there is none, registers the waker.
    fn take_next(&mut self, waker: Option<&Waker>) -> Option<Result<(Id, T), JoinError>> {
        // Cloning and dropping a waker can run arbitrary code, so neither happens while the lock is held.
        let mut clone = waker.cloned();
        loop {
            let mut state = self.finished.lock();
            let Some(id) = state.ids.pop_front() else {
                let replaced = clone.take().and_then(|clone| state.waker.replace(clone));
                drop(state);
                drop(replaced);
                return None;
            };
            drop(state);
            if let Some(task) = self.tasks.remove(&id) {
                return Some(task.take().map(|output| (id, output)));
            }
        }
    }

    /// Waits for all tasks and returns their results in the order in which they finished. The remaining tasks are
    /// aborted if the future is dropped.
    ///
    /// # Panics
    /// Panics if a task panicked, with its payload, or if a task was aborted. The remaining tasks are then aborted.
    ///
    /// ```
    /// # anello::example! {
    /// let set: anello::task::JoinSet<u32> = (0..3).map(|number| async move { number }).collect();
    /// assert_eq!(set.join_all().await, [0, 1, 2]);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Not cancel-safe: if the future is dropped, the remaining tasks are aborted, and all outputs are lost.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut outputs = Vec::with_capacity(self.len());
        while let Some(result) = self.join_next().await {
            match result.map_err(JoinError::try_into_panic) {
                Ok(output) => outputs.push(output),
                Err(Ok(payload)) => resume_unwind(payload),
                Err(Err(error)) => panic!("cannot join all tasks: {error}"),
            }
        }
        outputs
    }

    /// Aborts all tasks. Their results, including those of the aborted tasks, are still returned by
    /// [`join_next`](Self::join_next).
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(std::future::pending::<()>());
    /// set.spawn(std::future::pending::<()>());
    /// set.abort_all();
    /// while let Some(result) = set.join_next().await {
    ///     assert!(result.unwrap_err().is_cancelled());
    /// }
    /// # }
    /// ```
    pub fn abort_all(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }

    /// Aborts all tasks and waits until their futures have been dropped. Discards the results. If the future is dropped,
    /// the tasks have been aborted and stay in the set.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(std::future::pending::<()>());
    /// set.shutdown().await;
    /// assert!(set.is_empty());
    /// # }
    /// ```
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Removes all tasks from the set without aborting them.
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// set.spawn(async { /* Still runs. */ });
    /// set.detach_all();
    /// assert!(set.is_empty());
    /// # }
    /// ```
    pub fn detach_all(&mut self) {
        // The removed tasks add themselves to the previous list.
        self.finished = Arc::default();
        self.tasks.clear();
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JoinSet").field("len", &self.len()).finish()
    }
}

/// Spawns the futures on the current thread's runtime.
impl<T: 'static, F: Future<Output = T> + 'static> FromIterator<F> for JoinSet<T> {
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> Self {
        let mut set = Self::new();
        set.extend(futures);
        set
    }
}

/// Spawns the futures on the current thread's runtime.
impl<T: 'static, F: Future<Output = T> + 'static> Extend<F> for JoinSet<T> {
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.spawn(future);
        }
    }
}

/// Configures a task of a [`JoinSet`]; see [`JoinSet::build_task`].
///
/// ```
/// # anello::example! {
/// use anello::task::{JoinSet, dump};
///
/// let mut set = JoinSet::new();
/// set.build_task().name("answer").spawn(async { 42 })?;
/// assert_eq!(dump().tasks[0].name.as_deref(), Some("answer"));
/// assert_eq!(set.join_all().await, [42]);
/// # }
/// ```
#[derive(Debug)]
pub struct Builder<'a, T> {
    set: &'a mut JoinSet<T>,
    builder: TaskBuilder<'a>,
}

impl<'a, T: 'static> Builder<'a, T> {
    /// Sets the name of the task.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::task::{JoinSet, dump};
    ///
    /// let mut set = JoinSet::new();
    /// for name in ["one", "other"] {
    ///     set.build_task().name(name).spawn(std::future::pending::<()>())?;
    /// }
    /// let dump = dump();
    /// let mut names: Vec<_> = dump.tasks.iter().filter_map(|task| task.name.as_deref()).collect();
    /// names.sort();
    /// assert_eq!(names, ["one", "other"]);
    /// # async {}.await;
    /// # }
    /// ```
    #[must_use]
    pub fn name(self, name: &'a str) -> Self {
        Self { builder: self.builder.name(name), ..self }
    }

    /// Spawns a future on the current thread's runtime; see [`JoinSet::spawn`].
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// let abort = set.build_task().name("idle").spawn(std::future::pending::<()>())?;
    /// abort.abort();
    /// assert!(set.join_next().await.is_some_and(|result| result.is_err()));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Never fails. The result has the same type as in tokio.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread and none has been entered.
    #[track_caller]
    pub fn spawn<F: Future<Output = T> + 'static>(self, future: F) -> io::Result<AbortHandle> {
        Ok(self.set.insert(self.builder.spawn(future)?))
    }

    /// Spawns a future on the thread of another runtime; see [`JoinSet::spawn_on`].
    ///
    /// ```
    /// # anello::example! {
    /// let mut set = anello::task::JoinSet::new();
    /// let handle = anello::Handle::current();
    /// set.build_task().name("answer").spawn_on(async { 42 }, &handle)?;
    /// assert_eq!(set.join_all().await, [42]);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Never fails. The result has the same type as in tokio.
    #[track_caller]
    pub fn spawn_on<F>(self, future: F, handle: &Handle) -> io::Result<AbortHandle>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        Ok(self.set.insert(self.builder.spawn_on(future, handle)?))
    }
}
