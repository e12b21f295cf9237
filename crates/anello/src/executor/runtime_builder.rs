//! Construction of runtimes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::context::Shared;
use super::runtime::Runtime;
use super::task_counters::TaskCounters;
use super::watchdog::WatchedWorker;
use crate::driver::{Clock, Driver, DriverKind, DriverOptions, log_event, with_context};

/// Environment variable that overrides the driver selection.
const DRIVER_VARIABLE: &str = "ANELLO_DRIVER";

impl Runtime {
    /// Returns a builder with the default options.
    ///
    /// ```
    /// let runtime = anello::Runtime::builder().driver(anello::DriverKind::Epoll).build()?;
    /// assert_eq!(runtime.block_on(async { 42 }), 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Builds a runtime with the default options. It uses io_uring if available, otherwise epoll.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// assert_eq!(runtime.block_on(async { 42 }), 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`RuntimeBuilder::build`].
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }
}

/// Builds a [`Runtime`].
///
/// ```
/// use std::time::Duration;
///
/// use anello::{DriverOptions, Runtime};
///
/// let runtime = Runtime::builder()
///     .options(DriverOptions::default().max_send_queue_bytes(256 * 1024))
///     .drain_timeout(Duration::from_secs(5))
///     .build()?;
/// assert_eq!(runtime.block_on(async { 42 }), 42);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RuntimeBuilder {
    kind: DriverKind,
    options: DriverOptions,
    drain_timeout: Duration,
    environment: bool,
    measures_polls: bool,
    slow_poll_threshold: Option<Duration>,
    blocked_poll_threshold: Option<Duration>,
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        Self {
            kind: DriverKind::Auto,
            options: DriverOptions::default(),
            drain_timeout: Duration::from_secs(1),
            environment: true,
            measures_polls: false,
            slow_poll_threshold: None,
            blocked_poll_threshold: None,
        }
    }
}

impl RuntimeBuilder {
    /// Sets the driver. The default is [`DriverKind::Auto`].
    ///
    /// The environment variable `ANELLO_DRIVER` (`auto`, `uring` or `epoll`) overrides any driver set here except the
    /// simulated driver.
    ///
    /// ```
    /// use anello::sim::SimOptions;
    /// use anello::{DriverKind, Runtime};
    ///
    /// let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::new(42))).build()?;
    /// assert_eq!(runtime.driver().name, "sim");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn driver(mut self, kind: DriverKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the options of the driver.
    ///
    /// ```
    /// use anello::{DriverOptions, Runtime};
    ///
    /// let options = DriverOptions::default().receive_buffer_bytes(4096);
    /// let runtime = Runtime::builder().options(options).build()?;
    /// runtime.block_on(async {
    ///     let (mut near, mut far) = anello::net::UnixStream::pair()?;
    ///     near.write_all(b"ciao").await?;
    ///     assert_eq!(far.recv().await?.as_deref(), Some(&b"ciao"[..]));
    ///     Ok::<_, std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn options(mut self, options: DriverOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the time without progress after which dropping the runtime stops sending the bytes that a stream has
    /// accepted, and resets its connection. The default is 1 second. The time restarts whenever the kernel takes bytes, so
    /// a peer that reads slowly can delay the end of the runtime.
    ///
    /// ```
    /// use std::io::Read;
    /// use std::time::Duration;
    ///
    /// let runtime = anello::Runtime::builder().drain_timeout(Duration::from_secs(5)).build()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// runtime.block_on(async {
    ///     let mut stream = anello::net::UnixStream::from_std(near)?;
    ///     stream.write_all(b"ciao").await
    /// })?;
    /// drop(runtime);
    /// let mut received = String::new();
    /// far.read_to_string(&mut received)?;
    /// assert_eq!(received, "ciao");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets whether `ANELLO_DRIVER` can override the driver. The default is `true`. Disable it in a benchmark that
    /// compares drivers.
    ///
    /// ```
    /// use anello::{DriverKind, Runtime};
    ///
    /// let runtime = Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false).build()?;
    /// // Even if `ANELLO_DRIVER` is `uring`.
    /// assert_eq!(runtime.driver().name, "epoll");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn driver_from_environment(mut self, enabled: bool) -> Self {
        self.environment = enabled;
        self
    }

    /// Sets whether the duration of each poll is measured for
    /// [`RuntimeMetrics::longest_poll`](crate::RuntimeMetrics::longest_poll). The default is `false`. Measuring reads
    /// the clock twice per poll (`clock_gettime(2)`, about 40 ns). On the simulated driver, polls take no virtual
    /// time.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = anello::Runtime::builder().measure_polls(true).build()?;
    /// runtime.block_on(async { std::thread::sleep(Duration::from_millis(2)) });
    /// assert!(runtime.metrics().longest_poll >= Some(Duration::from_millis(2)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn measure_polls(mut self, enabled: bool) -> Self {
        self.measures_polls = enabled;
        self
    }

    /// Sets the duration from which a poll is reported as slow, after it has returned: a warning with the task's id,
    /// name and spawn location is sent to `tracing`. There is no threshold by default. While a task is being polled,
    /// the worker serves no other task, socket or timer.
    ///
    /// A threshold also enables the measurements of [`measure_polls`](Self::measure_polls), and those of
    /// [`task::dump`](crate::task::dump). Without both options, polls do not read the clock.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = anello::Runtime::builder().slow_poll_threshold(Duration::from_millis(1)).build()?;
    /// // Sends a warning to the subscriber of `tracing`.
    /// runtime.block_on(async { std::thread::sleep(Duration::from_millis(2)) });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn slow_poll_threshold(mut self, threshold: Duration) -> Self {
        self.slow_poll_threshold = Some(threshold);
        self
    }

    /// Sets the duration after which a poll that has not returned is reported, at least 1 ms. There is no threshold by
    /// default. Unlike [`slow_poll_threshold`](Self::slow_poll_threshold), it finds a task that blocks its worker
    /// forever. It has no effect on the simulated driver, whose time does not pass while a task blocks.
    ///
    /// A thread of the process, `anello-watchdog`, watches the runtimes that have a threshold, until the last one is
    /// dropped. Once per blocked poll, it
    ///
    /// - sends a warning to `tracing` with the name and number of the worker's thread, the task's id, name and spawn
    ///   location, and a backtrace of the worker (feature `backtrace`). Only a global subscriber receives it;
    /// - completes the calls of [`Handle::dump`](crate::Handle::dump) that wait for the worker, with
    ///   [`Dump::blocked`](crate::task::Dump::blocked).
    ///
    /// A threshold also enables the measurements of [`measure_polls`](Self::measure_polls), and adds about 70 ns per
    /// poll to their cost.
    ///
    /// # Backtraces
    ///
    /// For the backtrace, the thread sends a signal to the blocked worker: the highest real-time signal that has no
    /// handler, usually `SIGRTMAX`. The kernel restarts most system calls that it interrupts; those that it does not,
    /// such as `poll(2)`, fail with [`Interrupted`](io::ErrorKind::Interrupted) in the task (see signal(7)). The worker
    /// copies its stack in the signal handler, with `process_vm_readv(2)`; the other thread unwinds the copy. If the
    /// worker does not handle the signal within 1 second, the warning contains the reason instead. Names need the
    /// symbols of the program, and lines its debug information. The first backtrace loads them, which takes some
    /// 100 ms.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// use anello::task::{Builder, TaskState};
    ///
    /// let (end, ended) = mpsc::channel::<()>();
    /// let (send_handle, handle) = mpsc::channel();
    /// let worker = std::thread::spawn(move || {
    ///     let builder = anello::Runtime::builder().blocked_poll_threshold(Duration::from_millis(1));
    ///     let runtime = builder.build()?;
    ///     let task = Builder::new().name("blocking").spawn_local_on(async move { ended.recv() }, &runtime)?;
    ///     _ = send_handle.send(runtime.handle());
    ///     runtime.block_on(async { task.await.is_ok() });
    ///     Ok::<_, std::io::Error>(())
    /// });
    /// let handle = handle.recv()?;
    /// let dump = loop {
    ///     // Until the task has started, the worker responds.
    ///     let dump = handle.block_on(handle.dump())?;
    ///     if dump.tasks.iter().any(|task| task.state == TaskState::Running) {
    ///         break dump;
    ///     }
    /// };
    /// assert!(dump.blocked.is_some());
    /// println!("{dump}");
    /// drop(end);
    /// worker.join().expect("the worker does not panic")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocked_poll_threshold(mut self, threshold: Duration) -> Self {
        self.blocked_poll_threshold = Some(threshold);
        self
    }

    /// Builds the runtime on the calling thread.
    ///
    /// ```
    /// let builder = anello::Runtime::builder();
    /// let (one, other) = (builder.build()?, builder.build()?);
    /// assert_eq!(one.driver(), other.driver());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the requested driver is unavailable (the message contains the cause and a remedy), if the
    /// open file limit is reached, if the thread for `blocked_poll_threshold` cannot be started, or if `ANELLO_DRIVER`
    /// contains an unknown driver name.
    pub fn build(&self) -> io::Result<Runtime> {
        let mut kind = self.kind.clone();
        if self.environment
            && !kind.is_simulated()
            && let Ok(name) = std::env::var(DRIVER_VARIABLE)
        {
            kind = name.parse::<DriverKind>().map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("{DRIVER_VARIABLE}: {error}"))
            })?;
        }
        let driver = Driver::new(&kind, &self.options)?;
        let description = &driver.description;
        match &description.fallback_reason {
            Some(reason) => {
                log_event!(INFO, driver = description.name, reason, "io_uring unavailable; using epoll")
            }
            None => {
                log_event!(INFO, driver = description.name, features = description.features, "driver ready")
            }
        }
        let watched = match (self.blocked_poll_threshold, driver.clock()) {
            (Some(threshold), Clock::Monotonic(opened)) => {
                Some(Arc::new(WatchedWorker::new(threshold, opened)))
            }
            _ => None,
        };
        let counters = TaskCounters::new(self.measures_polls || watched.is_some(), self.slow_poll_threshold);
        let shared = Shared::new(driver, counters, watched.clone())?;
        let runtime = Runtime::new_with(shared, self.drain_timeout);
        if let Some(worker) = watched {
            worker
                .watch()
                .map_err(|error| with_context("cannot start the thread that reports blocked polls", error))?;
        }
        Ok(runtime)
    }
}
