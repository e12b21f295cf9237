//! Results of a run, summed over threads and measurements.

use anello::DriverInfo;
use hdrhistogram::Histogram;

use crate::engine::measurement::Throughput;
use crate::engine::start_time::ClockStart;
use crate::engine::worker::{MeasurementResult, ThreadUsage};
use crate::model::config::{Knee, LoadConfig};
use crate::model::errors::Errors;
use crate::model::histogram::{add_histogram, encode, latency_histogram};
use crate::model::interval::{Interval, IntervalRecord, Latency};
use crate::model::report::{
    Histograms, KneeReport, Pause, ProtocolReport, Report, SCHEMA, SCHEMA_VERSION, ServerCost, Spread, Step,
    TlsReport,
};
use crate::model::shard::RunIdentity;
use crate::model::tls::HandshakeSummary;
use crate::system::nanoseconds;

/// Busy percentage above which a thread counts as the bottleneck.
const BUSY_PERCENT_THRESHOLD: f64 = 95.0;

/// Results of a load run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Report of the load.
    pub report: Report,
    /// Totals for the whole measurement, with histograms.
    pub total: Interval,
}

#[derive(Default)]
pub(super) struct Results {
    pub started_unix_ns: u64,
    /// Clocks at the start of the load.
    pub clock: Option<ClockStart>,
    pub driver: Option<DriverInfo>,
    pub interrupted: bool,
    pub errors: Errors,
    pub records: Vec<IntervalRecord>,
    pub steps: Vec<Step>,
    pub knee: Option<KneeReport>,
    pub pauses: Vec<Pause>,
    /// Usage of each thread.
    pub usage: Vec<ThreadUsage>,
    pub totals: Totals,
    /// Requests answered in the last measurement on each connection that is not broken.
    pub requests_by_connection: Vec<u64>,
    pub opened: usize,
    pub reopened: u64,
    pub handshakes: Vec<HandshakeSummary>,
}

/// Sums over all threads, for one or more measurements.
pub(super) struct Totals {
    /// `None` before the first interval.
    interval: Option<Interval>,
    throughput: Throughput,
    schedule_error: Histogram<u64>,
    /// Busy percentage of the busiest thread.
    busy_percent: f64,
    /// Time for which the measured load was paused.
    pub paused_ns: u64,
}

impl Default for Totals {
    fn default() -> Self {
        let (interval, throughput) = (None, Throughput::default());
        Self { interval, throughput, schedule_error: latency_histogram(), busy_percent: 0.0, paused_ns: 0 }
    }
}

impl Totals {
    pub fn append_interval(&mut self, interval: &Interval) {
        match &mut self.interval {
            None => self.interval = Some(interval.clone()),
            Some(total) => total.append(interval),
        }
    }

    /// Appends the next measurement.
    pub fn append(&mut self, next: &Self) {
        next.interval.iter().for_each(|interval| self.append_interval(interval));
        self.throughput.requests += next.throughput.requests;
        self.throughput.elapsed_ns += next.throughput.elapsed_ns;
        add_histogram(&mut self.schedule_error, &next.schedule_error);
        self.paused_ns += next.paused_ns;
    }
}

impl Results {
    /// Adds the results of a thread. Returns its last interval.
    pub fn add_thread(&mut self, thread: usize, result: MeasurementResult, totals: &mut Totals) -> Interval {
        self.requests_by_connection.extend(result.requests_by_connection);
        self.opened += result.opened;
        self.reopened += result.reopened;
        for summary in result.handshakes {
            HandshakeSummary::add(&mut self.handshakes, summary);
        }
        self.usage[thread].add(&result.usage);
        add_histogram(&mut totals.schedule_error, &result.schedule_error);
        totals.busy_percent = totals.busy_percent.max(result.usage.busy_percent());
        totals.throughput.requests += result.throughput.requests;
        totals.throughput.elapsed_ns = totals.throughput.elapsed_ns.max(result.throughput.elapsed_ns);
        result.final_interval
    }

    /// Adds the results of a step of a sweep. Returns `None` if nothing was measured.
    pub fn add_step(&mut self, load: &LoadConfig, per_second: u64, totals: &Totals) -> Option<Step> {
        let total = totals.interval.as_ref()?;
        let answered_in_time = totals.throughput.requests;
        let seconds = nanoseconds(load.duration).saturating_sub(totals.paused_ns) as f64 / 1e9;
        self.steps.push(Step {
            per_second,
            answered_per_second: answered_in_time as f64 / seconds.max(1e-9),
            answered_in_time,
            total: total.into(),
            schedule_error: Latency::of(&totals.schedule_error),
            load_was_bottleneck: total.requests > 0 && totals.busy_percent > BUSY_PERCENT_THRESHOLD,
        });
        self.steps.last().cloned()
    }

    /// Checks whether the server kept up with the rate of the last step. Returns `true` if the sweep must end.
    pub fn ends_sweep(&mut self, knee: &Knee) -> bool {
        if self.interrupted {
            return true;
        }
        self.knee = self
            .steps
            .last()
            .zip(knee.saturation_reason(&self.steps))
            .map(|(last, why)| KneeReport { step: self.steps.len() - 1, per_second: last.per_second, why });
        // Connections that the server closed without an error are opened again in the next step.
        self.knee.is_some() || self.requests_by_connection.is_empty()
    }

    pub fn into_outcome(mut self, load: &LoadConfig, run: RunIdentity) -> Outcome {
        let total =
            self.totals.interval.unwrap_or_else(|| Interval::empty(0, load.mode.open_loop().is_some()));
        self.errors.merge(total.counts.errors.clone());
        let busy_percent = self.usage.iter().map(ThreadUsage::busy_percent).fold(0.0, f64::max);
        let in_time = self.totals.throughput;
        let throughput = match in_time.requests {
            // If a measurement is shorter than the request latency, no reply arrives in time.
            0 => Throughput { requests: total.requests, elapsed_ns: total.end_ns() },
            _ => in_time,
        };
        let active_ns = throughput.elapsed_ns.saturating_sub(self.totals.paused_ns).max(1);
        let (driver, driver_features) =
            self.driver.map(|driver| (driver.name.to_owned(), driver.features)).unwrap_or_default();
        let report = Report {
            schema: SCHEMA.to_owned(),
            schema_version: SCHEMA_VERSION,
            run,
            clock: self.clock.map(|clock| clock.report(load.start_at)),
            started_unix_ns: self.started_unix_ns,
            target: load.target.to_string(),
            protocol: ProtocolReport::of(&load.protocol),
            mode: load.mode.clone(),
            driver,
            driver_features,
            threads: load.threads,
            cores: load.cores.clone(),
            connections: load.own_connections(),
            all_connections: load.connections,
            connections_opened: self.opened,
            connections_open_at_end: self.requests_by_connection.len(),
            connections_reopened: self.reopened,
            source_addresses: load.effective_source_addresses(),
            tls: TlsReport::of(load, self.handshakes),
            verified: load.verify,
            duration_ns: nanoseconds(load.duration),
            warm_up_ns: nanoseconds(load.warm_up),
            ramp_ns: nanoseconds(load.ramp),
            interrupted: self.interrupted,
            pauses: self.pauses,
            requests: total.requests,
            elapsed_ns: total.end_ns(),
            answered_in_time: in_time.requests,
            in_time_ns: in_time.elapsed_ns,
            requests_per_second: throughput.requests as f64 * 1e9 / active_ns as f64,
            latency: total.quantiles(),
            uncorrected_latency: total.uncorrected_quantiles(),
            offered: total.counts.offered,
            late: total.counts.late,
            unsent: total.counts.unsent,
            abandoned: total.counts.abandoned,
            schedule_error: Latency::of(&self.totals.schedule_error),
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
            histograms: Some(Histograms {
                latency: encode(&total.latency),
                uncorrected: total.uncorrected.as_ref().map(encode),
                schedule_error: total.uncorrected.as_ref().map(|_| encode(&self.totals.schedule_error)),
            }),
            intervals: self.records,
            steps: self.steps,
            knee: self.knee,
        };
        Outcome { report, total }
    }
}
