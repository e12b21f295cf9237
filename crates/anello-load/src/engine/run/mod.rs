//! Execution of a complete load: starts the worker threads, opens the connections, warms up, measures and combines the
//! results.
//!
//! ```text
//!   run ── requests ──►  worker 0  runtime, session      the calling thread samples the server and the machine,
//!    ▲  ── requests ──►  worker 1  runtime, session      combines the intervals and reports progress
//!    └──── reports ────────┘
//! ```

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anello::DriverInfo;
use hdrhistogram::Histogram;

use crate::engine::knee;
use crate::engine::measurement::Throughput;
use crate::engine::schedule::Share;
use crate::engine::series::{Sampler, Series};
use crate::engine::worker::{
    MeasurementRequest, MeasurementResult, SharedProgress, ThreadProgress, ThreadUsage, Worker, WorkerEvent,
    WorkerReport,
};
use crate::model::config::{LoadConfig, Mode};
use crate::model::errors::Errors;
use crate::model::interval::Interval;
use crate::model::latency::{Latency, latency_histogram};
use crate::model::record::IntervalRecord;
use crate::model::report::{
    KneeReport, ModeReport, ProtocolReport, Report, SCHEMA, SCHEMA_VERSION, ServerCost, Spread, Step,
    TlsReport,
};
use crate::model::tls::HandshakeSummary;
use crate::system::clock::nanoseconds;
use crate::wire::http::references;

/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(100);

/// A thread that is busy for a larger percentage of its time counts as the bottleneck.
const BUSY_PERCENT_THRESHOLD: f64 = 95.0;

/// Delay between the request for an open loop and its start, so that all threads are ready in time.
const START_DELAY_NS: u64 = 2_000_000;

/// Phase of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections are being opened.
    Connecting,
    /// Load before the measurement, which is not part of the results.
    WarmUp,
    /// Load whose results are recorded.
    Measuring,
}

/// Progress of a load, reported about ten times per second.
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
pub enum Event<'a> {
    /// Progress of the load.
    Progress(&'a Progress),
    /// Start of the measurement, which is the origin of interval times.
    Began {
        /// Start time, in nanoseconds since the Unix epoch.
        unix_ns: u64,
    },
    /// An interval is complete on all threads.
    Interval(&'a Interval),
    /// A step of a sweep is complete.
    Step(&'a Step),
}

/// Results of a load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Report of the load.
    pub report: Report,
    /// Totals of the whole measurement, with histograms.
    pub total: Interval,
}

/// Runs a load to its end. If `on_event` returns `Break`, the load stops within a second.
///
/// Starts the threads of the load, each with a runtime from `runtime`, and waits for them. `on_event` is called with
/// events on the calling thread. The load ends early if no connection is left. Returns `Ok` even if the server is down,
/// stalls or sends wrong replies: [`Report::is_success`] reports this.
///
/// # Errors
/// Returns `InvalidInput` if [`LoadConfig::validate`] fails. Returns an error if the server's process cannot be
/// inspected at the start, or if a thread cannot be started, pinned to its core or given a runtime.
pub fn run(
    load: &LoadConfig,
    runtime: &anello::RuntimeBuilder,
    on_event: impl FnMut(Event<'_>) -> ControlFlow<()>,
) -> io::Result<Outcome> {
    load.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    // Created first, so that a wrong process id is reported before the load runs.
    let sampler = Sampler::new(load.server_pid, load.cores.clone())?;
    let mut run = Run::start(load, runtime, sampler, on_event)?;
    let connected = run.connect();
    let result = connected.and_then(|()| run.run_all());
    run.stop_threads();
    result.map(|()| run.into_outcome())
}

/// State of a running load.
struct Run<'a, W> {
    load: &'a LoadConfig,
    on_event: W,
    origin: Instant,
    shared_progress: Arc<SharedProgress>,
    request_senders: Vec<Sender<MeasurementRequest>>,
    reports: Receiver<WorkerReport>,
    threads: Vec<JoinHandle<()>>,
    sampler: Sampler,
    began_unix_ns: u64,
    /// Start of the measurement, in nanoseconds since `origin`.
    began_ns: Option<u64>,
    driver: Option<DriverInfo>,
    interrupted: bool,
    errors: Errors,
    total: Option<Interval>,
    /// Sum of all measurements.
    throughput: Throughput,
    records: Vec<IntervalRecord>,
    schedule_error: Histogram<u64>,
    usage: Vec<ThreadUsage>,
    requests_by_connection: Vec<u64>,
    opened: usize,
    reopened: u64,
    handshakes: Vec<HandshakeSummary>,
    steps: Vec<Step>,
    knee: Option<KneeReport>,
}

/// Results of one measurement, of all threads.
struct MeasurementTotals {
    total: Option<Interval>,
    throughput: Throughput,
    schedule_error: Histogram<u64>,
    busy_percent: f64,
}

impl<'a, W: FnMut(Event<'_>) -> ControlFlow<()>> Run<'a, W> {
    fn start(
        load: &'a LoadConfig,
        runtime: &anello::RuntimeBuilder,
        sampler: Sampler,
        on_event: W,
    ) -> io::Result<Self> {
        let threads = (0..load.threads).map(|_| ThreadProgress::default()).collect();
        let shared_progress = Arc::new(SharedProgress { threads, ..SharedProgress::default() });
        let references = load.http_load().map(references).unwrap_or_default();
        let (origin, (report, reports)) = (Instant::now(), channel());
        let mut run = Self {
            load,
            on_event,
            origin,
            shared_progress: Arc::clone(&shared_progress),
            request_senders: Vec::new(),
            reports,
            threads: Vec::new(),
            sampler,
            began_unix_ns: 0,
            began_ns: None,
            driver: None,
            interrupted: false,
            errors: Errors::default(),
            total: None,
            throughput: Throughput::default(),
            records: Vec::new(),
            schedule_error: latency_histogram(),
            usage: vec![ThreadUsage::default(); load.threads],
            requests_by_connection: Vec::new(),
            opened: 0,
            reopened: 0,
            handshakes: Vec::new(),
            steps: Vec::new(),
            knee: None,
        };
        for thread in 0..load.threads {
            let (sender, request_queue) = channel();
            let worker = Worker {
                load: load.clone(),
                share: Share { thread, threads: load.threads, connections: load.connections },
                runtime: runtime.clone(),
                origin,
                references: Arc::clone(&references),
                request_queue,
                reports: report.clone(),
                shared_progress: Arc::clone(&shared_progress),
            };
            run.request_senders.push(sender);
            run.threads.push(worker.start(load.cores.get(thread).copied())?);
        }
        Ok(run)
    }

    /// Waits until every thread has opened its connections.
    fn connect(&mut self) -> io::Result<()> {
        let mut remaining_threads = self.load.threads;
        while remaining_threads > 0 {
            match self.next_report(Duration::ZERO)? {
                Some(WorkerReport { event: WorkerEvent::Opened { driver, errors }, .. }) => {
                    self.driver = Some(driver);
                    self.errors.merge(errors);
                    remaining_threads -= 1;
                }
                Some(WorkerReport { event: WorkerEvent::Failed(error), .. }) => return Err(error),
                _ => self.report_progress(Phase::Connecting, Duration::ZERO, self.load.connect_timeout, None),
            }
        }
        Ok(())
    }

    fn run_all(&mut self) -> io::Result<()> {
        match &self.load.mode {
            Mode::Closed { .. } => self.run_measurement(self.load.warm_up, None).map(|_| ()),
            Mode::Open { per_second, .. } => {
                self.run_measurement(self.load.warm_up, Some((*per_second, 0))).map(|_| ())
            }
            Mode::Sweep(sweep) => {
                let mut warm_up = self.load.warm_up;
                for (number, per_second) in (0..).zip(sweep.rates()) {
                    let totals =
                        self.run_measurement(std::mem::take(&mut warm_up), Some((per_second, number)))?;
                    self.record_step(per_second, &totals);
                    let reason =
                        knee::saturation_reason(&sweep.knee, &self.steps).filter(|_| !self.interrupted);
                    let step = self.steps.len().saturating_sub(1);
                    self.knee = reason.map(|why| KneeReport { step, per_second, why });
                    // Connections that the server has closed without an error are opened again in the next step.
                    let is_disconnected = self.requests_by_connection.is_empty();
                    if self.knee.is_some() || self.interrupted || is_disconnected {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    fn record_step(&mut self, per_second: u64, totals: &MeasurementTotals) {
        let Some(total) = &totals.total else { return };
        let seconds = self.load.duration.as_secs_f64().max(1e-9);
        let step = Step {
            per_second,
            answered_per_second: totals.throughput.requests as f64 / seconds,
            answered_in_time: totals.throughput.requests,
            total: total.into(),
            schedule_error: Latency::of(&totals.schedule_error),
            load_was_bottleneck: total.requests > 0 && totals.busy_percent > BUSY_PERCENT_THRESHOLD,
        };
        let flow = (self.on_event)(Event::Step(&step));
        self.apply_control_flow(flow);
        self.steps.push(step);
    }

    /// Runs one measurement on all threads.
    fn run_measurement(
        &mut self,
        warm_up: Duration,
        rate: Option<(u64, u64)>,
    ) -> io::Result<MeasurementTotals> {
        let (load, threads) = (self.load, self.load.threads);
        let start_ns = self.now_ns() + if rate.is_some() { START_DELAY_NS } else { 0 };
        let request = MeasurementRequest { start_ns, warm_up, duration: load.duration, rate };
        for sender in &self.request_senders {
            // A thread that has exited has reported the reason.
            sender.send(request).ok();
        }
        let first_ns = start_ns.saturating_add(nanoseconds(warm_up));
        let end_ns = first_ns.saturating_add(nanoseconds(load.duration));
        let began_ns = self.record_start(first_ns);
        let interval_ns = nanoseconds(load.interval);
        let mut series = Series::new(threads, first_ns, end_ns, interval_ns, first_ns - began_ns);
        let mut totals = MeasurementTotals {
            total: None,
            throughput: Throughput::default(),
            schedule_error: latency_histogram(),
            busy_percent: 0.0,
        };
        (self.requests_by_connection, self.opened) = (Vec::new(), 0);
        let (mut remaining_threads, mut is_warm) = (threads, warm_up.is_zero());
        while remaining_threads > 0 {
            let now_ns = self.now_ns();
            if series.sample_due_ns().is_some_and(|due_ns| now_ns >= due_ns) {
                series.add_sample(self.sampler.take_sample());
                is_warm = true;
                continue;
            }
            let wait = series.sample_due_ns().map_or(TICK, |due_ns| Duration::from_nanos(due_ns - now_ns));
            match self.next_report(wait)? {
                Some(WorkerReport { event: WorkerEvent::Failed(error), .. }) => return Err(error),
                Some(WorkerReport { event: WorkerEvent::WarmedUp(errors), .. }) => self.errors.merge(errors),
                Some(WorkerReport { thread, event: WorkerEvent::Interval(number, part) }) => {
                    series.add_part(thread, number, *part);
                }
                Some(WorkerReport { thread, event: WorkerEvent::Done(result) }) => {
                    remaining_threads -= 1;
                    self.record_result(thread, *result, &mut series, &mut totals);
                }
                Some(WorkerReport { event: WorkerEvent::Opened { .. }, .. }) => {}
                None => {
                    let since = |ns: u64| Duration::from_nanos(self.now_ns().saturating_sub(ns));
                    match is_warm {
                        true => {
                            let (elapsed, rate) = (since(first_ns), rate.map(|(rate, _)| rate));
                            self.report_progress(Phase::Measuring, elapsed, load.duration, rate);
                        }
                        false => {
                            let (elapsed, rate) = (since(start_ns), rate.map(|(rate, _)| rate));
                            self.report_progress(Phase::WarmUp, elapsed, warm_up, rate);
                        }
                    }
                }
            }
            self.collect_complete(&mut series, &mut totals);
        }
        self.collect_complete(&mut series, &mut totals);
        self.throughput.requests += totals.throughput.requests;
        self.throughput.elapsed_ns += totals.throughput.elapsed_ns;
        Ok(totals)
    }

    /// Records the start of the measurement unless it has started before. Returns its start.
    fn record_start(&mut self, first_ns: u64) -> u64 {
        if let Some(began_ns) = self.began_ns {
            return began_ns;
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.began_unix_ns = nanoseconds(unix).saturating_add(first_ns.saturating_sub(self.now_ns()));
        self.began_ns = Some(first_ns);
        let flow = (self.on_event)(Event::Began { unix_ns: self.began_unix_ns });
        self.apply_control_flow(flow);
        first_ns
    }

    fn record_result(
        &mut self,
        thread: usize,
        result: MeasurementResult,
        series: &mut Series,
        totals: &mut MeasurementTotals,
    ) {
        self.requests_by_connection.extend(result.requests_by_connection);
        self.opened += result.opened;
        self.reopened += result.reopened;
        HandshakeSummary::add(&mut self.handshakes, result.handshakes);
        self.shared_progress.threads[thread].open.store(result.open, Ordering::Relaxed);
        // Both histograms have the same layout.
        if totals.schedule_error.add(&result.schedule_error).is_err()
            || self.schedule_error.add(&result.schedule_error).is_err()
        {
            tracing::error!("cannot add histograms: layouts differ");
        }
        totals.busy_percent = totals.busy_percent.max(result.usage.busy_percent());
        let usage = &mut self.usage[thread];
        usage.elapsed_ns += result.usage.elapsed_ns;
        usage.cpu_ns += result.usage.cpu_ns;
        usage.delayed_ns += result.usage.delayed_ns;
        usage.pacing_ns += result.usage.pacing_ns;
        totals.throughput.requests += result.throughput.requests;
        totals.throughput.elapsed_ns = totals.throughput.elapsed_ns.max(result.throughput.elapsed_ns);
        series.finish_thread(thread, result.final_interval);
    }

    fn collect_complete(&mut self, series: &mut Series, totals: &mut MeasurementTotals) {
        while let Some(interval) = series.next_complete(|| self.sampler.take_sample()) {
            let flow = (self.on_event)(Event::Interval(&interval));
            self.apply_control_flow(flow);
            self.records.push((&interval).into());
            for total in [&mut self.total, &mut totals.total] {
                match total {
                    None => *total = Some(interval.clone()),
                    Some(total) => total.append(&interval),
                }
            }
        }
    }

    /// Returns the next report of a worker thread, or `None` if progress is due or `wait` has elapsed.
    fn next_report(&self, wait: Duration) -> io::Result<Option<WorkerReport>> {
        let panicked = || io::Error::other("load thread panicked (see the message above)");
        // A thread exits early only if it fails, and its last report has arrived by then.
        if self.threads.iter().any(JoinHandle::is_finished) {
            return self.reports.try_recv().map(Some).map_err(|_| panicked());
        }
        let wait = if wait.is_zero() { TICK } else { wait.min(TICK) };
        match self.reports.recv_timeout(wait) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(panicked()),
        }
    }

    fn report_progress(
        &mut self,
        phase: Phase,
        elapsed: Duration,
        planned: Duration,
        offered_per_second: Option<u64>,
    ) {
        let elapsed = if phase == Phase::Connecting { self.origin.elapsed() } else { elapsed };
        let sum = |count: &dyn Fn(&ThreadProgress) -> u64| {
            self.shared_progress.threads.iter().map(count).sum::<u64>()
        };
        let progress = Progress {
            phase,
            elapsed,
            planned,
            offered_per_second,
            connections: self.connections(),
            requests: sum(&|thread_progress| thread_progress.requests.load(Ordering::Relaxed)),
            errors: sum(&|thread_progress| thread_progress.errors.load(Ordering::Relaxed)),
        };
        let flow = (self.on_event)(Event::Progress(&progress));
        self.apply_control_flow(flow);
    }

    fn connections(&self) -> usize {
        self.shared_progress
            .threads
            .iter()
            .map(|thread_progress| thread_progress.open.load(Ordering::Relaxed))
            .sum()
    }

    /// Stops all threads if `flow` is `Break`.
    fn apply_control_flow(&mut self, flow: ControlFlow<()>) {
        if flow.is_break() {
            self.interrupted = true;
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

    fn into_outcome(mut self) -> Outcome {
        let open_loop = !matches!(self.load.mode, Mode::Closed { .. });
        let total = self.total.take().unwrap_or_else(|| Interval::empty(0, open_loop));
        let load = self.load;
        self.errors.merge(total.counts.errors.clone());
        let busy_percent = self.usage.iter().map(ThreadUsage::busy_percent).fold(0.0, f64::max);
        let driver = self.driver.take();
        let elapsed_ns = total.end_ns();
        // A measurement that is shorter than a request has no replies before its deadline.
        let throughput = Some(self.throughput).filter(|throughput| throughput.requests > 0);
        let throughput = throughput.unwrap_or(Throughput { requests: total.requests, elapsed_ns });
        let report = Report {
            schema: SCHEMA.to_owned(),
            schema_version: SCHEMA_VERSION,
            began_unix_ns: self.began_unix_ns,
            target: load.target.to_string(),
            protocol: ProtocolReport::of(&load.protocol),
            mode: ModeReport::of(&load.mode),
            driver: driver.as_ref().map_or("", |driver| driver.name).to_owned(),
            driver_features: driver.map_or_else(String::new, |driver| driver.features),
            threads: load.threads,
            cores: load.cores.clone(),
            connections: load.connections,
            connections_opened: self.opened,
            connections_left: self.requests_by_connection.len(),
            connections_reopened: self.reopened,
            sources: load.effective_source_addresses(),
            tls: TlsReport::of(load, self.handshakes),
            verified: load.verify,
            duration_ns: nanoseconds(load.duration),
            warm_up_ns: nanoseconds(load.warm_up),
            ramp_ns: nanoseconds(load.ramp),
            interrupted: self.interrupted,
            requests: total.requests,
            elapsed_ns,
            answered_in_time: self.throughput.requests,
            in_time_ns: self.throughput.elapsed_ns,
            requests_per_second: throughput.requests as f64 * 1e9 / throughput.elapsed_ns.max(1) as f64,
            latency: total.quantiles(),
            uncorrected_latency: total.uncorrected_quantiles(),
            offered: total.counts.offered,
            late: total.counts.late,
            unsent: total.counts.unsent,
            abandoned: total.counts.abandoned,
            schedule_error: Latency::of(&self.schedule_error),
            sent_bytes: total.counts.sent_bytes,
            received_bytes: total.counts.received_bytes,
            requests_per_connection: Spread::of(&self.requests_by_connection),
            errors: self.errors,
            server: load.server_pid.and_then(|pid| ServerCost::of(pid, &total)),
            load_cpu_ns: total.load_cpu_ns,
            load_cpu_ns_per_request: total.load_cpu_ns_per_request(),
            load_pacing_ns: self.usage.iter().map(|usage| usage.pacing_ns).sum(),
            load_busy_percent: busy_percent,
            load_was_bottleneck: (total.requests > 0 && busy_percent > BUSY_PERCENT_THRESHOLD)
                || self.steps.iter().any(|step| step.load_was_bottleneck),
            stolen_ns: total.stolen_ns,
            intervals: self.records,
            steps: self.steps,
            knee: self.knee,
        };
        Outcome { report, total }
    }
}

#[cfg(test)]
mod tests;
