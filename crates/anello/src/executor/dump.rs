//! The identity of the running task, and lists of all tasks of a runtime.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use super::blocking::blocking_id;
use super::context::{Shared, with_current};
use super::handle::Handle;
use super::join_error::JoinError;
use super::task_info::Id;
use super::watchdog::{Blocked, BlockedPoll};

/// Returns the id of the task, or of the closure passed to [`spawn_blocking`](crate::spawn_blocking), that is running on
/// this thread.
///
/// It is also available in the destructors of the task's future. The future passed to
/// [`Runtime::block_on`](crate::Runtime::block_on) is not a task.
///
/// # Panics
/// Panics outside of a task or closure. [`try_id`] returns `None` instead.
///
/// ```
/// # anello::example! {
/// let task = anello::spawn(async { anello::task::id() });
/// let id = task.id();
/// assert_eq!(task.await.ok(), Some(id));
/// # }
/// ```
#[track_caller]
pub fn id() -> Id {
    match try_id() {
        Some(id) => id,
        None => panic!("no task is running on this thread (the future passed to block_on is not a task)"),
    }
}

/// Returns the id of the task or blocking closure that is running on this thread, or `None` outside of them. See [`id`].
///
/// ```
/// assert_eq!(anello::task::try_id(), None);
/// # anello::example! {
/// assert!(anello::spawn(async { anello::task::try_id() }).await.is_ok_and(|id| id.is_some()));
/// # }
/// ```
pub fn try_id() -> Option<Id> {
    with_current(|shared| shared.running_task().map(|task| task.info().id)).flatten().or_else(blocking_id)
}

/// The tasks of a runtime at one moment, as returned by [`task::dump`](crate::task::dump) and
/// [`Handle::dump`](crate::Handle::dump), ordered by id.
///
/// Its `Display` form has one line per task, and the backtrace of a blocked worker.
///
/// ```
/// # anello::example! {
/// use anello::task::{Builder, dump};
///
/// let _task = Builder::new().name("idle").spawn(std::future::pending::<()>())?;
/// let dump = dump();
/// assert_eq!(dump.tasks.len(), 1);
/// assert!(dump.to_string().contains("idle"));
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The tasks. The future passed to `block_on` is not included.
    pub tasks: Vec<TaskDump>,
    /// The poll that blocks the worker, if it has not responded to [`Handle::dump`](crate::Handle::dump). `tasks` then
    /// contains only the task that is being polled.
    pub blocked: Option<BlockedPoll>,
}

/// A task in a [`Dump`].
///
/// ```
/// # anello::example! {
/// use anello::task::{Builder, TaskState, dump};
///
/// let task = Builder::new().name("idle").spawn(std::future::pending::<()>())?;
/// anello::task::yield_now().await;
/// let found = &dump().tasks[0];
/// assert_eq!((found.id, found.name.as_deref()), (task.id(), Some("idle")));
/// assert_eq!(found.state, TaskState::Waiting);
/// println!("spawned at {}", found.location);
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskDump {
    /// Id of the task.
    pub id: Id,
    /// Name, if the task was spawned by [`task::Builder`](crate::task::Builder).
    pub name: Option<String>,
    /// Source location of the call that spawned the task.
    pub location: &'static Location<'static>,
    /// Whether the task is running, ready or waiting.
    pub state: TaskState,
    /// Number of polls so far. 0 unless polls are measured; see
    /// [`RuntimeBuilder::measure_polls`](crate::RuntimeBuilder::measure_polls).
    pub polls: u64,
    /// Duration of the longest poll so far, or `None` unless polls are measured.
    pub longest_poll: Option<Duration>,
}

/// State of a task in a [`Dump`].
///
/// ```
/// # anello::example! {
/// use anello::task::{TaskState, dump, yield_now};
///
/// anello::spawn(std::future::pending::<()>()).detach();
/// assert_eq!(dump().tasks[0].state, TaskState::Ready);
/// yield_now().await;
/// assert_eq!(dump().tasks[0].state, TaskState::Waiting);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskState {
    /// The task is being polled: it has requested the dump, or it blocks its worker ([`Dump::blocked`]).
    Running,
    /// The task has been woken and will be polled.
    Ready,
    /// The task waits for a socket, a timer or another event.
    Waiting,
}

/// Returns the tasks of the current runtime. Takes time proportional to their number.
///
/// Spawning a task costs a few instructions for its id and location. Polls cost nothing, unless
/// [`RuntimeBuilder::measure_polls`](crate::RuntimeBuilder::measure_polls) or
/// [`slow_poll_threshold`](crate::RuntimeBuilder::slow_poll_threshold) is set.
///
/// # Panics
/// Panics if no runtime is running on this thread and none has been entered.
///
/// ```
/// # anello::example! {
/// use anello::task::{Builder, TaskState, dump};
///
/// let task = Builder::new().name("waits").spawn(std::future::pending::<()>())?;
/// anello::yield_now().await;
/// let dump = dump();
/// assert_eq!(dump.tasks[0].id, task.id());
/// assert_eq!(dump.tasks[0].name.as_deref(), Some("waits"));
/// assert_eq!(dump.tasks[0].state, TaskState::Waiting);
/// println!("{dump}"); // task 1 "waits": waiting, spawned at src/main.rs:5:45
/// # }
/// ```
#[track_caller]
pub fn dump() -> Dump {
    match with_current(Shared::dump) {
        Some(dump) => dump,
        None => panic!("no anello runtime on this thread (use Handle::dump on other threads)"),
    }
}

impl Handle {
    /// Returns the tasks of this runtime, except the one that it spawns to create the list. Any thread can await the
    /// result.
    ///
    /// The worker responds between two polls. If a poll does not return,
    ///
    /// - with [`RuntimeBuilder::blocked_poll_threshold`](crate::RuntimeBuilder::blocked_poll_threshold), the result
    ///   describes the blocked poll instead, once it has lasted as long as the threshold, or up to 1 second longer if
    ///   the worker does not respond to a signal either;
    /// - without it, the call waits until the poll returns. Use [`timeout`](crate::time::timeout) on another worker to
    ///   bound it.
    ///
    /// The request is sent before the future is polled. Call it for all workers before awaiting the first result, so
    /// that a blocked worker does not delay the others.
    ///
    /// # Errors
    /// The returned future resolves to a [`JoinError`](crate::JoinError) if the runtime has been dropped.
    ///
    /// ```
    /// # anello::example! {
    /// let handle = anello::Handle::current(); // Usually sent to another thread.
    /// let task = anello::spawn(std::future::pending::<()>());
    /// let dump = handle.dump().await?;
    /// assert_eq!((dump.tasks.len(), dump.tasks[0].id), (1, task.id()));
    /// # }
    /// ```
    pub fn dump(&self) -> impl Future<Output = Result<Dump, JoinError>> + Send + use<> {
        let mut response = self.spawn(async {
            let (own, mut dump) = (try_id(), dump());
            dump.tasks.retain(|task| Some(task.id) != own);
            dump
        });
        let mut blocked = self.inbox.watched.as_ref().map(|worker| worker.when_blocked());
        poll_fn(move |context| {
            if let Poll::Ready(dump) = Pin::new(&mut response).poll(context) {
                return Poll::Ready(dump);
            }
            match blocked.as_mut().map(|blocked| Pin::new(blocked).poll(context)) {
                Some(Poll::Ready(Ok(poll))) => Poll::Ready(Ok(Dump::of_blocked(poll))),
                // Nothing reports blocked polls in a forked child process.
                Some(Poll::Ready(Err(_))) => {
                    blocked = None;
                    Poll::Pending
                }
                Some(Poll::Pending) | None => Poll::Pending,
            }
        })
    }
}

impl Dump {
    fn of_blocked((blocked, task): Blocked) -> Self {
        let tasks = task.map(|task| TaskDump {
            id: task.id,
            name: task.name.as_deref().map(str::to_owned),
            location: task.location,
            state: TaskState::Running,
            polls: 0,
            longest_poll: None,
        });
        Self { tasks: tasks.into_iter().collect(), blocked: Some(blocked) }
    }
}

impl Shared {
    fn dump(&self) -> Dump {
        let running = self.running_task().map(|task| task.info().id);
        let mut tasks = Vec::with_capacity(self.task_count());
        self.for_each_task(|task| {
            if task.is_done() {
                return;
            }
            let info = task.info();
            let state = if Some(info.id) == running {
                TaskState::Running
            } else if task.is_scheduled() {
                TaskState::Ready
            } else {
                TaskState::Waiting
            };
            let measured = info.details().filter(|details| details.polls.get() > 0);
            tasks.push(TaskDump {
                id: info.id,
                name: info.name().map(str::to_owned),
                location: info.location,
                state,
                polls: measured.map_or(0, |details| details.polls.get()),
                longest_poll: measured.map(|details| Duration::from_nanos(details.longest_poll_ns.get())),
            });
        });
        tasks.sort_unstable_by_key(|task| task.id);
        Dump { tasks, blocked: None }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.blocked.iter().try_for_each(|poll| writeln!(formatter, "{poll}"))?;
        self.tasks.iter().try_for_each(|task| writeln!(formatter, "{task}"))?;
        self.blocked.iter().try_for_each(|poll| writeln!(formatter, "{}", poll.backtrace.trim_end()))
    }
}

impl fmt::Display for TaskDump {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "task {}", self.id)?;
        if let Some(name) = &self.name {
            write!(formatter, " {name:?}")?;
        }
        let state = match self.state {
            TaskState::Running => "running",
            TaskState::Ready => "ready",
            TaskState::Waiting => "waiting",
        };
        write!(formatter, ": {state}, spawned at {}", self.location)?;
        if let Some(longest) = self.longest_poll {
            write!(formatter, ", {} polls, longest {longest:?}", self.polls)?;
        }
        Ok(())
    }
}
