//! Worker threads: one pinned thread per core, each with its own runtime.
//!
//! Workers share no state on the hot path. Listeners that are bound with
//! [`reuse_port`](crate::net::TcpListenerBuilder::reuse_port) distribute incoming connections among the workers.

use std::future::Future;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread;

use super::context::flush_wakes_before_blocking;
use super::runtime::{Handle, Runtime, RuntimeBuilder};

/// A set of running workers. Dropping it blocks until all workers have finished.
#[derive(Debug)]
pub struct Workers<T> {
    threads: Vec<thread::JoinHandle<io::Result<T>>>,
    handles: Vec<Handle>,
}

/// A worker's index and core, and the number of workers.
#[derive(Clone, Debug)]
pub struct WorkerContext {
    /// Index of the worker, starting at 0.
    pub index: usize,
    /// Number of workers.
    pub count: usize,
    /// Core to which the worker is pinned, or `None` if it is not pinned.
    pub core: Option<usize>,
}

/// Configures and starts [`Workers`].
#[derive(Clone, Debug, Default)]
pub struct WorkersBuilder {
    cores: Option<Vec<usize>>,
    unpinned: Option<usize>,
    runtime: RuntimeBuilder,
}

impl WorkersBuilder {
    /// Sets the cores to use. One worker is pinned to each core. The default is all cores in the CPU affinity mask of
    /// the process.
    pub fn cores(mut self, cores: Vec<usize>) -> Self {
        self.cores = Some(cores);
        self
    }

    /// Starts `count` workers without pinning them. Overrides [`cores`](Self::cores).
    pub fn unpinned_workers(mut self, count: usize) -> Self {
        self.unpinned = Some(count);
        self
    }

    /// Sets the builder for the workers' runtimes.
    pub fn runtime(mut self, builder: RuntimeBuilder) -> Self {
        self.runtime = builder;
        self
    }

    /// Starts the workers. Each worker calls `make` on its own thread and runs the returned future to completion.
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
        // If a worker cannot start, these senders are dropped without sending, and no worker runs its future.
        let mut starts = Vec::new();
        for (index, core) in cores.into_iter().enumerate() {
            let worker = WorkerContext { index, count, core };
            let (make, builder, report) = (Arc::clone(&make), self.runtime.clone(), report.clone());
            let (start, started) = mpsc::channel();
            starts.push(start);
            let thread = thread::Builder::new().name(format!("anello-{index}"));
            threads.push(thread.spawn(move || run_worker(worker, &builder, &*make, &report, &started))?);
        }
        // Only the workers hold senders now, so that `recv` fails if a worker exits without reporting.
        drop(report);
        // The start of the new workers may depend on other workers for which this thread's runtime has queued
        // notifications.
        flush_wakes_before_blocking();
        for _ in 0..count {
            let reported =
                reports.recv().map_err(|_| io::Error::other("a worker exited before it started"))?;
            handles.push(reported?);
        }
        for start in starts {
            // Every worker that has reported is waiting for this message.
            start.send(()).ok();
        }
        handles.sort_by_key(|(index, _)| *index);
        Ok(Workers { threads, handles: handles.into_iter().map(|(_, handle)| handle).collect() })
    }

    /// Returns the core of each worker, or `None` for workers that are not pinned.
    fn worker_cores(&self) -> io::Result<Vec<Option<usize>>> {
        let (cores, message) = match self.unpinned {
            Some(count) => (vec![None; count], "count is 0 (request at least one)"),
            None => (cores_to_pin(self.cores.clone())?, "list of cores is empty (pass at least one core)"),
        };
        match cores.is_empty() {
            true => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, format!("cannot start workers: {message}")))
            }
            false => Ok(cores),
        }
    }
}

/// Main function of a worker thread: builds the runtime, reports it, and runs the future once all workers have
/// reported.
fn run_worker<F: Future>(
    worker: WorkerContext,
    builder: &RuntimeBuilder,
    make: &impl Fn(WorkerContext) -> F,
    report: &mpsc::Sender<io::Result<(usize, Handle)>>,
    started: &mpsc::Receiver<()>,
) -> io::Result<F::Output> {
    let runtime = match pin_and_build(worker.core, builder) {
        Ok(runtime) => runtime,
        Err(error) => {
            // The receiver expects exactly one report from each worker.
            report.send(Err(io::Error::new(error.kind(), error.to_string()))).ok();
            return Err(error);
        }
    };
    report.send(Ok((worker.index, runtime.handle()))).ok();
    match started.recv() {
        Ok(()) => Ok(runtime.block_on(make(worker))),
        Err(_) => Err(io::Error::other("another worker failed to start")),
    }
}

/// Returns the core of each worker: the requested cores, or all allowed ones. A single worker on a default core is not
/// pinned.
fn cores_to_pin(requested: Option<Vec<usize>>) -> io::Result<Vec<Option<usize>>> {
    let allowed = allowed_cores()?;
    let pin = requested.is_some() || allowed.len() > 1;
    let cores = requested.unwrap_or_else(|| allowed.clone());
    if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("core {core} is outside the CPU affinity mask of this process (allowed: {allowed:?})"),
        ));
    }
    Ok(cores.into_iter().map(|core| pin.then_some(core)).collect())
}

fn pin_and_build(core: Option<usize>, builder: &RuntimeBuilder) -> io::Result<Runtime> {
    if let Some(core) = core {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    builder.build()
}

impl Workers<()> {
    /// Returns a builder. By default, it starts one worker per core in the CPU affinity mask of the process.
    pub fn builder() -> WorkersBuilder {
        WorkersBuilder::default()
    }
}

impl<T> Workers<T> {
    /// Returns handles to the workers' runtimes, by worker index.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Waits for all workers and returns the outputs of their futures, by worker index.
    ///
    /// # Errors
    /// Returns an error if a worker panicked.
    pub fn join(mut self) -> io::Result<Vec<T>> {
        flush_wakes_before_blocking();
        let results: Vec<_> = self.threads.drain(..).map(thread::JoinHandle::join).collect();
        results
            .into_iter()
            .map(|result| {
                result.unwrap_or_else(|_| {
                    Err(io::Error::other("a worker panicked (see the panic message on stderr)"))
                })
            })
            .collect()
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        flush_wakes_before_blocking();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
    }
}

/// Returns the cores in the CPU affinity mask of this process.
///
/// # Errors
/// Returns the error of `sched_getaffinity(2)`.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}
