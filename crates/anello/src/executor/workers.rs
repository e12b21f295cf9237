//! One worker per core: a thread, pinned, with a runtime of its own. Nothing is shared on the hot path; listeners that
//! were bound with [`reuse_port`](crate::net::TcpListenerBuilder::reuse_port) share the incoming connections.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread;

use super::{Handle, Runtime, RuntimeBuilder, flush_wakes_before_blocking};

/// Running workers. Dropping this waits for them to end.
#[derive(Debug)]
pub struct Workers<T> {
    threads: Vec<thread::JoinHandle<io::Result<T>>>,
    handles: Vec<Handle>,
}

/// What a worker knows of itself.
#[derive(Clone, Debug)]
pub struct WorkerContext {
    /// Its number, from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
    /// The core it is pinned to, if it is.
    pub core: Option<usize>,
}

/// Sets workers up.
#[derive(Clone, Debug, Default)]
pub struct WorkersBuilder {
    cores: Option<Vec<usize>>,
    unpinned: Option<usize>,
    runtime: RuntimeBuilder,
}

impl WorkersBuilder {
    /// The cores to use, one worker each, pinned. By default all that the process may run on.
    pub fn cores(mut self, cores: Vec<usize>) -> Self {
        self.cores = Some(cores);
        self
    }

    /// So many workers, none of them pinned, whatever cores were named.
    pub fn unpinned_workers(mut self, count: usize) -> Self {
        self.unpinned = Some(count);
        self
    }

    /// How each worker's runtime is built.
    pub fn runtime(mut self, builder: RuntimeBuilder) -> Self {
        self.runtime = builder;
        self
    }

    /// Starts the workers. Each calls `make` on its own thread and runs the future it gets to its end.
    ///
    /// # Errors
    /// When a core may not be used, a thread cannot be started or a worker's runtime cannot be built; the workers
    /// that had been set up by then end without running theirs.
    pub fn start<F, T>(
        self,
        make: impl Fn(WorkerContext) -> F + Send + Sync + 'static,
    ) -> io::Result<Workers<T>>
    where
        F: Future<Output = T>,
        T: Send + 'static,
    {
        let cores = match self.unpinned {
            Some(count) => vec![None; count],
            None => cores_to_pin(self.cores)?,
        };
        if cores.is_empty() {
            let message = match self.unpinned {
                Some(_) => "no worker was asked for: ask for at least one",
                None => "no core was named: name at least one",
            };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let make = Arc::new(make);
        let (mut threads, mut handles) = (Vec::new(), Vec::new());
        let count = cores.len();
        let (report, reports) = std::sync::mpsc::channel();
        // Dropped without a word when one worker cannot start: then none of them runs its future.
        let mut starts = Vec::new();
        for (index, core) in cores.into_iter().enumerate() {
            let worker = WorkerContext { index, count, core };
            let (make, builder, report) = (Arc::clone(&make), self.runtime.clone(), report.clone());
            let (start, started) = std::sync::mpsc::channel::<()>();
            starts.push(start);
            let thread = thread::Builder::new().name(format!("anello-{index}")).spawn(move || {
                let runtime = match pin_and_build(worker.core, &builder) {
                    Ok(runtime) => runtime,
                    Err(error) => {
                        // The receiver waits for exactly one report of each worker.
                        report.send(Err(io::Error::new(error.kind(), error.to_string()))).ok();
                        return Err(error);
                    }
                };
                report.send(Ok((index, runtime.handle()))).ok();
                match started.recv() {
                    Ok(()) => Ok(runtime.block_on(make(worker))),
                    Err(_) => Err(io::Error::other("another worker could not start")),
                }
            })?;
            threads.push(thread);
        }
        // Now only the workers hold senders: if one ends without a word, waiting for it ends, too.
        drop(report);
        // What `make` does on the new workers may depend on others.
        flush_wakes_before_blocking();
        for _ in 0..count {
            let reported =
                reports.recv().map_err(|_| io::Error::other("a worker ended before it had started"))?;
            handles.push(reported?);
        }
        for start in starts {
            // A worker that has reported waits for this word.
            start.send(()).ok();
        }
        handles.sort_by_key(|(index, _)| *index);
        Ok(Workers { threads, handles: handles.into_iter().map(|(_, handle)| handle).collect() })
    }
}

/// The core of each worker: those that were named, or all that may be used; one alone that nobody named is left to the
/// kernel.
fn cores_to_pin(named: Option<Vec<usize>>) -> io::Result<Vec<Option<usize>>> {
    let allowed = allowed_cores()?;
    let pin = named.is_some() || allowed.len() > 1;
    let cores = named.unwrap_or_else(|| allowed.clone());
    if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("core {core} may not be used by this process: choose from {allowed:?}"),
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
    /// A builder for one worker per core that the process may run on.
    pub fn builder() -> WorkersBuilder {
        WorkersBuilder::default()
    }
}

impl<T> Workers<T> {
    /// The handle of each worker's runtime, by number.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Waits for all workers and returns what their futures returned, by number.
    ///
    /// # Errors
    /// When a worker panicked.
    pub fn join(mut self) -> io::Result<Vec<T>> {
        flush_wakes_before_blocking();
        let ended: Vec<_> = self.threads.drain(..).map(thread::JoinHandle::join).collect();
        ended
            .into_iter()
            .map(|result| {
                result.unwrap_or_else(|_| Err(io::Error::other("a worker panicked: see its message above")))
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

/// The cores that this process may run on (`sched_getaffinity(2)`).
///
/// # Errors
/// When the kernel does not say.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}
