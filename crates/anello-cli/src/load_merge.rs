//! `anello load merge`: merges the latency histograms of several runs, for example from several machines.

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

/// Name of the JSON schema.
const SCHEMA: &str = "anello-load-merge";

/// Version of the JSON schema.
const SCHEMA_VERSION: u32 = 1;

/// Merge the latency histograms of several runs, for example of one load from several machines.
///
/// The logs are written by `anello load … --hdr FILE`, or by any program that writes HdrHistogram interval logs
/// (version 2) in nanoseconds. The command adds histograms, not percentiles, so the percentiles are those of all
/// requests. Tags are merged separately: lines without a tag contain latencies from the scheduled time (in a closed
/// loop, from sending); lines with the tag `uncorrected` contain latencies from the time of sending. Error counts are
/// added as well; they are unknown for logs of other programs and of runs that were killed.
///
/// Exits with 0 if there were responses and no known errors; with 1 otherwise, or if a log cannot be read, contains
/// neither intervals nor errors, or is malformed (the message contains the line); with 2 if the command line is
/// invalid.
#[derive(clap::Args)]
pub struct MergeArguments {
    /// Interval logs to merge.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,

    /// Also write the sum as an interval log, with one line per second of wall-clock time and tag.
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,

    /// Print the sums as JSON. `schema` and `schema_version` identify the format; times are in nanoseconds (_ns).
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print seconds and sums as comma-separated values (RFC 4180); errors are printed to standard error.
    #[arg(long)]
    csv: bool,

    #[command(flatten)]
    allowed: AllowedErrors,
}

/// Merges the logs and prints the result.
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
    let has_responses = sums.iter().any(|sum| !sum.total.latency.is_empty());
    let is_allowed = arguments.allowed.allows(&errors.known);
    if !has_responses && is_allowed {
        // The output contains no other reason for exit code 1.
        eprintln!("anello: no responses in any of the runs");
    }
    Ok(ExitCode::from(if has_responses && is_allowed { 0 } else { 1 }))
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> io::Result<NamedLog> {
    let text = fs::read(path).map_err(|error| with_path(path, error))?;
    let invalid = |reason: String| with_path(path, io::Error::new(io::ErrorKind::InvalidData, reason));
    let log = HdrLog::parse(&text).map_err(|error| invalid(error.to_string()))?;
    // The log of a run without a successful connection contains only errors.
    if log.records.is_empty() && log.errors.known.is_empty() {
        return Err(invalid("no intervals in the log".to_owned()));
    }
    Ok(NamedLog { name: path.display().to_string(), log })
}

/// Returns an error if `path` is one of the logs, because writing the sum would overwrite it.
fn refuse_to_overwrite(path: &Path, logs: &[PathBuf]) -> io::Result<()> {
    let Ok(target) = path.canonicalize() else { return Ok(()) };
    match logs.iter().any(|log| log.canonicalize().is_ok_and(|log| log == target)) {
        true => {
            let reason = "cannot write the sum: the file is one of the logs to merge (choose another file)";
            Err(with_path(path, io::Error::new(io::ErrorKind::InvalidInput, reason)))
        }
        false => Ok(()),
    }
}

/// Returns a warning if one log ends before another one starts, because the request rates of the sums are then
/// meaningless.
fn time_gap_warning(logs: &[NamedLog]) -> Option<String> {
    let timed = || logs.iter().filter(|log| !log.log.records.is_empty());
    let first_end = timed().min_by_key(|log| log.log.end_ns())?;
    let last_start = timed().max_by_key(|log| log.log.start_ns())?;
    (first_end.log.end_ns() <= last_start.log.start_ns()).then(|| {
        format!(
            "{} ends before {} starts: requests/s of the sums include the time between them. If the runs were \
             simultaneous, the clocks of the machines differ, or a log lacks wall-clock timestamps.",
            first_end.name, last_start.name
        )
    })
}

/// Returns the heading of a tag.
fn title(tag: Option<&str>) -> String {
    match tag {
        None => "latency".to_owned(),
        Some(UNCORRECTED) => "uncorrected latency (from sending)".to_owned(),
        Some(tag) => format!("latency of {tag}"),
    }
}

/// Returns the sum of all tags except `uncorrected`, which contains the same requests again. Returns `None` if there is
/// only one other tag.
fn all_tags(sums: &[TagSum]) -> Option<Sum> {
    let mut counted = sums.iter().filter(|sum| sum.tag.as_deref() != Some(UNCORRECTED));
    let mut all = counted.next()?.total.clone();
    let mut others = counted.peekable();
    others.peek()?;
    others.try_for_each(|other| all.add(&other.total)).ok()?;
    Some(all)
}

/// Renders the sums as a text table.
fn render(logs: &[NamedLog], sums: &[TagSum], errors: &ReportedErrors) -> String {
    let mut text = String::new();
    let width = logs.iter().map(|log| log.name.chars().count()).max().unwrap_or(0).max("all tags".len());
    let row = |name: &str, sum: &Sum| {
        let quantiles = Latency::of(&sum.latency).map_or([(); 5].map(|()| "-".to_owned()), |latency| {
            let quantiles = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
            quantiles.map(|ns| format_ns(ns as f64))
        });
        let requests = group_digits(sum.latency.len() as f64);
        let [p50, p90, p99, p999, max] = quantiles;
        format!(
            "{name:<width$}  {requests:>14}  {:>12}  {p50:>9}  {p90:>9}  {p99:>9}  {p999:>9}  {max:>9}\n",
            group_digits(sum.per_second())
        )
    };
    for sum in sums {
        let headings = ["p50", "p90", "p99", "p99.9", "max"].map(|name| format!("  {name:>9}")).concat();
        // Writing to a string cannot fail.
        writeln!(text, "{}", title(sum.tag.as_deref())).ok();
        writeln!(text, "{:<width$}  {:>14}  {:>12}{headings}", "", "requests", "requests/s").ok();
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

/// Renders the errors as text: a line for each kind, and a line for the logs whose errors are not completely known.
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
        let reason = "written by another program, or contains a run that was killed or is not complete";
        writeln!(text, "errors unknown  in {} ({reason})", partial.join(", ")).ok();
    }
    text
}

/// Renders comma-separated values: a row for each second and tag, then for each log and tag, then for each tag.
fn csv(logs: &[NamedLog], sums: &[TagSum]) -> io::Result<String> {
    let mut table = Vec::new();
    let mut row = |kind: &str, log: &str, tag: Option<&str>, sum: &Sum| {
        let latency = Latency::of(&sum.latency);
        let latency_cell = |format: fn(&Latency) -> String| latency.as_ref().map_or_else(String::new, format);
        let cells = [
            kind.to_owned(),
            log.to_owned(),
            tag.unwrap_or_default().to_owned(),
            sum.start_ns.to_string(),
            (sum.end_ns - sum.start_ns).to_string(),
            sum.latency.len().to_string(),
            format!("{:.3}", sum.per_second()),
            latency_cell(|latency| latency.min_ns.to_string()),
            latency_cell(|latency| format!("{:.3}", latency.mean_ns)),
            latency_cell(|latency| latency.p50_ns.to_string()),
            latency_cell(|latency| latency.p90_ns.to_string()),
            latency_cell(|latency| latency.p99_ns.to_string()),
            latency_cell(|latency| latency.p999_ns.to_string()),
            latency_cell(|latency| latency.max_ns.to_string()),
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

/// JSON document printed by `--json`.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    schema_version: u32,
    logs: Vec<String>,
    tags: Vec<TagReport>,
    /// Sum of all tags except `uncorrected`; `None` if there is only one.
    all_tags: Option<Figures>,
    /// Known errors.
    errors: Vec<KindCount>,
    /// Whether all logs contain the errors of all their runs.
    errors_are_whole: bool,
    errors_by_log: Vec<LogErrors>,
}

#[derive(Serialize)]
struct LogErrors {
    log: String,
    /// `None` if the log contains no error counts.
    errors: Option<Vec<KindCount>>,
    /// Whether the log contains the errors of all its runs.
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
