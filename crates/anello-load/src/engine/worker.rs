//! One worker thread of a load run: a runtime, a session on it, and channels for requests and reports.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anello::DriverInfo;
use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::engine::measurement::{MeasurementRequest, Observer, TICK, Throughput};
use crate::engine::pause::PauseSwitch;
use crate::engine::schedule::Share;
use crate::engine::session::Session;
use crate::engine::shared::ProgressSnapshot;
use crate::engine::start_time::until_opening;
use crate::model::config::LoadConfig;
use crate::model::errors::Errors;
use crate::model::histogram::latency_histogram;
use crate::model::interval::Interval;
use crate::model::tls::HandshakeSummary;
use crate::system::nanoseconds;
use crate::wire::http::References;

pub(crate) struct Worker {
    pub load: LoadConfig,
    /// Index of the thread within the process.
    pub thread: usize,
    pub runtime: anello::RuntimeBuilder,
    pub origin: Instant,
    pub references: References,
    pub request_queue: Receiver<MeasurementRequest>,
    pub reports: Sender<WorkerReport>,
    pub shared_progress: Arc<SharedProgress>,
}

pub(crate) struct WorkerReport {
    /// Index of the worker thread within the process.
    pub thread: usize,
    pub event: WorkerEvent,
}

pub(crate) enum WorkerEvent {
    /// All connections that could be opened are open.
    Opened {
        driver: DriverInfo,
        errors: Errors,
    },
    Failed(io::Error),
    /// Errors during the warm-up.
    WarmedUp(Errors),
    /// Results of the interval with this index.
    Interval(u64, Box<Interval>),
    Done(Box<MeasurementResult>),
}

pub(crate) struct MeasurementResult {
    /// Results since the last interval.
    pub final_interval: Interval,
    pub throughput: Throughput,
    pub requests_by_connection: Vec<u64>,
    pub opened: usize,
    pub open: usize,
    pub reopened: u64,
    pub handshakes: Vec<HandshakeSummary>,
    pub schedule_error: Histogram<u64>,
    pub usage: ThreadUsage,
}

/// CPU usage of a thread in the intervals of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadUsage {
    pub elapsed_ns: u64,
    pub cpu_ns: u64,
    /// Time during which the thread was runnable but waiting for its core.
    pub delayed_ns: u64,
    /// Time that the thread spent polling the clock without other work, including waits for its core in that time.
    pub pacing_ns: u64,
}

impl ThreadUsage {
    pub fn add(&mut self, other: &Self) {
        self.elapsed_ns += other.elapsed_ns;
        self.cpu_ns += other.cpu_ns;
        self.delayed_ns += other.delayed_ns;
        self.pacing_ns += other.pacing_ns;
    }

    /// Returns the percentage of time during which the thread had no spare capacity, at most 100.
    pub fn busy_percent(&self) -> f64 {
        // The sum can exceed the elapsed time: a thread that waits for its core between the reads of the clocks of a
        // sample shifts the wait into the next interval.
        let busy_ns = (self.cpu_ns + self.delayed_ns).min(self.elapsed_ns).saturating_sub(self.pacing_ns);
        busy_ns as f64 * 100.0 / self.elapsed_ns.max(1) as f64
    }
}

/// State shared by all worker threads and the thread that started them.
#[derive(Debug, Default)]
pub(crate) struct SharedProgress {
    pub stop: AtomicBool,
    pub pause: PauseSwitch,
    /// Last progress reported by each thread, in this measurement.
    threads: Vec<Mutex<ProgressSnapshot>>,
}

impl SharedProgress {
    pub fn new(threads: usize, pause: PauseSwitch) -> Self {
        Self { threads: (0..threads).map(|_| Mutex::default()).collect(), pause, ..Self::default() }
    }

    pub fn update(&self, thread: usize, update: impl FnOnce(&mut ProgressSnapshot)) {
        update(&mut self.threads[thread].lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn total(&self) -> ProgressSnapshot {
        let mut sum = ProgressSnapshot::default();
        for thread in 0..self.threads.len() {
            self.update(thread, |progress| {
                sum.open += progress.open;
                sum.requests += progress.requests;
                sum.errors += progress.errors;
            });
        }
        sum
    }
}

impl Worker {
    /// `core` is the core to pin the thread to, if any.
    pub fn start(self, core: Option<usize>) -> io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name(format!("load-{}", self.thread)).spawn(move || {
            if let Err(error) = self.work(core) {
                self.report(WorkerEvent::Failed(error));
            }
        })
    }

    fn work(&self, core: Option<usize>) -> io::Result<()> {
        if let Some(core) = core {
            let mut set = CpuSet::new();
            if core < CpuSet::MAX_CPU {
                set.set(core);
            }
            sched_setaffinity(None, &set).map_err(|errno| {
                io::Error::new(errno.kind(), format!("cannot pin thread to core {core}: {errno}"))
            })?;
        }
        let runtime = self.runtime.build()?;
        while let wait = until_opening(&self.load)
            && !wait.is_zero()
            && self.tick(ProgressSnapshot::default()).is_continue()
        {
            thread::sleep(wait.min(TICK));
        }
        let mut session = runtime.block_on(async {
            let (references, tick) = (Arc::clone(&self.references), &mut |snapshot| self.tick(snapshot));
            let share = Share::new(&self.load, self.thread);
            Session::open(self.load.clone(), share, self.origin, references, tick).await
        });
        let errors = session.connect_errors().clone();
        let open = session.open_connections();
        self.shared_progress.update(self.thread, |progress| progress.open = open);
        self.report(WorkerEvent::Opened { driver: runtime.driver(), errors });
        for (index, request) in self.request_queue.iter().enumerate() {
            if index == 0 {
                session.start_ramp(request.start_ns);
            }
            let result = runtime.block_on(self.run_measurement(&mut session, &request));
            self.report(WorkerEvent::Done(Box::new(result)));
        }
        runtime.block_on(session.close());
        Ok(())
    }

    async fn run_measurement(
        &self,
        session: &mut Session,
        request: &MeasurementRequest,
    ) -> MeasurementResult {
        let (usage, last_sample) = (ThreadUsage::default(), ThreadSample::take());
        let mut observer = WorkerObserver { worker: self, requests: 0, errors: 0, usage, last_sample };
        let measured = session.run_measurement(request, &mut observer).await;
        let interval =
            observer.with_cpu_usage(measured.interval, measured.pacing_ns, measured.before_deadline);
        let shared = &session.shared;
        MeasurementResult {
            final_interval: interval,
            throughput: measured.throughput,
            requests_by_connection: session.requests_by_connection(),
            opened: session.connections.iter().filter(|connection| connection.was_opened).count(),
            open: session.open_connections(),
            reopened: shared.reopened.take(),
            handshakes: shared.handshakes.take(),
            schedule_error: shared.counters.schedule_error.replace(latency_histogram()),
            usage: observer.usage,
        }
    }

    fn report(&self, event: WorkerEvent) {
        // Fails if the receiver has been dropped. No report is needed then.
        self.reports.send(WorkerReport { thread: self.thread, event }).ok();
    }

    fn tick(&self, snapshot: ProgressSnapshot) -> ControlFlow<()> {
        self.shared_progress.update(self.thread, |progress| *progress = snapshot);
        let is_stopped = self.shared_progress.stop.load(Ordering::Relaxed);
        if is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct WorkerObserver<'a> {
    worker: &'a Worker,
    /// Requests and errors in the completed intervals.
    requests: u64,
    errors: u64,
    usage: ThreadUsage,
    last_sample: ThreadSample,
}

/// Clock values of the calling thread.
struct ThreadSample {
    at: Instant,
    cpu_ns: u64,
    /// Time that the thread has waited for a core; 0 if the kernel does not report it.
    delayed_ns: u64,
}

impl ThreadSample {
    fn take() -> Self {
        let scheduling = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let delayed_ns = scheduling.split_whitespace().nth(1).and_then(|column| column.parse().ok());
        Self {
            at: Instant::now(),
            cpu_ns: Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).map_or(0, nanoseconds),
            delayed_ns: delayed_ns.unwrap_or(0),
        }
    }
}

impl WorkerObserver<'_> {
    /// Sets the CPU time of the interval. If `counts` is set, also adds that time to the usage of the thread.
    fn with_cpu_usage(&mut self, interval: Interval, pacing_ns: u64, counts: bool) -> Interval {
        let last = std::mem::replace(&mut self.last_sample, ThreadSample::take());
        let load_cpu_ns = self.last_sample.cpu_ns.saturating_sub(last.cpu_ns);
        if counts {
            self.usage.add(&ThreadUsage {
                // Can differ from the interval length: the final interval ends with the last reply or error.
                elapsed_ns: nanoseconds(self.last_sample.at - last.at),
                cpu_ns: load_cpu_ns,
                delayed_ns: self.last_sample.delayed_ns.saturating_sub(last.delayed_ns),
                pacing_ns,
            });
        }
        Interval { load_cpu_ns, ..interval }
    }
}

impl Observer for WorkerObserver<'_> {
    fn tick(&mut self, ProgressSnapshot { open, requests, errors }: ProgressSnapshot) -> ControlFlow<()> {
        let (requests, errors) = (self.requests + requests, self.errors + errors);
        self.worker.tick(ProgressSnapshot { open, requests, errors })
    }

    fn is_paused(&self) -> bool {
        self.worker.shared_progress.pause.is_paused()
    }

    fn warmed_up(&mut self, warm_up: Interval) {
        self.worker.report(WorkerEvent::WarmedUp(warm_up.counts.errors));
        self.last_sample = ThreadSample::take();
    }

    fn interval(&mut self, index: u64, interval: Interval, pacing_ns: u64) {
        self.requests += interval.requests;
        self.errors += interval.counts.errors.total();
        let interval = self.with_cpu_usage(interval, pacing_ns, true);
        self.worker.report(WorkerEvent::Interval(index, Box::new(interval)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_percent_includes_waiting_for_core_and_excludes_pacing() {
        for (elapsed_ns, cpu_ns, delayed_ns, pacing_ns, percent) in [
            (1000, 0, 0, 0, 0.0),
            (1000, 250, 0, 0, 25.0),
            (1000, 0, 400, 0, 40.0),
            (1000, 500, 250, 0, 75.0),
            // The thread polled the clock for half of the time that it ran or waited for its core.
            (1000, 900, 100, 500, 50.0),
            // The pacing time can exceed the CPU time because the clocks are not read at the same time.
            (1000, 100, 0, 101, 0.0),
            (1000, 999, 1, 0, 100.0),
            // The thread waited for its core between the reads of the clocks.
            (1000, 600, 2000, 0, 100.0),
            (1000, 600, 2000, 250, 75.0),
            (0, 0, 0, 0, 0.0),
        ] {
            let usage = ThreadUsage { elapsed_ns, cpu_ns, delayed_ns, pacing_ns };
            assert!((usage.busy_percent() - percent).abs() < 1e-9, "{usage:?}: {}", usage.busy_percent());
        }
    }
}
