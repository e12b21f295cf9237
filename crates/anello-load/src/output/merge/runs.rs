//! The runs in the merged reports and logs: whether they are the shards of one load, and what limits the result.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::slice;

use serde::Serialize;

use crate::model::histogram::{add_histogram, decode, latency_histogram};
use crate::model::interval::Latency;
use crate::model::report::Report;
use crate::model::shard::{RunIdentity, Shard};
use crate::output::merge::logs::{NamedLog, totals};

/// Maximum difference of the start times of shards that start together. A larger one is reported.
const MAX_START_DIFFERENCE_NS: u64 = 100_000_000;

/// Maximum correction of the clock during a run. A larger one is reported.
const MAX_CLOCK_STEP_NS: u64 = 10_000_000;

/// Kind of a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProblemKind {
    /// A shard is missing.
    Missing,
    /// A shard ran more than once, or a run is part of several inputs. All of them are part of the sums.
    Duplicate,
    /// The same report or log was given twice. It counts once.
    Repeated,
    /// The runs are not shards of the same load: settings or numbers of shards differ.
    Different,
    /// The shards used different addresses of the server.
    Target,
    /// A shard did not finish: its log has no error counts, and there is no report.
    Unfinished,
    /// A log has fewer requests than the report of its run. The report is used.
    IncompleteLog,
    /// A run was stopped early.
    Interrupted,
    /// The start times of the shards differ.
    StartTime,
    /// The clock of a machine was corrected during the run.
    ClockStep,
    /// A load generator was saturated, or sent requests late.
    Bottleneck,
}

/// Observation that limits the validity of the sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Kind.
    pub kind: ProblemKind,
    /// Human-readable description.
    pub text: String,
}

impl Problem {
    /// Returns `true` if the sums are not those of one complete load.
    pub fn is_error(&self) -> bool {
        use ProblemKind::{Different, Duplicate, Missing, Unfinished};
        matches!(self.kind, Missing | Duplicate | Different | Unfinished)
    }
}

/// A run in the merged reports and logs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// Name of the report or log.
    pub log: String,
    /// Identity of the run.
    #[serde(flatten)]
    pub run: RunIdentity,
    /// Start of the measurement in nanoseconds since the Unix epoch, by the clock of the machine. `None` for a run in a
    /// log with several runs.
    pub started_unix_ns: Option<u64>,
    /// Figures of the run that only its report has.
    #[serde(flatten)]
    pub figures: Option<RunFigures>,
}

/// Figures of a run that only its report has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunFigures {
    /// Address of the server.
    pub target: String,
    /// Number of requests answered.
    pub requests: u64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// Delay of the load relative to its configured start.
    pub start_delay_ns: u64,
    /// Correction of the clock during the run.
    pub clock_step_ns: i64,
    /// Percentage of time that the busiest thread was working or waiting for a core.
    pub load_busy_percent: f64,
    /// `true` if a load generator thread had no spare capacity.
    pub load_was_bottleneck: bool,
    /// Delay that 1 % of the requests exceeded, if it affects the latency.
    pub late_sends_p99_ns: Option<u64>,
}

/// Sums of the figures that are only in reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadTotals {
    /// Connections requested.
    pub connections: u64,
    /// Connections that were opened.
    pub connections_opened: u64,
    /// Requests answered.
    pub requests: u64,
    /// Sum of the rates of the runs.
    pub requests_per_second: f64,
    /// Open loop: requests in the schedule. `None` if a run is a closed loop.
    pub offered: Option<u64>,
    /// Open loop: requests sent more than 1 ms after they were due.
    pub late: u64,
    /// Open loop: requests never sent.
    pub unsent: u64,
    /// Requests cancelled because a run was stopped early.
    pub abandoned: u64,
    /// Open loop: delay between the scheduled time and the send time, for requests whose connection was idle.
    pub schedule_error: Option<Latency>,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// Runs in the merged reports and logs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Runs {
    /// Number of shards of the load. `None` if no run is a shard.
    pub shards: Option<usize>,
    /// Indices of the missing shards, as a list of numbers and ranges such as `3,5-7`. Empty if none is missing.
    pub missing_shards: String,
    /// Difference between the first and the last start of a shard. `None` for fewer than two shards.
    pub start_difference_ns: Option<u64>,
    /// Runs in the order of the inputs. Runs in logs of other tools are missing.
    pub runs: Vec<RunSummary>,
    /// Sums. `None` unless all inputs are reports.
    pub load: Option<LoadTotals>,
    /// Problems, the most serious first.
    pub problems: Vec<Problem>,
}

impl Runs {
    /// Examines the inputs. A log and the report of the same run become one input, with the lines of the log if it is
    /// complete. A report or log that is given twice counts once.
    ///
    /// # Errors
    /// Returns `InvalidData` if a histogram is invalid or overflows a sum.
    pub fn new(logs: &mut Vec<NamedLog>) -> io::Result<Self> {
        let mut runs = Self {
            shards: None,
            missing_shards: String::new(),
            start_difference_ns: None,
            runs: Vec::new(),
            load: None,
            problems: Vec::new(),
        };
        runs.pair(logs)?;
        runs.runs = logs.iter().flat_map(summaries).collect();
        runs.check_repeated_runs();
        runs.check_shards(logs);
        runs.check_start_times();
        for log in logs.iter() {
            runs.check_run(log);
        }
        runs.load = load_totals(logs)?;
        runs.problems.sort_by_key(|problem| !problem.is_error());
        Ok(runs)
    }

    fn report(&mut self, kind: ProblemKind, text: String) {
        self.problems.push(Problem { kind, text });
    }

    /// Combines inputs of the same run.
    fn pair(&mut self, logs: &mut Vec<NamedLog>) -> io::Result<()> {
        let mut by_id: BTreeMap<String, usize> = BTreeMap::new();
        let mut kept: Vec<NamedLog> = Vec::new();
        for log in logs.drain(..) {
            let id = match log.log.runs.as_slice() {
                [run] if !run.id.is_empty() => run.id.clone(),
                _ => {
                    kept.push(log);
                    continue;
                }
            };
            let Some(&index) = by_id.get(&id) else {
                by_id.insert(id, kept.len());
                kept.push(log);
                continue;
            };
            let other = &mut kept[index];
            if log.report.is_some() == other.report.is_some() {
                let text = format!("{} and {} are the same run: it counts once", other.name, log.name);
                self.report(ProblemKind::Repeated, text);
                continue;
            }
            let (report, lines) =
                if log.report.is_some() { (log, other.clone()) } else { (other.clone(), log) };
            *other = if counts(&report)? == counts(&lines)? {
                NamedLog { log: lines.log, ..report }
            } else {
                let text = format!("{} is incomplete: {} is used instead", lines.name, report.name);
                self.report(ProblemKind::IncompleteLog, text);
                report
            };
        }
        *logs = kept;
        Ok(())
    }

    /// Reports runs that are in more than one input, such as in a merged log and in a report.
    fn check_repeated_runs(&mut self) {
        let mut by_id: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| !run.run.id.is_empty()) {
            by_id.entry(&run.run.id).or_default().push(&run.log);
        }
        let repeated = by_id.into_values().filter(|logs| logs.len() > 1);
        let texts: Vec<_> = repeated
            .map(|logs| format!("the same run is in {} and counts each time", logs.join(", ")))
            .collect();
        texts.into_iter().for_each(|text| self.report(ProblemKind::Duplicate, text));
    }

    fn check_shards(&mut self, logs: &[NamedLog]) {
        let shard = |run: &RunSummary| run.run.shard.clone();
        let Some(count) = self.runs.iter().find_map(shard).map(|shard| shard.count) else { return };
        self.shards = Some(count);
        let mut by_index: BTreeMap<usize, Vec<&RunSummary>> = BTreeMap::new();
        let mut different = Vec::new();
        for run in &self.runs {
            match &run.run.shard {
                Some(Shard { index, count: other, .. }) if *other == count && *index < count => {
                    by_index.entry(*index).or_default().push(run);
                }
                Some(shard) => {
                    different.push(format!("{} is shard {shard}, but others are of {count}", run.log));
                }
                None => different.push(format!("{} is not a shard, but others are", run.log)),
            }
        }
        let foreign = logs.iter().filter(|log| log.log.runs.is_empty());
        different.extend(foreign.map(|log| format!("{} is not a shard, but others are", log.name)));
        let present: BTreeSet<usize> = by_index.keys().copied().collect();
        let missing = missing(&present, count);
        let mut duplicates = Vec::new();
        for (index, runs) in by_index.iter().filter(|(_, runs)| runs.len() > 1) {
            // Repeated runs have been reported.
            if runs.iter().any(|run| run.run.id != runs[0].run.id) {
                let names: Vec<_> = runs.iter().map(|run| run.log.as_str()).collect();
                duplicates.push(format!("shard {index} ran {} times: {}", runs.len(), names.join(", ")));
            }
        }
        let settings = self.groups(|run| Some(&run.run.settings));
        if settings.len() > 1 {
            let groups: Vec<_> = settings.into_values().map(|logs| logs.join(", ")).collect();
            different.push(format!("the settings differ: {}", groups.join("; ")));
        }
        let targets = self.groups(|run| Some(&run.figures.as_ref()?.target));
        let groups = targets.iter().map(|(target, logs)| format!("{target} in {}", logs.join(", ")));
        let targets = (targets.len() > 1).then(|| groups.collect::<Vec<_>>().join("; "));
        if !missing.is_empty() {
            let text = format!("of {count} shards, these are missing: {missing}");
            self.report(ProblemKind::Missing, text);
        }
        self.missing_shards = missing;
        duplicates.into_iter().for_each(|text| self.report(ProblemKind::Duplicate, text));
        different.into_iter().for_each(|text| self.report(ProblemKind::Different, text));
        if let Some(groups) = targets {
            self.report(ProblemKind::Target, format!("the addresses of the server differ: {groups}"));
        }
    }

    /// Returns the names of the inputs with each value.
    fn groups<'a>(
        &'a self,
        value: impl Fn(&'a RunSummary) -> Option<&'a String>,
    ) -> BTreeMap<&'a str, Vec<&'a str>> {
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for run in &self.runs {
            value(run).into_iter().for_each(|value| groups.entry(value).or_default().push(&run.log));
        }
        groups
    }

    fn check_start_times(&mut self) {
        let start = |run: &RunSummary| {
            let delay_ns = run.figures.as_ref().map_or(0, |figures| figures.start_delay_ns);
            Some((run.started_unix_ns?.saturating_add(delay_ns), run.log.clone()))
        };
        let shards = self.runs.iter().filter(|run| run.run.shard.is_some());
        let starts: Vec<_> = shards.filter_map(start).collect();
        let (Some(first), Some(last)) = (starts.iter().min(), starts.iter().max()) else { return };
        if starts.len() < 2 {
            return;
        }
        let difference_ns = last.0 - first.0;
        self.start_difference_ns = Some(difference_ns);
        if difference_ns > MAX_START_DIFFERENCE_NS {
            let seconds = difference_ns as f64 / 1e9;
            let text = format!(
                "{} started {seconds:.3} s after {} (use --start-at, and synchronize the clocks of the machines)",
                last.1, first.1
            );
            self.report(ProblemKind::StartTime, text);
        }
    }

    fn check_run(&mut self, log: &NamedLog) {
        let name = &log.name;
        let Some(report) = &log.report else {
            if !log.log.errors.is_complete && log.log.runs.iter().any(|run| run.shard.is_some()) {
                let text = format!("{name} is the log of a run that did not finish");
                self.report(ProblemKind::Unfinished, text);
            }
            return;
        };
        if report.interrupted {
            self.report(ProblemKind::Interrupted, format!("{name} was stopped early"));
        }
        if let Some(clock) =
            report.clock.as_ref().filter(|clock| clock.step_ns.unsigned_abs() > MAX_CLOCK_STEP_NS)
        {
            let seconds = clock.step_ns as f64 / 1e9;
            let text =
                format!("{name}: the clock of the machine was corrected by {seconds:+.3} s during the run");
            self.report(ProblemKind::ClockStep, text);
        }
        if report.load_was_bottleneck {
            let percent = report.load_busy_percent;
            let text = format!("{name}: load generator saturated, busiest thread {percent:.0} % busy");
            self.report(ProblemKind::Bottleneck, text);
        }
        if let Some(p99_ns) = report.late_sends_p99_ns() {
            let ms = p99_ns as f64 / 1e6;
            let text = format!("{name}: load generator sent 1 % of the requests at least {ms:.3} ms late");
            self.report(ProblemKind::Bottleneck, text);
        }
    }
}

/// Returns the number of values of each tag, without tags that have none.
fn counts(log: &NamedLog) -> io::Result<Vec<(Option<String>, u64)>> {
    let sums = totals(slice::from_ref(log))?.into_iter();
    Ok(sums.map(|sum| (sum.tag, sum.total.latency.len())).filter(|&(_, count)| count > 0).collect())
}

/// Returns the runs in an input.
fn summaries(log: &NamedLog) -> Vec<RunSummary> {
    let is_single = log.log.runs.len() == 1;
    let began_ns = if is_single { log.log.began_ns } else { None };
    let report = log.report.as_deref();
    let summary = |run: &RunIdentity| RunSummary {
        log: log.name.clone(),
        run: run.clone(),
        started_unix_ns: report.map(|report| report.started_unix_ns).or(began_ns),
        figures: report.map(RunFigures::of),
    };
    log.log.runs.iter().map(summary).collect()
}

impl RunFigures {
    fn of(report: &Report) -> Self {
        Self {
            target: report.target.clone(),
            requests: report.requests,
            requests_per_second: report.requests_per_second,
            start_delay_ns: report.clock.as_ref().map_or(0, |clock| clock.start_delay_ns),
            clock_step_ns: report.clock.as_ref().map_or(0, |clock| clock.step_ns),
            load_busy_percent: report.load_busy_percent,
            load_was_bottleneck: report.load_was_bottleneck,
            late_sends_p99_ns: report.late_sends_p99_ns(),
        }
    }
}

/// Returns the numbers less than `count` that are not in `present`, as a list of numbers and ranges. `present` has only
/// numbers less than `count`.
fn missing(present: &BTreeSet<usize>, count: usize) -> String {
    let mut gaps = Vec::new();
    let mut next = 0;
    for end in present.iter().copied().chain([count]) {
        match end.saturating_sub(next) {
            0 => {}
            1 => gaps.push(next.to_string()),
            _ => gaps.push(format!("{next}-{}", end - 1)),
        }
        next = next.max(end.saturating_add(1));
    }
    gaps.join(",")
}

fn load_totals(logs: &[NamedLog]) -> io::Result<Option<LoadTotals>> {
    let mut sum = LoadTotals { offered: Some(0), ..LoadTotals::default() };
    let mut schedule_error = latency_histogram();
    for log in logs {
        let Some(report) = &log.report else { return Ok(None) };
        let add = |total: &mut u64, value: u64| *total = total.saturating_add(value);
        add(&mut sum.connections, report.connections as u64);
        add(&mut sum.connections_opened, report.connections_opened as u64);
        add(&mut sum.requests, report.requests);
        sum.requests_per_second += report.requests_per_second;
        sum.offered = sum.offered.zip(report.offered).map(|(sum, offered)| sum.saturating_add(offered));
        add(&mut sum.late, report.late);
        add(&mut sum.unsent, report.unsent);
        add(&mut sum.abandoned, report.abandoned);
        add(&mut sum.sent_bytes, report.sent_bytes);
        add(&mut sum.received_bytes, report.received_bytes);
        if let Some(encoded) = report.histograms.as_ref().and_then(|one| one.schedule_error.as_ref()) {
            let error =
                |problem| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", log.name));
            let histogram = decode(encoded).map_err(error)?;
            let is_countable = schedule_error.len().checked_add(histogram.len()).is_some();
            is_countable
                .then_some(())
                .ok_or("the total number of values exceeds 2^64 - 1".to_owned())
                .map_err(error)?;
            add_histogram(&mut schedule_error, &histogram);
        }
    }
    sum.schedule_error = Latency::of(&schedule_error);
    Ok(Some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_shards_are_numbers_and_ranges() {
        let missing = |present: &[usize], count| missing(&present.iter().copied().collect(), count);
        assert_eq!(missing(&[0, 1, 2], 3), "");
        assert_eq!(missing(&[1], 3), "0,2");
        assert_eq!(missing(&[], 3), "0-2");
        assert_eq!(missing(&[0, 4], 8), "1-3,5-7");
        assert_eq!(missing(&[3], usize::MAX), format!("0-2,4-{}", usize::MAX - 1));
    }
}
