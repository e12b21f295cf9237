//! Worker threads: one pinned thread per core, each with its own runtime.
//!
//! Each worker pins its thread before it builds its runtime and calls the application, so the kernel places the memory
//! that the worker allocates (the rings and buffers of its driver, its tasks, the heap of its thread) on the NUMA node of
//! its core when the worker first writes to it.
//!
//! Workers share no state on the hot path. Listeners that are bound with
//! [`reuse_port`](crate::net::TcpListenerBuilder::reuse_port) distribute incoming connections among the workers.

use std::future::Future;
use std::io;
use std::num::NonZero;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, mpsc};
use std::thread;

use super::affinity::pin_thread;
use super::context::flush_wakes_before_blocking;
use super::handle::Handle;
use super::join::JoinHandle;
use super::own_thread::OwnThread;
use super::pin_watch::{Pin, PinWatch};
use super::runtime::Runtime;
use super::runtime_builder::RuntimeBuilder;
use super::topology::Topology;
use crate::driver::{catch_and_log_panic, log_event, log_span, raw_os_error, with_text};

/// A set of running workers. Dropping it blocks until all workers have finished.
///
/// ```
/// let workers = anello::Workers::builder().unpinned_workers(2).start(|worker| async move { worker.index })?;
/// assert_eq!(workers.join()?, [0, 1]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Workers<T> {
    threads: Vec<OwnThread<io::Result<T>>>,
    handles: Vec<Handle>,
    /// `None` if no worker is pinned.
    _pin_watch: Option<PinWatch>,
}

/// A worker's index and core, and the other workers.
///
/// ```
/// use anello::Workers;
///
/// let workers = Workers::builder().unpinned_workers(2).start(|worker| async move {
///     let next = (worker.index + 1) % worker.count;
///     let task = worker.spawn_on(next, || async { std::thread::current().name() == Some("anello-1") });
///     // Fails if the other worker has finished in the meantime, which drops its tasks.
///     task.await.ok() == Some(next == 1)
/// })?;
/// assert!(workers.join()?.contains(&true));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkerContext {
    /// Index of the worker, starting at 0.
    pub index: usize,
    /// Number of workers.
    pub count: usize,
    /// Core to which the worker was pinned at startup, or `None` if it is not pinned.
    pub core: Option<usize>,
    /// Set before any worker runs its future.
    handles: Arc<OnceLock<Vec<Handle>>>,
}

impl WorkerContext {
    /// Returns handles to the runtimes of all workers, including this one, ordered by worker index.
    ///
    /// ```
    /// # anello::example! {
    /// let workers = anello::Workers::builder().unpinned_workers(2).start(|worker| async move {
    ///     let own = &worker.handles()[worker.index];
    ///     let task = own.spawn_with(|| async { std::thread::current().id() });
    ///     task.await.ok() == Some(std::thread::current().id()) && worker.handles().len() == worker.count
    /// })?;
    /// assert_eq!(workers.join()?, [true, true]);
    /// # }
    /// ```
    pub fn handles(&self) -> &[Handle] {
        self.handles.get().map_or(&[], Vec::as_slice)
    }

    /// Calls `make` on the worker with index `worker` and spawns the future that it returns there. See
    /// [`Handle::spawn_with`] for details.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::Workers;
    /// use anello::sync::CancellationToken;
    ///
    /// let stop = CancellationToken::new();
    /// let workers = Workers::builder().unpinned_workers(2).start(move |worker| {
    ///     let stop = stop.clone();
    ///     async move {
    ///         if worker.index == 1 {
    ///             // Runs the task of worker 0.
    ///             stop.cancelled().await;
    ///             return None;
    ///         }
    ///         let name = worker.spawn_on(1, || async { std::thread::current().name().map(str::to_owned) }).await;
    ///         stop.cancel();
    ///         name.ok().flatten()
    ///     }
    /// })?;
    /// assert_eq!(workers.join()?, [Some("anello-1".to_owned()), None]);
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if `worker` is not less than [`count`](Self::count).
    #[track_caller]
    pub fn spawn_on<M, F>(&self, worker: usize, make: M) -> JoinHandle<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        handle_of(self.handles(), worker).spawn_with(make)
    }
}

#[track_caller]
fn handle_of(handles: &[Handle], worker: usize) -> &Handle {
    let count = handles.len();
    handles.get(worker).unwrap_or_else(|| panic!("no worker has index {worker} (there are {count} workers)"))
}

/// Configures and starts [`Workers`].
///
/// ```
/// let builder = anello::Workers::builder().cores(vec![anello::doctor::allowed_cores()?[0]]);
/// // A builder can be used again.
/// for _ in 0..2 {
///     let workers = builder.clone().start(|worker| async move { worker.count })?;
///     assert_eq!(workers.join()?, [1]);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct WorkersBuilder {
    cores: Option<Vec<usize>>,
    unpinned: Option<usize>,
    runtime: RuntimeBuilder,
}

impl WorkersBuilder {
    /// Sets the cores to use. One worker is pinned to each core, in this order.
    ///
    /// The default is all cores in the CPU affinity mask of the calling thread, in their
    /// [preferred order](Topology::preferred_order). If the CPU quota of the control group is lower (rounded down,
    /// [`std::thread::available_parallelism`]), the default is as many workers as it allows, which are not pinned,
    /// because a quota means that other processes use the same cores.
    ///
    /// If a core goes offline, or the CPU affinity of a worker is changed (`taskset`, `cpuset.cpus` of a control
    /// group), the worker continues on the cores that it still may use, and a warning is logged. Once its affinity
    /// contains its core again, it is pinned again. The affinity is checked every 5 s, by a thread that does nothing else.
    ///
    /// Threads and processes that a worker starts are pinned to the same core, except the threads of
    /// [`spawn_blocking`](crate::spawn_blocking) and of file operations.
    ///
    /// ```
    /// let core = anello::doctor::allowed_cores()?[0];
    /// let workers = anello::Workers::builder().cores(vec![core]).start(|worker| async move { worker.core })?;
    /// assert_eq!(workers.join()?, [Some(core)]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cores(mut self, cores: Vec<usize>) -> Self {
        self.cores = Some(cores);
        self
    }

    /// Returns the number of workers that [`start`](Self::start) starts with the current settings. Use it to create one
    /// listening socket for each worker.
    ///
    /// ```
    /// let builder = anello::Workers::builder();
    /// let count = builder.worker_count()?;
    /// let workers = builder.start(|worker| async move { worker.count })?;
    /// assert_eq!(workers.join()?, vec![count; count]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of [`start`](Self::start) if the list of cores is empty or the number of workers is 0, if a
    /// core is outside the CPU affinity mask, or if the mask cannot be read.
    pub fn worker_count(&self) -> io::Result<usize> {
        self.worker_cores().map(|cores| cores.len())
    }

    /// Starts `count` workers without pinning them. Overrides [`cores`](Self::cores).
    ///
    /// ```
    /// let workers = anello::Workers::builder().unpinned_workers(3).start(|worker| async move { worker.core })?;
    /// assert_eq!(workers.join()?, [None; 3]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn unpinned_workers(mut self, count: usize) -> Self {
        self.unpinned = Some(count);
        self
    }

    /// Sets the builder for the workers' runtimes.
    ///
    /// ```
    /// use anello::{DriverKind, Runtime, Workers, current_driver};
    ///
    /// let runtime = Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false);
    /// let builder = Workers::builder().unpinned_workers(2).runtime(runtime);
    /// let workers = builder.start(|_| async { current_driver().map(|driver| driver.name) })?;
    /// assert_eq!(workers.join()?, [Some("epoll"); 2]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn runtime(mut self, builder: RuntimeBuilder) -> Self {
        self.runtime = builder;
        self
    }

    /// Starts the workers. Each worker calls `make` on its own thread and runs the returned future to completion.
    ///
    /// ```
    /// use anello::Workers;
    /// use anello::net::TcpListener;
    ///
    /// let workers = Workers::builder().unpinned_workers(2).start(|worker| async move {
    ///     // A real server accepts connections here until it shuts down.
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     listener.local_addr().map(|address| (worker.index, address))
    /// })?;
    /// let addresses: Vec<_> = workers.join()?.into_iter().collect::<Result<_, _>>()?;
    /// assert_ne!(addresses[0].1, addresses[1].1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the list of cores is empty or the number of workers is 0, if a core is outside the CPU
    /// affinity mask, if a thread cannot be spawned, or if a worker's runtime cannot be built. No worker runs its
    /// future in that case.
    pub fn start<F, T>(
        self,
        make: impl Fn(WorkerContext) -> F + Send + Sync + 'static,
    ) -> io::Result<Workers<T>>
    where
        F: Future<Output = T>,
        T: Send + 'static,
    {
        let cores = self.worker_cores()?;
        let count = cores.len();
        let make = Arc::new(make);
        let (mut threads, mut handles) = (Vec::new(), Vec::new());
        let (report, reports) = mpsc::channel();
        // Each worker waits for this lock. If a worker cannot start, the value stays `false`, and no worker runs its
        // future.
        let started = Arc::new(RwLock::new(false));
        let shared_handles = Arc::new(OnceLock::new());
        let mut all_started = started.write().unwrap_or_else(PoisonError::into_inner);
        for (index, core) in cores.into_iter().enumerate() {
            let worker = WorkerContext { index, count, core, handles: Arc::clone(&shared_handles) };
            let (make, builder, report) = (Arc::clone(&make), self.runtime.clone(), report.clone());
            let started = Arc::clone(&started);
            let run = move || {
                let built = pin_and_build(core, &builder);
                let reported = built.as_ref().map(|runtime| {
                    let (handle, thread) = (runtime.handle(), rustix::thread::gettid());
                    (
                        index,
                        core.map(|core| Pin { worker: index, core, thread, handle: handle.clone() }),
                        handle,
                    )
                });
                report.send(reported.map_err(duplicate)).ok();
                drop(report);
                let runtime = built?;
                let all_started = *started.read().unwrap_or_else(PoisonError::into_inner);
                match all_started {
                    true => Ok(log_span!("worker", index, core).in_scope(|| runtime.block_on(make(worker)))),
                    false => Err(io::Error::other("another worker failed to start")),
                }
            };
            threads.push(OwnThread::new(thread::Builder::new().name(format!("anello-{index}")).spawn(run)?));
        }
        // From now on, only workers that have not reported yet hold senders, so `recv` fails if one of them panics.
        drop(report);
        // The new workers may depend on other workers whose notifications are still queued in this thread's runtime.
        flush_wakes_before_blocking();
        for _ in 0..count {
            let reported = reports.recv().map_err(|_| io::Error::other("a worker exited during startup"))?;
            handles.push(reported?);
        }
        handles.sort_by_key(|(index, ..)| *index);
        let (pins, handles): (Vec<Option<Pin>>, Vec<Handle>) =
            handles.into_iter().map(|(_, pin, handle)| (pin, handle)).unzip();
        shared_handles.get_or_init(|| handles.clone());
        *all_started = true;
        // The workers run, and the start of the watch can log an event.
        drop(all_started);
        Ok(Workers { threads, handles, _pin_watch: PinWatch::start(pins.into_iter().flatten().collect()) })
    }

    /// Returns the core of each worker, or `None` for workers that are not pinned. If no cores are set and only one is
    /// allowed, its worker is not pinned, because it would have no effect.
    fn worker_cores(&self) -> io::Result<Vec<Option<usize>>> {
        let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        match self.unpinned {
            Some(0) => return invalid("cannot start workers: count is 0 (request at least one)".to_owned()),
            Some(count) => return Ok(vec![None; count]),
            None => {}
        }
        let allowed = allowed_cores()?;
        let Some(cores) = &self.cores else {
            // Considers the affinity and the quota. 1 if they cannot be read.
            let usable = thread::available_parallelism().map_or(1, NonZero::get);
            return Ok(match allowed.len() {
                1 => vec![None],
                count if usable < count => vec![None; usable],
                _ => Topology::read().preferred_order(&allowed).into_iter().map(Some).collect(),
            });
        };
        if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
            return invalid(format!(
                "core {core} is outside the CPU affinity mask of this process (allowed: {allowed:?})"
            ));
        }
        if cores.is_empty() {
            return invalid(
                "cannot start workers: list of cores is empty (pass at least one core)".to_owned(),
            );
        }
        Ok(cores.iter().copied().map(Some).collect())
    }
}

/// Returns an error with the same text, kind and error number.
fn duplicate(error: &io::Error) -> io::Error {
    let source = raw_os_error(error).map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
    with_text(error.kind(), error.to_string(), source)
}

fn pin_and_build(core: Option<usize>, builder: &RuntimeBuilder) -> io::Result<Runtime> {
    core.map_or(Ok(()), pin_thread)?;
    builder.build()
}

impl Workers<()> {
    /// Returns a builder. By default, it starts one worker per core that the CPU affinity mask and the CPU quota of the
    /// control group allow ([`WorkersBuilder::cores`]).
    ///
    /// ```
    /// let workers = anello::Workers::builder().start(|worker| async move { worker.count })?;
    /// let cores = std::thread::available_parallelism()?.get();
    /// assert_eq!(workers.join()?, vec![cores; cores]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn builder() -> WorkersBuilder {
        WorkersBuilder::default()
    }
}

impl<T> Workers<T> {
    /// Returns handles to the workers' runtimes, ordered by worker index.
    ///
    /// ```
    /// use anello::sync::CancellationToken;
    ///
    /// let stop = CancellationToken::new();
    /// let stopped = stop.clone();
    /// let workers = anello::Workers::builder().unpinned_workers(2).start(move |_| stopped.clone().cancelled_owned())?;
    /// assert_eq!(workers.handles().len(), 2);
    /// let task = workers.handles()[0].spawn(async { 42 });
    /// assert_eq!(anello::Runtime::new()?.block_on(task)?, 42);
    /// stop.cancel();
    /// workers.join()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Calls `make` on the worker with index `worker` and spawns the future that it returns there. See
    /// [`Handle::spawn_with`] for details. Tasks that have not finished when the worker's own future completes are
    /// dropped with its runtime.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// let stops = Arc::new(AtomicBool::new(false));
    /// let stopped = Arc::clone(&stops);
    /// let workers = anello::Workers::builder().unpinned_workers(2).start(move |_| {
    ///     let stopped = Arc::clone(&stopped);
    ///     async move {
    ///         while !stopped.load(Ordering::Relaxed) {
    ///             anello::time::sleep(std::time::Duration::from_millis(1)).await;
    ///         }
    ///     }
    /// })?;
    /// let task = workers.spawn_on(1, || async { std::thread::current().name().map(str::to_owned) });
    /// let name = anello::Runtime::new()?.block_on(task);
    /// assert_eq!(name.ok().flatten().as_deref(), Some("anello-1"));
    /// stops.store(true, Ordering::Relaxed);
    /// workers.join()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if there is no worker with this index.
    #[track_caller]
    pub fn spawn_on<M, F>(&self, worker: usize, make: M) -> JoinHandle<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        handle_of(&self.handles, worker).spawn_with(make)
    }

    /// Waits for all workers and returns the outputs of their futures, ordered by worker index.
    ///
    /// ```
    /// let workers = anello::Workers::builder().unpinned_workers(3).start(|worker| async move { worker.index * 10 })?;
    /// assert_eq!(workers.join()?, [0, 10, 20]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or in a forked child process, which has no workers.
    pub fn join(mut self) -> io::Result<Vec<T>> {
        flush_wakes_before_blocking();
        let results: Vec<_> = self.threads.drain(..).map(OwnThread::join).collect();
        let output = |result: Option<thread::Result<io::Result<T>>>| match result {
            Some(Ok(output)) => output,
            Some(Err(_)) => Err(io::Error::other("a worker panicked (see the panic message on stderr)")),
            None => Err(io::Error::other("the workers run in the parent of this process (join them there)")),
        };
        results.into_iter().map(output).collect()
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        catch_and_log_panic("waker panicked before workers were joined", flush_wakes_before_blocking);
        for thread in self.threads.drain(..) {
            if let Some(Err(_)) = thread.join() {
                log_event!(ERROR, "a worker panicked");
            }
        }
    }
}

/// Returns the cores in the CPU affinity mask of the calling thread, in ascending order.
///
/// ```
/// let cores = anello::doctor::allowed_cores()?;
/// assert!(!cores.is_empty());
/// assert!(cores.is_sorted());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns the error of `sched_getaffinity(2)`.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}
