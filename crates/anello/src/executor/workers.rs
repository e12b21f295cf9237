//! Worker threads: one pinned thread per core, each with its own runtime.
//!
//! Workers share no state on the hot path. Listeners that are bound with
//! [`reuse_port`](crate::net::TcpListenerBuilder::reuse_port) distribute incoming connections among the workers.

use std::future::Future;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, mpsc};
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
        // Each worker waits for this lock. If a worker cannot start, the value stays `false`, and no worker runs its
        // future.
        let started = Arc::new(RwLock::new(false));
        let mut all_started = started.write().unwrap_or_else(PoisonError::into_inner);
        for (index, core) in cores.into_iter().enumerate() {
            let worker = WorkerContext { index, count, core };
            let (make, builder, report) = (Arc::clone(&make), self.runtime.clone(), report.clone());
            let started = Arc::clone(&started);
            let run = move || {
                let built = pin_and_build(core, &builder);
                let reported = built.as_ref().map(|runtime| (index, runtime.handle()));
                report.send(reported.map_err(|error| io::Error::new(error.kind(), error.to_string()))).ok();
                drop(report);
                let runtime = built?;
                let all_started = *started.read().unwrap_or_else(PoisonError::into_inner);
                match all_started {
                    true => Ok(runtime.block_on(make(worker))),
                    false => Err(io::Error::other("another worker failed to start")),
                }
            };
            threads.push(thread::Builder::new().name(format!("anello-{index}")).spawn(run)?);
        }
        // From now on, only workers that have not reported yet hold senders, so `recv` fails if one of them panics.
        drop(report);
        // The new workers may depend on other workers whose notifications are still queued in this thread's runtime.
        flush_wakes_before_blocking();
        for _ in 0..count {
            let reported = reports.recv().map_err(|_| io::Error::other("a worker exited during startup"))?;
            handles.push(reported?);
        }
        *all_started = true;
        handles.sort_by_key(|(index, _)| *index);
        Ok(Workers { threads, handles: handles.into_iter().map(|(_, handle)| handle).collect() })
    }

    /// Returns the core of each worker, or `None` for workers that are not pinned. If no cores are set and only one is
    /// allowed, its worker is not pinned.
    fn worker_cores(&self) -> io::Result<Vec<Option<usize>>> {
        let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        match self.unpinned {
            Some(0) => return invalid("cannot start workers: count is 0 (request at least one)".to_owned()),
            Some(count) => return Ok(vec![None; count]),
            None => {}
        }
        let allowed = allowed_cores()?;
        let cores = self.cores.as_ref().unwrap_or(&allowed);
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
        let pin = self.cores.is_some() || allowed.len() > 1;
        Ok(cores.iter().map(|core| pin.then_some(*core)).collect())
    }
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
    /// Returns handles to the workers' runtimes, ordered by worker index.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Waits for all workers and returns the outputs of their futures, ordered by worker index.
    ///
    /// # Errors
    /// Returns an error if a worker panicked.
    pub fn join(mut self) -> io::Result<Vec<T>> {
        flush_wakes_before_blocking();
        let panicked = "a worker panicked (see the panic message on stderr)";
        let results: Vec<_> = self.threads.drain(..).map(thread::JoinHandle::join).collect();
        results.into_iter().map(|result| result.map_err(|_| io::Error::other(panicked))?).collect()
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
