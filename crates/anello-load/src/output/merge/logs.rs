//! Sums of the histograms and errors of logs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use hdrhistogram::Histogram;

use crate::model::histogram::add_histogram;
use crate::model::report::{Report, SCHEMA};
use crate::output::formats::hdr_log::{
    HdrLog, HdrLogWriter, LogError, LogRecord, MAX_TIME_NS, ReportedErrors, UNCORRECTED,
};

const SECOND_NS: u128 = 1_000_000_000;

/// A log, with a name for error messages.
#[derive(Clone, Debug)]
pub struct NamedLog {
    /// Name shown in error messages, usually the path of the file.
    pub name: String,
    /// Parsed content of the log.
    pub log: HdrLog,
    /// Report of the run in the log, if known.
    pub report: Option<Box<Report>>,
}

/// Latencies, in nanoseconds, that were recorded during a period of time.
#[derive(Clone, Debug)]
pub struct Sum {
    /// Start of the earliest line, in nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// End of the latest line, in nanoseconds since the Unix epoch.
    pub end_ns: u64,
    /// Latencies of all lines.
    pub latency: Histogram<u64>,
}

impl Sum {
    /// Returns the number of values per second, or 0 if the period is empty.
    pub fn per_second(&self) -> f64 {
        match self.end_ns - self.start_ns {
            0 => 0.0,
            elapsed_ns => self.latency.len() as f64 * 1e9 / elapsed_ns as f64,
        }
    }

    /// Adds another sum, bucket by bucket. Returns an error and leaves `self` unchanged if the total number of values
    /// exceeds `u64::MAX`.
    pub fn add(&mut self, other: &Self) -> Result<(), &'static str> {
        let total = self.latency.len().checked_add(other.latency.len());
        total.ok_or("the total number of values exceeds 2^64 - 1")?;
        self.start_ns = self.start_ns.min(other.start_ns);
        self.end_ns = self.end_ns.max(other.end_ns);
        add_histogram(&mut self.latency, &other.latency);
        Ok(())
    }
}

/// Sums for one tag: per log and in total.
#[derive(Clone, Debug)]
pub struct TagSum {
    /// Tag of the lines, or `None` for lines without a tag.
    pub tag: Option<String>,
    /// Index and sum of each log that contains the tag.
    pub by_log: Vec<(usize, Sum)>,
    /// Sum over all logs.
    pub total: Sum,
}

/// Computes the totals over whole logs, sorted by tag. Lines without a tag come first. Returns `InvalidData` for the
/// first line that cannot be decoded or that overflows a sum.
pub fn totals(logs: &[NamedLog]) -> io::Result<Vec<TagSum>> {
    let mut tags: BTreeMap<Option<&str>, Vec<(usize, Sum)>> = BTreeMap::new();
    for (index, log) in logs.iter().enumerate() {
        let mut by_tag = BTreeMap::new();
        for record in &log.log.records {
            add_record(&mut by_tag, record.tag.as_deref(), log, record)?;
        }
        by_tag.into_iter().for_each(|(tag, sum)| tags.entry(tag).or_default().push((index, sum)));
    }
    let total = |(tag, by_log): (Option<&str>, Vec<(usize, Sum)>)| {
        let mut total = by_log[0].1.clone();
        for (index, sum) in &by_log[1..] {
            total.add(sum).map_err(|problem| logs[*index].error_at_end(problem))?;
        }
        Ok(TagSum { tag: tag.map(str::to_owned), by_log, total })
    };
    tags.into_iter().map(total).collect()
}

/// Merges the logs second by second. Calls `on_sum` in chronological order with the sum of each second and tag. Only
/// the histograms of one second are decoded at a time. Returns the error of `on_sum`, or `InvalidData` for the first
/// line that cannot be decoded or that overflows a sum.
pub fn seconds(
    logs: &[NamedLog],
    mut on_sum: impl FnMut(Option<&str>, &Sum) -> io::Result<()>,
) -> io::Result<()> {
    let mut by_second: BTreeMap<u128, Vec<(usize, &LogRecord)>> = BTreeMap::new();
    for (index, log) in logs.iter().enumerate() {
        for record in &log.log.records {
            let doubled_midpoint = u128::from(record.start_ns) + u128::from(record.end_ns());
            by_second.entry(doubled_midpoint / (2 * SECOND_NS)).or_default().push((index, record));
        }
    }
    for records in by_second.into_values() {
        let mut by_tag = BTreeMap::new();
        for (index, record) in records {
            add_record(&mut by_tag, record.tag.as_deref(), &logs[index], record)?;
        }
        for (tag, sum) in by_tag {
            on_sum(tag, &sum)?;
        }
    }
    Ok(())
}

/// Adds the error counts of all logs. The result is complete only if the counts of every log are complete. Returns
/// `InvalidData` for the first log that overflows the sum.
pub fn errors(logs: &[NamedLog]) -> io::Result<ReportedErrors> {
    let mut sum = ReportedErrors { is_complete: true, ..ReportedErrors::default() };
    for log in logs {
        sum.try_merge(log.log.errors.clone()).map_err(|problem| log.error_at_end(problem))?;
    }
    Ok(sum)
}

/// Writes the logs as one merged log: a line for each second and tag, then the sum of the reported errors. Returns the
/// errors of [`seconds`] and [`errors()`], and any error from the output.
pub fn write_log<W: Write>(logs: &[NamedLog], output: W) -> io::Result<W> {
    let errors = errors(logs)?;
    // A start time in a header is used only if no log has an interval, because start times written by other tools may
    // disagree with the intervals.
    let first_ns = logs.iter().filter_map(|log| log.log.start_ns()).min();
    let began_ns = first_ns.or_else(|| logs.iter().filter_map(|log| log.log.began_ns).min()).unwrap_or(0);
    // Truncated to whole milliseconds, the resolution of the log. A remainder would change the rounding of every start.
    let began_ns = began_ns / 1_000_000 * 1_000_000;
    let names: Vec<&str> = logs.iter().map(|log| log.name.as_str()).collect();
    let comment = format!("sum of {}", names.join(", ").replace(['\r', '\n'], " "));
    let runs: Vec<_> = logs.iter().flat_map(|log| log.log.runs.iter().cloned()).collect();
    let mut writer = HdrLogWriter::with_runs(output, began_ns, &[&comment], &runs)?;
    seconds(logs, |tag, sum| {
        writer.write_histogram(tag, sum.start_ns - began_ns, sum.end_ns - began_ns, &sum.latency)
    })?;
    writer.write_reported_errors(&errors)?;
    Ok(writer.into_inner())
}

impl NamedLog {
    /// Creates a log from a report.
    ///
    /// # Errors
    /// Returns a description of the problem if the report has another schema or no histograms.
    pub fn from_report(name: String, report: Report) -> Result<Self, String> {
        if report.schema != SCHEMA {
            return Err(format!("not a report of anello load: the schema is {:?}", report.schema));
        }
        let Some(histograms) = &report.histograms else {
            return Err("no histograms: written by an earlier version (merge the log of --hdr)".to_owned());
        };
        let record = |tag: Option<&str>, encoded: &str| LogRecord {
            line: 0,
            tag: tag.map(str::to_owned),
            start_ns: report.started_unix_ns.min(MAX_TIME_NS),
            length_ns: report.elapsed_ns.min(MAX_TIME_NS),
            encoded: encoded.to_owned(),
        };
        let uncorrected = histograms.uncorrected.iter().map(|encoded| record(Some(UNCORRECTED), encoded));
        let log = HdrLog {
            records: [record(None, &histograms.latency)].into_iter().chain(uncorrected).collect(),
            began_ns: Some(report.started_unix_ns),
            errors: ReportedErrors { known: report.errors.clone(), is_complete: true },
            runs: vec![report.run.clone()],
        };
        Ok(Self { name, log, report: Some(Box::new(report)) })
    }

    fn error(&self, error: &LogError) -> io::Error {
        let text = match error.line {
            0 => format!("{}: {}", self.name, error.problem),
            _ => format!("{}, {error}", self.name),
        };
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    fn error_at_end(&self, problem: &str) -> io::Error {
        let line = self.log.records.last().map_or(0, |record| record.line);
        self.error(&LogError { line, problem: problem.to_owned() })
    }
}

fn add_record<'a>(
    sums: &mut BTreeMap<Option<&'a str>, Sum>,
    tag: Option<&'a str>,
    log: &NamedLog,
    record: &LogRecord,
) -> io::Result<()> {
    let latency = record.histogram().map_err(|error| log.error(&error))?;
    let new = Sum { start_ns: record.start_ns, end_ns: record.end_ns(), latency };
    if let Some(sum) = sums.get_mut(&tag) {
        let error = |problem: &str| LogError { line: record.line, problem: problem.to_owned() };
        return sum.add(&new).map_err(|problem| log.error(&error(problem)));
    }
    sums.insert(tag, new);
    Ok(())
}
