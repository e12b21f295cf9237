//! Executes a complete load run on its worker threads.
//!
//! ```text
//!   run ── requests ──►  worker 0  runtime, session      the calling thread samples the server and the machine,
//!    ▲  ── requests ──►  worker 1  runtime, session      combines the intervals and reports progress
//!    └──── reports ────────┘
//! ```

mod results;

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use self::results::Outcome;
use self::results::{Results, Totals};
use crate::engine::identity::new_identity;
use crate::engine::measurement::MeasurementRequest;
use crate::engine::pause::PauseSwitch;
use crate::engine::series::{Sampler, Series};
use crate::engine::shared::ProgressSnapshot;
use crate::engine::start_time::{self, ClockStart, MAX_START_DELAY, until, until_opening};
use crate::engine::worker::{SharedProgress, ThreadUsage, Worker, WorkerEvent, WorkerReport};
use crate::model::config::{LoadConfig, Mode};
use crate::model::interval::Interval;
use crate::model::report::{Pause, Step};
use crate::model::shard::RunIdentity;
use crate::system::nanoseconds;
use crate::wire::http::references;

const TICK: Duration = Duration::from_millis(100);

/// Time between the request to the threads and the start of an open loop, so that all threads are ready in time.
const START_LEAD: Duration = Duration::from_millis(2);

/// Phase of a load run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The load waits for its start time, before or after the connections are opened.
    Waiting,
    /// Connections are being opened.
    Connecting,
    /// The warm-up before the measurement, which is not part of the results.
    WarmUp,
    /// The measurement, whose results are recorded.
    Measuring,
}

/// Progress of a load run, reported about ten times per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Current phase.
    pub phase: Phase,
    /// Time since the start of the phase.
    pub elapsed: Duration,
    /// Planned or maximum duration of the phase.
    pub planned: Duration,
    /// Open loop: requests offered per second.
    pub offered_per_second: Option<u64>,
    /// Number of open connections.
    pub connections: usize,
    /// Requests answered in this phase.
    pub requests: u64,
    /// Errors in this phase.
    pub errors: u64,
}

/// An event of a running load.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Progress of the load.
    Progress(&'a Progress),
    /// Start of the measurement, which is the origin of interval times.
    Began {
        /// Start time, in nanoseconds since the Unix epoch.
        unix_ns: u64,
        /// Identity of the run.
        run: &'a RunIdentity,
    },
    /// An interval is complete on all threads.
    Interval(&'a Interval),
    /// A step of a sweep is complete.
    Step(&'a Step),
}

/// Executes a load run. If `on_event` returns `Break`, the run stops within a second.
///
/// Starts the worker threads, each with a runtime built by `runtime`, and waits for them. `on_event` is called on the
/// calling thread. The load ends early if no connection is left. Returns `Ok` even if the server is down, stalls or
/// sends wrong replies: use [`Report::is_success`](crate::Report::is_success) to check for this.
///
/// # Errors
/// Returns `InvalidInput` if [`LoadConfig::validate`] fails, or if [`LoadConfig::start_at`] is more than a week in the
/// future or has passed more than one second ago, at the call or when the connections are open. Returns an error if the
/// server process cannot be inspected at the start, or if a thread cannot be started, pinned to its core or given a
/// runtime.
pub fn run(
    load: &LoadConfig,
    runtime: &anello::RuntimeBuilder,
    on_event: impl FnMut(Event<'_>) -> ControlFlow<()>,
) -> io::Result<Outcome> {
    run_with_pause(load, runtime, &PauseSwitch::default(), on_event)
}

/// Executes a load run like [`run`]. While `pause` is set, an open loop sends no requests.
///
/// A pause that is shorter than 0.1 s can be missing in the report, unless the switch is set in `on_event`.
///
/// # Errors
/// Returns the errors of [`run`].
pub fn run_with_pause(
    load: &LoadConfig,
    runtime: &anello::RuntimeBuilder,
    pause: &PauseSwitch,
    mut on_event: impl FnMut(Event<'_>) -> ControlFlow<()>,
) -> io::Result<Outcome> {
    execute(load, runtime, pause, &mut on_event)
}

fn execute(
    load: &LoadConfig,
    runtime: &anello::RuntimeBuilder,
    pause: &PauseSwitch,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> io::Result<Outcome> {
    load.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    load.start_at.map_or(Ok(()), start_time::check)?;
    // Created first, so that a wrong process ID is reported before the load runs.
    let sampler = Sampler::new(load.server_pid, load.cores.clone())?;
    let mut run = Run::start(load, runtime, sampler, pause, on_event)?;
    let result = run.connect().and_then(|()| run.wait_for_start()).and_then(|()| run.run_all());
    run.stop_threads();
    result.map(|()| run.results.into_outcome(load, run.identity))
}

struct Run<'a> {
    load: &'a LoadConfig,
    identity: RunIdentity,
    on_event: &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    origin: Instant,
    launched: Instant,
    /// Time from the launch until the connections start to be opened.
    opening_wait: Duration,
    shared_progress: Arc<SharedProgress>,
    request_senders: Vec<Sender<MeasurementRequest>>,
    reports: Receiver<WorkerReport>,
    threads: Vec<JoinHandle<()>>,
    sampler: Sampler,
    /// Start of the measurement, in nanoseconds since `origin`.
    began_ns: Option<u64>,
    /// Start of the current pause.
    paused_since_ns: Option<u64>,
    last_progress: Instant,
    results: Results,
}

/// A measurement that is running on all threads.
struct Measurement {
    request: MeasurementRequest,
    /// End of the warm-up.
    first_ns: u64,
    is_warm: bool,
    remaining_threads: usize,
    series: Series,
    totals: Totals,
}

impl<'a> Run<'a> {
    fn start(
        load: &'a LoadConfig,
        runtime: &anello::RuntimeBuilder,
        sampler: Sampler,
        pause: &PauseSwitch,
        on_event: &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> io::Result<Self> {
        let shared_progress = Arc::new(SharedProgress::new(load.threads, pause.clone()));
        let references = load.http_load().map(references).unwrap_or_default();
        let (now, (report, reports)) = (Instant::now(), channel());
        // The start time can have passed already.
        let origin = load.start_at.and_then(|_| now.checked_sub(2 * MAX_START_DELAY)).unwrap_or(now);
        let (mut request_senders, mut threads) = (Vec::new(), Vec::new());
        for thread in 0..load.threads {
            let (sender, request_queue) = channel();
            let worker = Worker {
                load: load.clone(),
                thread,
                runtime: runtime.clone(),
                origin,
                references: Arc::clone(&references),
                request_queue,
                reports: report.clone(),
                shared_progress: Arc::clone(&shared_progress),
            };
            request_senders.push(sender);
            threads.push(worker.start(load.cores.get(thread).copied())?);
        }
        let results = Results { usage: vec![ThreadUsage::default(); load.threads], ..Results::default() };
        let began_ns = None;
        Ok(Self {
            load,
            identity: new_identity(load),
            on_event,
            origin,
            launched: now,
            opening_wait: until_opening(load),
            shared_progress,
            request_senders,
            reports,
            threads,
            sampler,
            began_ns,
            paused_since_ns: None,
            last_progress: now,
            results,
        })
    }

    /// Waits until every thread has opened its connections.
    fn connect(&mut self) -> io::Result<()> {
        let mut remaining_threads = self.load.threads;
        while remaining_threads > 0 {
            match self.next_report(Duration::ZERO)? {
                Some(WorkerReport { event: WorkerEvent::Opened { driver, errors }, .. }) => {
                    self.results.driver = Some(driver);
                    self.results.errors.merge(errors);
                    remaining_threads -= 1;
                }
                _ => {
                    let opening = self.launched + self.opening_wait;
                    match opening.checked_duration_since(Instant::now()) {
                        Some(_) => self.report_waiting(),
                        None => {
                            let timeout = self.load.connect_timeout;
                            self.report_progress(Phase::Connecting, opening.elapsed(), timeout, None);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until the start time, or until just before it in an open loop.
    fn wait_for_start(&mut self) -> io::Result<()> {
        let Some(start_at) = self.load.start_at else { return Ok(()) };
        let lead = if self.load.mode.open_loop().is_some() { START_LEAD } else { Duration::ZERO };
        while !self.results.interrupted {
            let remaining = until(start_at).saturating_sub(lead);
            if remaining.is_zero() {
                break;
            }
            // Threads have nothing to report in this phase, unless they fail.
            self.next_report(remaining)?;
            if self.last_progress.elapsed() >= TICK {
                self.report_waiting();
            }
        }
        start_time::check(start_at)
    }

    fn report_waiting(&mut self) {
        let elapsed = self.launched.elapsed();
        let planned = elapsed + self.load.start_at.map_or(Duration::ZERO, until);
        self.report_progress(Phase::Waiting, elapsed, planned, None);
    }

    fn run_all(&mut self) -> io::Result<()> {
        let mut warm_up = self.load.warm_up;
        let Mode::Sweep(sweep) = &self.load.mode else {
            let rate = self.load.mode.open_loop().map(|(per_second, ..)| (per_second, 0));
            return self.run_measurement(warm_up, rate).map(drop);
        };
        for (number, per_second) in (0..).zip(sweep.rates()) {
            let totals = self.run_measurement(std::mem::take(&mut warm_up), Some((per_second, number)))?;
            if let Some(step) = self.results.add_step(self.load, per_second, &totals) {
                self.emit(Event::Step(&step));
            }
            if self.results.ends_sweep(&sweep.knee) {
                break;
            }
        }
        Ok(())
    }

    fn run_measurement(&mut self, warm_up: Duration, rate: Option<(u64, u64)>) -> io::Result<Totals> {
        let mut measurement = self.start_measurement(warm_up, rate);
        while measurement.remaining_threads > 0 {
            let (now_ns, due_ns) = (self.now_ns(), measurement.series.sample_due_ns());
            if due_ns.is_some_and(|due_ns| now_ns >= due_ns) {
                measurement.series.add_sample(self.sampler.take_sample());
                measurement.is_warm = true;
                continue;
            }
            let wait = due_ns.map_or(TICK, |due_ns| Duration::from_nanos(due_ns - now_ns));
            if let Some(report) = self.next_report(wait)? {
                self.handle_report(report, &mut measurement);
            }
            if self.last_progress.elapsed() >= TICK {
                self.report_measurement_progress(&measurement);
            }
            self.collect_complete(&mut measurement);
            let is_paused = rate.is_some() && self.shared_progress.pause.is_paused();
            self.record_pause(is_paused, &mut measurement);
        }
        self.record_pause(false, &mut measurement);
        self.collect_complete(&mut measurement);
        self.results.totals.append(&measurement.totals);
        Ok(measurement.totals)
    }

    fn start_measurement(&mut self, warm_up: Duration, rate: Option<(u64, u64)>) -> Measurement {
        let (duration, interval) = (self.load.duration, self.load.interval);
        let clock = ClockStart::now();
        let start_ns = match self.load.start_at.filter(|_| self.began_ns.is_none()) {
            Some(start_at) => clock.to_monotonic_ns(start_at, self.origin),
            None => self.now_ns() + if rate.is_some() { nanoseconds(START_LEAD) } else { 0 },
        };
        let request = MeasurementRequest { start_ns, warm_up, duration, interval: Some(interval), rate };
        for sender in &self.request_senders {
            // A thread that has exited has already reported the reason.
            sender.send(request).ok();
        }
        let first_ns = start_ns.saturating_add(nanoseconds(warm_up));
        let end_ns = first_ns.saturating_add(nanoseconds(duration));
        if self.began_ns.is_none() {
            let unix_ns = clock.to_unix_ns(first_ns, self.origin);
            (self.results.started_unix_ns, self.results.clock) = (unix_ns, Some(clock));
            let run = self.identity.clone();
            self.emit(Event::Began { unix_ns, run: &run });
        }
        let offset_ns = first_ns - *self.began_ns.get_or_insert(first_ns);
        (self.results.requests_by_connection, self.results.opened) = (Vec::new(), 0);
        Measurement {
            request,
            first_ns,
            is_warm: warm_up.is_zero(),
            remaining_threads: self.load.threads,
            series: Series::new(self.load.threads, first_ns, end_ns, nanoseconds(interval), offset_ns),
            totals: Totals::default(),
        }
    }

    fn handle_report(&mut self, report: WorkerReport, measurement: &mut Measurement) {
        let WorkerReport { thread, event } = report;
        match event {
            WorkerEvent::WarmedUp(errors) => self.results.errors.merge(errors),
            WorkerEvent::Interval(number, part) => measurement.series.add_part(thread, number, *part),
            WorkerEvent::Done(result) => {
                measurement.remaining_threads -= 1;
                self.shared_progress.update(thread, |progress| progress.open = result.open);
                let rest = self.results.add_thread(thread, *result, &mut measurement.totals);
                measurement.series.finish_thread(thread, rest);
            }
            WorkerEvent::Opened { .. } | WorkerEvent::Failed(_) => {}
        }
    }

    fn report_measurement_progress(&mut self, measurement: &Measurement) {
        let request = &measurement.request;
        let (phase, from_ns, planned) = match measurement.is_warm {
            true => (Phase::Measuring, measurement.first_ns, request.duration),
            false => (Phase::WarmUp, request.start_ns, request.warm_up),
        };
        let elapsed = Duration::from_nanos(self.now_ns().saturating_sub(from_ns));
        self.report_progress(phase, elapsed, planned, request.rate.map(|(per_second, _)| per_second));
    }

    /// Records the start of a pause or, if `is_paused` is false, the part of the last pause in this measurement.
    fn record_pause(&mut self, is_paused: bool, measurement: &mut Measurement) {
        let now_ns = self.now_ns();
        if is_paused {
            self.paused_since_ns.get_or_insert(now_ns);
            return;
        }
        let Some(since_ns) = self.paused_since_ns.take() else { return };
        let first_ns = measurement.first_ns;
        let end_ns = first_ns.saturating_add(nanoseconds(measurement.request.duration));
        let start_ns = since_ns.max(first_ns);
        let elapsed_ns = now_ns.min(end_ns).saturating_sub(start_ns);
        if elapsed_ns > 0 {
            let start_ns = start_ns - self.began_ns.unwrap_or(first_ns);
            self.results.pauses.push(Pause { start_ns, elapsed_ns });
            measurement.totals.paused_ns += elapsed_ns;
        }
    }

    /// Reports the intervals that are complete on all threads, and adds them to the results.
    fn collect_complete(&mut self, measurement: &mut Measurement) {
        while let Some(interval) = measurement.series.next_complete(|| self.sampler.take_sample()) {
            self.emit(Event::Interval(&interval));
            self.results.records.push((&interval).into());
            measurement.totals.append_interval(&interval);
        }
    }

    /// Returns the next report of a worker thread, or `None` if a progress report is due or `wait` has elapsed.
    fn next_report(&self, wait: Duration) -> io::Result<Option<WorkerReport>> {
        let panicked = || io::Error::other("load thread panicked (see the message above)");
        // A thread exits early only if it fails, and its last report has arrived by then.
        let report = if self.threads.iter().any(JoinHandle::is_finished) {
            self.reports.try_recv().map_err(|_| panicked())?
        } else {
            match self.reports.recv_timeout(if wait.is_zero() { TICK } else { wait.min(TICK) }) {
                Ok(report) => report,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
            }
        };
        match report {
            WorkerReport { event: WorkerEvent::Failed(error), .. } => Err(error),
            report => Ok(Some(report)),
        }
    }

    fn report_progress(
        &mut self,
        phase: Phase,
        elapsed: Duration,
        planned: Duration,
        offered_per_second: Option<u64>,
    ) {
        self.last_progress = Instant::now();
        let ProgressSnapshot { open: connections, requests, errors } = self.shared_progress.total();
        let progress =
            Progress { phase, elapsed, planned, offered_per_second, connections, requests, errors };
        self.emit(Event::Progress(&progress));
    }

    /// Passes an event to the `on_event` callback. Stops all threads if it returns `Break`.
    fn emit(&mut self, event: Event<'_>) {
        if (self.on_event)(event).is_break() {
            self.results.interrupted = true;
            self.shared_progress.stop.store(true, Ordering::Relaxed);
        }
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.origin.elapsed())
    }

    /// Stops all threads and waits for them to exit.
    fn stop_threads(&mut self) {
        self.shared_progress.stop.store(true, Ordering::Relaxed);
        self.request_senders.clear();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message, and `next_report` has returned an error.
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn thread_exit_without_report_ends_load() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let load = LoadConfig { connections: 1, ..LoadConfig::echo(server.local_addr().unwrap(), 1) };
        let sampler = Sampler::new(None, Vec::new()).unwrap();
        let on_event = &mut |_: Event<'_>| ControlFlow::Continue(());
        let (runtime, pause) = (anello::Runtime::builder(), PauseSwitch::default());
        let mut run = Run::start(&load, &runtime, sampler, &pause, on_event).unwrap();
        // The worker thread continues, so the channel stays open.
        let finished_thread = thread::spawn(|| {});
        while !finished_thread.is_finished() {
            thread::yield_now();
        }
        run.threads.push(finished_thread);
        let error = (0..100).find_map(|_| run.next_report(Duration::from_millis(1)).err());
        run.stop_threads();
        assert!(error.is_some_and(|error| error.to_string().contains("panicked")));
    }
}
