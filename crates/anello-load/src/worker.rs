//! One thread of a load: a runtime, a session on it, and a mailbox for what is to be done and what was seen.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anello::DriverInfo;
use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::config::LoadConfig;
use crate::errors::Errors;
use crate::http::References;
use crate::interval::Interval;
use crate::measurement::{Observer, Throughput};
use crate::schedule::Share;
use crate::session::{Session, nanoseconds};
use crate::shared::ProgressSnapshot;
use crate::tls::HandshakeSummary;

/// What a thread begins with.
pub(crate) struct Worker {
    pub load: LoadConfig,
    pub share: Share,
    pub runtime: anello::RuntimeBuilder,
    pub origin: Instant,
    pub references: References,
    pub request_queue: Receiver<MeasurementRequest>,
    pub reports: Sender<WorkerReport>,
    pub shared_progress: Arc<SharedProgress>,
}

/// A stretch of load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasurementRequest {
    pub start_ns: u64,
    pub warm_up: Duration,
    pub duration: Duration,
    /// Open loop: requests per second of all threads, and the number of the stretch.
    pub rate: Option<(u64, u64)>,
}

/// From a thread, with its number.
pub(crate) struct WorkerReport {
    pub thread: usize,
    pub event: WorkerEvent,
}

pub(crate) enum WorkerEvent {
    /// Connections are open, as many as could be.
    Opened { driver: DriverInfo, errors: Errors },
    /// It cannot begin.
    Failed(io::Error),
    /// What went wrong before anything was counted.
    WarmedUp(Errors),
    /// An interval of this number.
    Interval(u64, Box<Interval>),
    /// The order is carried out.
    Done(Box<MeasurementResult>),
}

/// The end of a stretch.
pub(crate) struct MeasurementResult {
    /// Since the last interval.
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

/// What a thread did with its time in the intervals of a stretch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadUsage {
    pub elapsed_ns: u64,
    pub cpu_ns: u64,
    /// It could have run, but others had its core.
    pub delayed_ns: u64,
    /// It was awake only to watch the clock, on its core or waiting for it.
    pub pacing_ns: u64,
}

impl ThreadUsage {
    /// The part of its time in which it could not have done more, in percent.
    pub fn busy_percent(&self) -> f64 {
        let busy_ns = (self.cpu_ns + self.delayed_ns).saturating_sub(self.pacing_ns);
        busy_ns as f64 * 100.0 / self.elapsed_ns.max(1) as f64
    }
}

/// What all threads and who started them see at any time.
#[derive(Debug, Default)]
pub(crate) struct SharedProgress {
    pub stop: AtomicBool,
    pub threads: Vec<ThreadProgress>,
}

/// What a thread has last told of itself.
#[derive(Debug, Default)]
pub(crate) struct ThreadProgress {
    pub open: AtomicUsize,
    /// In this stretch.
    pub requests: AtomicU64,
    pub errors: AtomicU64,
}

impl Worker {
    /// Starts the thread, on this core if there is one.
    pub fn start(self, core: Option<usize>) -> io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name(format!("load-{}", self.share.thread)).spawn(move || {
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
                let error = io::Error::from(errno);
                io::Error::new(error.kind(), format!("core {core} may not be used by this process: {error}"))
            })?;
        }
        let runtime = self.runtime.build()?;
        let mut session = runtime.block_on(async {
            let mut tick = |snapshot| self.tick(snapshot, 0, 0);
            let references = Arc::clone(&self.references);
            Session::open(self.load.clone(), self.share, self.origin, references, &mut tick).await
        });
        let errors = session.connect_errors().clone();
        self.thread_progress().open.store(session.open_connections(), Ordering::Relaxed);
        self.report(WorkerEvent::Opened { driver: runtime.driver(), errors });
        let mut has_ramped = false;
        while let Ok(request) = self.request_queue.recv() {
            if !std::mem::replace(&mut has_ramped, true) {
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
        let interval = Some(self.load.interval);
        let plan = session.measurement_plan(
            request.start_ns,
            request.warm_up,
            request.duration,
            interval,
            request.rate,
        );
        let mut observer = WorkerObserver::new(self);
        let measured = session.run_measurement(plan, &mut observer).await;
        let interval =
            observer.with_cpu_usage(measured.interval, measured.pacing_ns, measured.before_deadline);
        let shared = session.shared();
        let empty_histogram = crate::latency_histogram();
        MeasurementResult {
            final_interval: interval,
            throughput: measured.throughput,
            requests_by_connection: session.requests_by_connection(),
            opened: session.opened_connections(),
            open: session.open_connections(),
            reopened: shared.reopened.take(),
            handshakes: shared.handshakes.take().handshakes(),
            schedule_error: shared.counters.schedule_error.replace(empty_histogram),
            usage: observer.usage,
        }
    }

    fn thread_progress(&self) -> &ThreadProgress {
        &self.shared_progress.threads[self.share.thread]
    }

    fn report(&self, event: WorkerEvent) {
        // Nobody listens when the load was given up; then there is nothing to tell.
        self.reports.send(WorkerReport { thread: self.share.thread, event }).ok();
    }

    /// Shows how things stand; `requests` and `errors` came before.
    fn tick(&self, snapshot: ProgressSnapshot, requests: u64, errors: u64) -> ControlFlow<()> {
        let thread_progress = self.thread_progress();
        thread_progress.open.store(snapshot.open, Ordering::Relaxed);
        thread_progress.requests.store(requests + snapshot.requests, Ordering::Relaxed);
        thread_progress.errors.store(errors + snapshot.errors, Ordering::Relaxed);
        if self.shared_progress.stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Watches a stretch from within its thread.
struct WorkerObserver<'a> {
    worker: &'a Worker,
    requests: u64,
    errors: u64,
    usage: ThreadUsage,
    /// As last looked at, and when that was.
    cpu_ns: u64,
    delayed_ns: u64,
    sampled_at: Instant,
}

impl<'a> WorkerObserver<'a> {
    fn new(worker: &'a Worker) -> Self {
        Self {
            worker,
            requests: 0,
            errors: 0,
            usage: ThreadUsage::default(),
            sampled_at: Instant::now(),
            cpu_ns: thread_cpu_ns(),
            delayed_ns: thread_delayed_ns(),
        }
    }
}

impl WorkerObserver<'_> {
    /// Adds what the thread has spent since the last interval; `counts` says whether that is a part of its usage.
    fn with_cpu_usage(&mut self, interval: Interval, pacing_ns: u64, counts: bool) -> Interval {
        let (cpu_ns, delayed_ns) = (thread_cpu_ns(), thread_delayed_ns());
        // Not the interval's, which ends with the last reply or trouble: the thread may have worked on.
        let elapsed = std::mem::replace(&mut self.sampled_at, Instant::now()).elapsed();
        let load_cpu_ns = cpu_ns.saturating_sub(self.cpu_ns);
        if counts {
            self.usage.elapsed_ns += nanoseconds(elapsed);
            self.usage.cpu_ns += load_cpu_ns;
            self.usage.delayed_ns += delayed_ns.saturating_sub(self.delayed_ns);
            self.usage.pacing_ns += pacing_ns;
        }
        (self.cpu_ns, self.delayed_ns) = (cpu_ns, delayed_ns);
        Interval { load_cpu_ns, ..interval }
    }
}

impl Observer for WorkerObserver<'_> {
    fn tick(&mut self, snapshot: ProgressSnapshot) -> ControlFlow<()> {
        self.worker.tick(snapshot, self.requests, self.errors)
    }

    fn warmed_up(&mut self, warm_up: Interval, _: u64) {
        self.worker.report(WorkerEvent::WarmedUp(warm_up.errors));
        self.sampled_at = Instant::now();
        (self.cpu_ns, self.delayed_ns) = (thread_cpu_ns(), thread_delayed_ns());
    }

    fn interval(&mut self, index: u64, interval: Interval, pacing_ns: u64) {
        self.requests += interval.requests;
        self.errors += interval.errors.total();
        let interval = self.with_cpu_usage(interval, pacing_ns, true);
        self.worker.report(WorkerEvent::Interval(index, Box::new(interval)));
    }
}

/// CPU time of this thread, exact at any moment.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// How long this thread has waited for a core so far; 0 where the kernel does not tell.
fn thread_delayed_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|column| column.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_busy_while_it_works_or_waits_for_a_core_and_not_while_it_watches_the_clock() {
        let usage = |cpu_ns, delayed_ns, pacing_ns| ThreadUsage {
            elapsed_ns: 1_000_000_000,
            cpu_ns,
            delayed_ns,
            pacing_ns,
        };
        for (usage, percent) in [
            (usage(0, 0, 0), 0.0),
            (usage(250_000_000, 0, 0), 25.0),
            (usage(0, 400_000_000, 0), 40.0),
            (usage(500_000_000, 250_000_000, 0), 75.0),
            // Half a second of what it was awake for, on its core or waiting for it, was for the clock alone.
            (usage(900_000_000, 100_000_000, 500_000_000), 50.0),
            // The clocks are not read at the same moment.
            (usage(100_000_000, 0, 100_000_001), 0.0),
            (usage(999_000_000, 1_000_000, 0), 100.0),
            (ThreadUsage::default(), 0.0),
        ] {
            assert!((usage.busy_percent() - percent).abs() < 1e-9, "{usage:?}: {}", usage.busy_percent());
        }
    }
}
