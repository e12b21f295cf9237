//! Counters of a worker: those of its driver, and those of its tasks and timers.

use std::time::Duration;

use super::context::{Shared, with_current};
use super::handle::Handle;
use super::join::JoinHandle;
use super::runtime::Runtime;
use crate::driver::DriverMetrics;

/// Counters of one worker, as returned by [`Runtime::metrics`](crate::Runtime::metrics),
/// [`Handle::metrics`](crate::Handle::metrics) and [`RuntimeMetrics::current`]. Every counter starts at 0 when the
/// runtime is built.
///
/// The worker updates its counters with plain additions, most of them once per turn. Nothing is shared with other
/// threads, so taking a snapshot costs the worker nothing in between. With the feature `metrics`, `record` passes a
/// snapshot to the recorder of the `metrics` crate.
///
/// ```
/// let runtime = anello::Runtime::new()?;
/// runtime.block_on(async {
///     let task = anello::spawn(anello::yield_now());
///     assert_eq!(anello::RuntimeMetrics::current().map(|metrics| metrics.tasks), Some(1));
///     task.await.ok();
/// });
/// let metrics = runtime.metrics();
/// assert_eq!((metrics.tasks, metrics.spawned_tasks, metrics.timers), (0, 1, 0));
/// assert!(metrics.polls >= 3, "the task was polled twice, and the main future at least once");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeMetrics {
    /// Counters of the driver.
    pub driver: DriverMetrics,
    /// Number of tasks that have been spawned and have not finished. Excludes the future passed to `block_on`.
    pub tasks: u64,
    /// Number of tasks spawned so far.
    pub spawned_tasks: u64,
    /// Number of polls of tasks and of futures passed to `block_on`.
    pub polls: u64,
    /// Duration of the longest poll so far. `None` unless
    /// [`measure_polls`](crate::RuntimeBuilder::measure_polls) is set. While a task is being polled, the worker serves
    /// no other task, socket or timer.
    pub longest_poll: Option<Duration>,
    /// Number of timers that are pending.
    pub timers: u64,
}

impl RuntimeMetrics {
    /// Returns the counters of the runtime that is running on this thread, or `None` outside of a runtime.
    ///
    /// ```
    /// use anello::RuntimeMetrics;
    ///
    /// assert_eq!(RuntimeMetrics::current(), None);
    /// # anello::example! {
    /// let _task = anello::spawn(std::future::pending::<()>());
    /// let metrics = RuntimeMetrics::current().expect("a runtime is running");
    /// assert_eq!(metrics.tasks, 1);
    /// # }
    /// ```
    #[must_use]
    pub fn current() -> Option<Self> {
        with_current(Shared::metrics)
    }
}

impl Shared {
    fn metrics(&self) -> RuntimeMetrics {
        let counters = &self.tasks.counters;
        RuntimeMetrics {
            driver: self.driver.borrow().metrics(),
            tasks: self.task_count() as u64,
            spawned_tasks: counters.spawned.get(),
            polls: counters.polls.get(),
            longest_poll: counters
                .longest_poll_ns
                .as_ref()
                .map(|longest| Duration::from_nanos(longest.get())),
            timers: self.time.wheel.borrow().len() as u64,
        }
    }
}

impl Runtime {
    /// Returns the current values of the counters of this runtime and its driver.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// runtime.spawn(async {}).detach();
    /// assert_eq!(runtime.metrics().tasks, 1);
    /// runtime.block_on(anello::yield_now());
    /// assert_eq!((runtime.metrics().tasks, runtime.metrics().spawned_tasks), (0, 1));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn metrics(&self) -> RuntimeMetrics {
        self.shared.metrics()
    }
}

impl Handle {
    /// Takes a snapshot of the runtime's counters on the runtime's thread. Any thread can await the result.
    ///
    /// The worker responds between two polls. While a poll does not return, the call waits, unlike
    /// [`dump`](Self::dump); use [`timeout`](crate::time::timeout) on another worker to bound it. The task that takes
    /// the snapshot is included in the counters.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let handle = runtime.handle(); // Usually sent to another thread.
    /// let metrics = runtime.block_on(async { handle.metrics().await });
    /// assert!(metrics.is_ok_and(|metrics| metrics.spawned_tasks == 1));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The returned handle resolves to a [`JoinError`](crate::JoinError) if the runtime has been dropped.
    pub fn metrics(&self) -> JoinHandle<RuntimeMetrics> {
        self.spawn(async { RuntimeMetrics::current().unwrap_or_default() })
    }
}
