//! `anello load merge`: the latencies of several runs, as of several machines, added exactly.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_load::formats::csv::write_row;
use anello_load::formats::hdr_log::{HdrLog, ReportedErrors, UNCORRECTED};
use anello_load::merge::{self, NamedLog, Sum, TagSum};
use anello_load::{ErrorKind, Errors, Latency};
use serde::Serialize;

use crate::load::{format_ns, group_digits};
use crate::load_flags::AllowedErrors;

/// Name of the JSON's format.
const SCHEMA: &str = "anello-load-merge";

/// Version of the JSON's format.
const SCHEMA_VERSION: u32 = 1;

/// Add the latencies of several runs exactly, as of one load from several machines.
///
/// The logs are those of `anello load … --hdr FILE`, or of any program that writes HdrHistogram's interval logs (version
/// 2) in nanoseconds. Histograms are added, not percentiles, so the percentiles are those of all requests. Each tag is
/// added for itself: lines without a tag are latencies from the scheduled time (or of a closed loop), `uncorrected` ones
/// from the actual sending. Errors are added, too; logs of other programs, and of runs that were killed, do not tell.
///
/// Exits 0 if something was answered in the runs and nothing went wrong, as far as the logs tell, else 1; 1 also if a log
/// cannot be read, has neither intervals nor errors, or is damaged (the line is named); 2 if the command line was wrong.
#[derive(clap::Args)]
pub struct MergeArguments {
    /// Interval logs.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,

    /// Write the sum as an interval log, too: a line for each second of the clock and tag.
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,

    /// Print the sums as JSON. `schema` and `schema_version` name the format; times are in nanoseconds (_ns).
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print the seconds and the sums as a table with commas (RFC 4180); errors go to standard error.
    #[arg(long)]
    csv: bool,

    #[command(flatten)]
    allowed: AllowedErrors,
}

/// Runs the command.
pub fn run(arguments: &MergeArguments) -> io::Result<ExitCode> {
    let logs = arguments.logs.iter().map(|path| read(path)).collect::<io::Result<Vec<_>>>()?;
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let sums = merge::totals(&logs).map_err(invalid)?;
    let errors = merge::errors(&logs).map_err(invalid)?;
    if let Some(path) = &arguments.hdr {
        refuse_to_overwrite(path, &arguments.logs)?;
        let file = File::create(path).map_err(|error| with_path(path, error))?;
        merge::write_log(&logs, file).map_err(|error| with_path(path, error))?;
    }
    if let Some(warning) = time_gap_warning(&logs) {
        eprintln!("anello: {warning}");
    }
    let text = match (arguments.json, arguments.csv) {
        (true, _) => serde_json::to_string_pretty(&Report::new(&logs, &sums, &errors))? + "\n",
        (_, true) => {
            eprint!("{}", error_summary(&logs, &errors));
            csv(&logs, &sums)?
        }
        _ => render(&logs, &sums, &errors),
    };
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    let is_answered = sums.iter().any(|sum| !sum.total.latency.is_empty());
    let is_allowed = arguments.allowed.allows(&errors.known);
    if !is_answered && is_allowed {
        // Nothing else says why the exit code is 1.
        eprintln!("anello: nothing was answered in any of the runs");
    }
    Ok(ExitCode::from(if is_answered && is_allowed { 0 } else { 1 }))
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> io::Result<NamedLog> {
    let text = fs::read(path).map_err(|error| with_path(path, error))?;
    let failed = |why: String| with_path(path, io::Error::new(io::ErrorKind::InvalidData, why));
    let log = HdrLog::parse(&text).map_err(|error| failed(error.to_string()))?;
    // A run in which no connection could be opened has errors alone.
    if log.records.is_empty() && log.errors.known.is_empty() {
        return Err(failed("has no intervals".to_owned()));
    }
    Ok(NamedLog { name: path.display().to_string(), log })
}

/// A sum must not take the place of what it is the sum of.
fn refuse_to_overwrite(path: &Path, logs: &[PathBuf]) -> io::Result<()> {
    let Ok(target) = path.canonicalize() else { return Ok(()) };
    match logs.iter().any(|log| log.canonicalize().is_ok_and(|log| log == target)) {
        true => {
            let why = "is one of the logs to be added; name another file for the sum";
            Err(with_path(path, io::Error::new(io::ErrorKind::InvalidInput, why)))
        }
        false => Ok(()),
    }
}

/// What to tell if one log ended before another began: the rates of sums are then of no moment.
fn time_gap_warning(logs: &[NamedLog]) -> Option<String> {
    let timed = || logs.iter().filter(|log| !log.log.records.is_empty());
    let first_end = timed().min_by_key(|log| log.log.end_ns())?;
    let last_start = timed().max_by_key(|log| log.log.start_ns())?;
    (first_end.log.end_ns() <= last_start.log.start_ns()).then(|| {
        format!(
            "{} ended before {} began: requests/s of sums count the time between. If they ran together, the clocks \
             of the machines differ, or one of the logs has no times of the clock.",
            first_end.name, last_start.name
        )
    })
}

/// The tag as people read it.
fn title(tag: Option<&str>) -> String {
    match tag {
        None => "latency".to_owned(),
        Some(UNCORRECTED) => "uncorrected latency (from the actual sending)".to_owned(),
        Some(tag) => format!("latency of {tag}"),
    }
}

/// Everything that was measured once: all tags but `uncorrected`, which are the same requests again. None if that is
/// one tag alone.
fn all_tags(sums: &[TagSum]) -> Option<Sum> {
    let mut counted = sums.iter().filter(|sum| sum.tag.as_deref() != Some(UNCORRECTED));
    let mut all = counted.next()?.total.clone();
    let mut others = counted.peekable();
    others.peek()?;
    others.try_for_each(|other| all.add(&other.total)).ok()?;
    Some(all)
}

/// The table for people.
fn render(logs: &[NamedLog], sums: &[TagSum], errors: &ReportedErrors) -> String {
    let mut text = String::new();
    let width = logs.iter().map(|log| log.name.chars().count()).max().unwrap_or(0).max("all tags".len());
    let row = |name: &str, sum: &Sum| {
        let figures = Latency::of(&sum.latency).map_or([(); 5].map(|()| "-".to_owned()), |latency| {
            let figures = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
            figures.map(|ns| format_ns(ns as f64))
        });
        let requests = group_digits(sum.latency.len() as f64);
        let [p50, p90, p99, p999, max] = figures;
        format!(
            "{name:<width$}  {requests:>14}  {:>12}  {p50:>9}  {p90:>9}  {p99:>9}  {p999:>9}  {max:>9}\n",
            group_digits(sum.per_second())
        )
    };
    for sum in sums {
        let heads = ["p50", "p90", "p99", "p99.9", "max"].map(|head| format!("  {head:>9}")).concat();
        // Writing to a string cannot fail.
        writeln!(text, "{}", title(sum.tag.as_deref())).ok();
        writeln!(text, "{:<width$}  {:>14}  {:>12}{heads}", "", "requests", "requests/s").ok();
        if logs.len() > 1 {
            sum.by_log.iter().for_each(|(log, sum)| text += &row(&logs[*log].name, sum));
        }
        text += &row("all", &sum.total);
        text.push('\n');
    }
    if let Some(all) = all_tags(sums) {
        text += &row("all tags", &all);
        text.push('\n');
    }
    match error_summary(logs, errors) {
        summary if summary.is_empty() => text + "errors          none\n",
        summary => text + &summary,
    }
}

/// What went wrong, for people: a line for each kind, and one for the logs that do not tell the whole.
fn error_summary(logs: &[NamedLog], errors: &ReportedErrors) -> String {
    let mut text = String::new();
    for error in errors.known.iter() {
        let count_of = |log: &NamedLog| log.log.errors.known.count(error.kind);
        let with_some = logs.iter().filter(|log| count_of(log) > 0);
        let parts: Vec<String> =
            with_some.map(|log| format!("{} in {}", group_digits(count_of(log) as f64), log.name)).collect();
        let (count, parts) = (group_digits(error.count as f64), parts.join(", "));
        // Writing to a string cannot fail.
        writeln!(text, "ERRORS          {count} × {}: {parts}", error.kind).ok();
    }
    let partial = logs.iter().filter(|log| !log.log.errors.is_complete);
    let partial: Vec<&str> = partial.map(|log| log.name.as_str()).collect();
    if !partial.is_empty() {
        let why = "the log does not tell, or not of all runs in it: another program wrote it, or a run was killed or \
                   did not come to its end";
        writeln!(text, "errors unknown  in {} ({why})", partial.join(", ")).ok();
    }
    text
}

/// The table for programs: a row for each second and tag, then for each log and tag, then for each tag.
fn csv(logs: &[NamedLog], sums: &[TagSum]) -> io::Result<String> {
    let mut table = Vec::new();
    let mut row = |kind: &str, log: &str, tag: Option<&str>, sum: &Sum| {
        let latency = Latency::of(&sum.latency);
        let of = |figure: fn(&Latency) -> String| latency.as_ref().map_or_else(String::new, figure);
        let cells = [
            kind.to_owned(),
            log.to_owned(),
            tag.unwrap_or_default().to_owned(),
            sum.start_ns.to_string(),
            (sum.end_ns - sum.start_ns).to_string(),
            sum.latency.len().to_string(),
            format!("{:.3}", sum.per_second()),
            of(|latency| latency.min_ns.to_string()),
            of(|latency| format!("{:.3}", latency.mean_ns)),
            of(|latency| latency.p50_ns.to_string()),
            of(|latency| latency.p90_ns.to_string()),
            of(|latency| latency.p99_ns.to_string()),
            of(|latency| latency.p999_ns.to_string()),
            of(|latency| latency.max_ns.to_string()),
        ];
        write_row(&mut table, cells.iter())
    };
    merge::seconds(logs, |tag, sum| row("interval", "", tag, sum))?;
    for sum in sums {
        for (log, by_log) in &sum.by_log {
            row("log", &logs[*log].name, sum.tag.as_deref(), by_log)?;
        }
    }
    for sum in sums {
        row("total", "", sum.tag.as_deref(), &sum.total)?;
    }
    let header = "row,log,tag,start_unix_ns,elapsed_ns,requests,requests_per_second,latency_min_ns,latency_mean_ns,\
                  latency_p50_ns,latency_p90_ns,latency_p99_ns,latency_p999_ns,latency_max_ns\n";
    Ok(header.to_owned() + &String::from_utf8_lossy(&table))
}

/// The JSON.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    schema_version: u32,
    logs: Vec<String>,
    tags: Vec<TagReport>,
    /// All tags but `uncorrected`, where there are several.
    all_tags: Option<Figures>,
    /// As far as the logs tell.
    errors: Vec<KindCount>,
    /// Whether all logs tell all.
    errors_are_whole: bool,
    errors_by_log: Vec<LogErrors>,
}

#[derive(Serialize)]
struct LogErrors {
    log: String,
    /// None if the log does not tell.
    errors: Option<Vec<KindCount>>,
    /// Whether all runs in it tell.
    errors_are_whole: bool,
}

#[derive(Serialize)]
struct KindCount {
    kind: ErrorKind,
    count: u64,
}

#[derive(Serialize)]
struct TagReport {
    tag: Option<String>,
    #[serde(flatten)]
    total: Figures,
    by_log: Vec<LogReport>,
}

#[derive(Serialize)]
struct LogReport {
    log: String,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Figures {
    start_unix_ns: u64,
    elapsed_ns: u64,
    requests: u64,
    requests_per_second: f64,
    latency: Option<Latency>,
}

impl Report {
    fn new(logs: &[NamedLog], sums: &[TagSum], errors: &ReportedErrors) -> Self {
        let tag_report = |sum: &TagSum| TagReport {
            tag: sum.tag.clone(),
            total: Figures::of(&sum.total),
            by_log: sum
                .by_log
                .iter()
                .map(|(log, sum)| LogReport { log: logs[*log].name.clone(), figures: Figures::of(sum) })
                .collect(),
        };
        Self {
            schema: SCHEMA,
            schema_version: SCHEMA_VERSION,
            logs: logs.iter().map(|log| log.name.clone()).collect(),
            tags: sums.iter().map(tag_report).collect(),
            all_tags: all_tags(sums).as_ref().map(Figures::of),
            errors: KindCount::all_of(&errors.known),
            errors_are_whole: errors.is_complete,
            errors_by_log: logs.iter().map(LogErrors::of).collect(),
        }
    }
}

impl LogErrors {
    fn of(log: &NamedLog) -> Self {
        let errors = &log.log.errors;
        Self {
            log: log.name.clone(),
            errors: (!errors.is_unknown()).then(|| KindCount::all_of(&errors.known)),
            errors_are_whole: errors.is_complete,
        }
    }
}

impl KindCount {
    fn all_of(errors: &Errors) -> Vec<Self> {
        errors.iter().map(|error| Self { kind: error.kind, count: error.count }).collect()
    }
}

impl Figures {
    fn of(sum: &Sum) -> Self {
        Self {
            start_unix_ns: sum.start_ns,
            elapsed_ns: sum.end_ns - sum.start_ns,
            requests: sum.latency.len(),
            requests_per_second: sum.per_second(),
            latency: Latency::of(&sum.latency),
        }
    }
}
