//! Adds interval logs of several machines exactly: histograms are added bucket by bucket, never quantiles.
//!
//! ```text
//!  Unix time     … :07            :08            :09 …
//!  A.hlog          ├──── a1 ──────┼──── a2 ──────┤              a line belongs to the second in which its middle lies
//!  B.hlog             ├──── b1 ──────┼──── b2 ──────┤
//!                         ↓ middle       ↓ middle
//!  merged          ├──── a1+b1 ──────┤                          from the first start to the last end of its lines
//!                                 ├──── a2+b2 ──────┤
//! ```
//!
//! A line is never divided, so nothing is guessed. Seconds are those of the clock, not of one of the logs, and the
//! middle of a sum lies within its second, too. So sums of sums are the sums of all: order and grouping do not matter.
//! Logs that were written with other precision or range add up in the coarser layout (`histogram`).
//!
//! The clocks of the machines ought to agree to a fraction of a second. Where they do not, only the intervals differ;
//! the sum of the whole run is the same.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use hdrhistogram::Histogram;

use crate::formats::hdr_log::{HdrLog, HdrLogWriter, LogError, LogRecord, ReportedErrors};
use crate::histogram;

const SECOND_NS: u128 = 1_000_000_000;

/// A log and what to call it in errors, as its path.
#[derive(Clone, Debug)]
pub struct NamedLog {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub log: HdrLog,
}

/// What is wrong with one of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeError {
    /// The log's name.
    pub name: String,
    /// Where and what.
    pub error: LogError,
}

impl fmt::Display for MergeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, {}", self.name, self.error)
    }
}

impl std::error::Error for MergeError {}

/// Latencies of a stretch of time, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Sum {
    /// When the first line began, in nanoseconds since 1970.
    pub start_ns: u64,
    /// When the last line ended, in nanoseconds since 1970.
    pub end_ns: u64,
    /// All their latencies.
    pub latency: Histogram<u64>,
}

impl Sum {
    /// Values per second of the stretch; 0 if no time has passed.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        match self.end_ns - self.start_ns {
            0 => 0.0,
            elapsed_ns => self.latency.len() as f64 * 1e9 / elapsed_ns as f64,
        }
    }

    fn of(record: &LogRecord) -> Result<Self, LogError> {
        Ok(Self { start_ns: record.start_ns, end_ns: record.end_ns(), latency: record.histogram()? })
    }

    /// Adds another exactly.
    ///
    /// # Errors
    /// When there are more values in all than can be counted; the sum is as before.
    pub fn add(&mut self, other: &Self) -> Result<(), &'static str> {
        let total = self.latency.len().checked_add(other.latency.len());
        total.ok_or("more values in all than a histogram can count")?;
        self.start_ns = self.start_ns.min(other.start_ns);
        self.end_ns = self.end_ns.max(other.end_ns);
        histogram::add(&mut self.latency, &other.latency);
        Ok(())
    }
}

/// One tag: the sum of each log that has it, and of all.
#[derive(Clone, Debug)]
pub struct TagSum {
    /// The tag, if any.
    pub tag: Option<String>,
    /// The index of each log that has the tag, and its sum.
    pub by_log: Vec<(usize, Sum)>,
    /// The sum of these.
    pub total: Sum,
}

/// Adds up the whole of the logs, for each tag in the order of the tags; lines without a tag come first.
///
/// # Errors
/// The first line that cannot be decoded, or that makes a sum too large.
pub fn totals(logs: &[NamedLog]) -> Result<Vec<TagSum>, MergeError> {
    let mut tags: BTreeMap<Option<&str>, TagSum> = BTreeMap::new();
    for (index, log) in logs.iter().enumerate() {
        let mut by_tag: BTreeMap<Option<&str>, Sum> = BTreeMap::new();
        for record in &log.log.records {
            add_record(&mut by_tag, record.tag.as_deref(), log, record)?;
        }
        for (tag, sum) in by_tag {
            match tags.get_mut(&tag) {
                None => {
                    let first = TagSum {
                        tag: tag.map(str::to_owned),
                        total: sum.clone(),
                        by_log: vec![(index, sum)],
                    };
                    tags.insert(tag, first);
                }
                Some(all) => {
                    let line = log.log.records.last().map_or(0, |record| record.line);
                    all.total.add(&sum).map_err(|problem| log.error(line, problem))?;
                    all.by_log.push((index, sum));
                }
            }
        }
    }
    Ok(tags.into_values().collect())
}

/// Adds up the logs second by second, and hands each second's sum of each tag to `each` in the order of time. Only one
/// second is in memory decoded.
///
/// # Errors
/// What `each` returns; as `InvalidData` the first line that cannot be decoded, or that makes a sum too large.
pub fn seconds(
    logs: &[NamedLog],
    mut each: impl FnMut(Option<&str>, &Sum) -> io::Result<()>,
) -> io::Result<()> {
    let mut by_second: BTreeMap<u128, Vec<(usize, &LogRecord)>> = BTreeMap::new();
    for (index, log) in logs.iter().enumerate() {
        for record in &log.log.records {
            // Twice the middle, since halves would round.
            let middle = u128::from(record.start_ns) + u128::from(record.end_ns());
            let second = middle / (2 * SECOND_NS);
            by_second.entry(second).or_default().push((index, record));
        }
    }
    for records in by_second.into_values() {
        let mut by_tag = BTreeMap::new();
        for (index, record) in records {
            add_record(&mut by_tag, record.tag.as_deref(), &logs[index], record)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        for (tag, sum) in by_tag {
            each(tag, &sum)?;
        }
    }
    Ok(())
}

/// What is known of what went wrong in all of the logs; the whole only if all of them tell it.
///
/// # Errors
/// The first log that makes the sum too large.
pub fn errors(logs: &[NamedLog]) -> Result<ReportedErrors, MergeError> {
    let mut sum = ReportedErrors { is_complete: true, ..ReportedErrors::default() };
    for log in logs {
        sum.is_complete &= log.log.errors.is_complete;
        let line = log.log.records.last().map_or(0, |record| record.line);
        sum.known.try_merge(log.log.errors.known.clone()).map_err(|problem| log.error(line, problem))?;
    }
    Ok(sum)
}

/// Writes the logs as one log, with a line for each second and tag, and what went wrong as far as they tell. That
/// nothing did, or nothing else, is written only if all of them say so.
///
/// # Errors
/// Those of [`seconds`] and [`errors`], and those of the output.
pub fn write_log<W: Write>(logs: &[NamedLog], output: W) -> io::Result<W> {
    let errors = errors(logs).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    // Headers tell of a run without intervals alone: those of other programs need not fit their intervals.
    let first_ns = logs.iter().filter_map(|log| log.log.start_ns()).min();
    let began_ns = first_ns.or_else(|| logs.iter().filter_map(|log| log.log.began_ns).min()).unwrap_or(0);
    // Whole milliseconds, as the log has them: else every start would be rounded differently.
    let began_ns = began_ns / 1_000_000 * 1_000_000;
    let names: Vec<&str> = logs.iter().map(|log| log.name.as_str()).collect();
    let comment = format!("sum of {}", names.join(", ").replace(['\r', '\n'], " "));
    let mut writer = HdrLogWriter::new(output, began_ns, &[&comment])?;
    seconds(logs, |tag, sum| {
        writer.write_histogram(tag, sum.start_ns - began_ns, sum.end_ns - began_ns, &sum.latency)
    })?;
    writer.write_reported_errors(&errors)?;
    Ok(writer.into_inner())
}

impl NamedLog {
    fn error(&self, line: usize, problem: &str) -> MergeError {
        MergeError { name: self.name.clone(), error: LogError { line, problem: problem.to_owned() } }
    }
}

/// Adds a line to the sum of its tag.
fn add_record<'a>(
    sums: &mut BTreeMap<Option<&'a str>, Sum>,
    tag: Option<&'a str>,
    log: &NamedLog,
    record: &LogRecord,
) -> Result<(), MergeError> {
    let new = Sum::of(record).map_err(|error| MergeError { name: log.name.clone(), error })?;
    match sums.get_mut(&tag) {
        Some(sum) => sum.add(&new).map_err(|problem| log.error(record.line, problem))?,
        None => {
            sums.insert(tag, new);
        }
    }
    Ok(())
}
