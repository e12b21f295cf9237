//! Renders the sums as a text table, as comma-separated values and as JSON.

use std::collections::BTreeSet;
use std::io;

use anello_load::formats::csv::write_row;
use anello_load::formats::hdr_log::{HdrLog, ReportedErrors, UNCORRECTED};
use anello_load::merge::{self, LoadTotals, NamedLog, Runs, Sum, TagSum};
use anello_load::{ErrorKind, Errors, Latency};
use serde::Serialize;

use crate::common::format::{format_count, format_ns, group_digits};

/// Returns the sum of all tags except `uncorrected`, which counts the same requests again; `None` for fewer than two
/// tags.
fn all_tags(sums: &[TagSum]) -> Option<Sum> {
    let mut counted = sums.iter().filter(|sum| sum.tag.as_deref() != Some(UNCORRECTED));
    let mut all = counted.next()?.total.clone();
    let mut others = counted.peekable();
    others.peek()?;
    others.try_for_each(|other| all.add(&other.total)).ok()?;
    Some(all)
}

pub fn table(logs: &[NamedLog], sums: &[TagSum], errors: &ReportedErrors, runs: &Runs) -> String {
    let mut text = String::new();
    let width = logs.iter().map(|log| log.name.chars().count()).max().unwrap_or(0).max("all tags".len());
    let row = |name: &str, sum: &Sum| {
        let quantiles = Latency::of(&sum.latency).map_or([(); 5].map(|()| "-".to_owned()), |latency| {
            let quantiles = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
            quantiles.map(|ns| format_ns(ns as f64))
        });
        let quantiles = quantiles.map(|quantile| format!("  {quantile:>9}")).concat();
        let (requests, rate) = (format_count(sum.latency.len()), group_digits(sum.per_second()));
        format!("{name:<width$}  {requests:>14}  {rate:>12}{quantiles}\n")
    };
    let headings = ["p50", "p90", "p99", "p99.9", "max"].map(|name| format!("  {name:>9}")).concat();
    for sum in sums {
        text += &match sum.tag.as_deref() {
            None => "latency\n".to_owned(),
            Some(UNCORRECTED) => "latency since sent\n".to_owned(),
            Some(tag) => format!("latency of {tag}\n"),
        };
        text += &format!("{:<width$}  {:>14}  {:>12}{headings}\n", "", "requests", "requests/s");
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
    if let Some(load) = &runs.load {
        text += &load_summary(load);
    }
    text += &match error_summary(logs, errors) {
        summary if summary.is_empty() => "errors          none\n".to_owned(),
        summary => summary,
    };
    text + &run_summary(runs)
}

fn load_summary(load: &LoadTotals) -> String {
    let (opened, connections) = (format_count(load.connections_opened), format_count(load.connections));
    let mut text = format!("connections     {connections}");
    if opened != connections {
        text += &format!(", {opened} opened");
    }
    text += &format!(
        "\nrequests/s      {} (sum of the rates of all runs)\n",
        group_digits(load.requests_per_second)
    );
    if let Some(offered) = load.offered {
        let [offered, late, unsent] = [offered, load.late, load.unsent].map(format_count);
        text += &format!("schedule        {offered} offered, {late} late, {unsent} never sent");
        if let Some(error) = &load.schedule_error {
            let [p50, p99, max] = [error.p50_ns, error.p99_ns, error.max_ns].map(|ns| format_ns(ns as f64));
            text += &format!("; error p50 {p50}, p99 {p99}, max {max}");
        }
        text.push('\n');
    }
    text
}

/// Renders the number of shards, the difference of their start times, and the problems of the runs.
pub fn run_summary(runs: &Runs) -> String {
    let mut text = String::new();
    if let Some(count) = runs.shards {
        let present =
            runs.runs.iter().filter_map(|run| run.run.shard.as_ref()).filter(|shard| shard.count == count);
        let present: BTreeSet<usize> = present.map(|shard| shard.index).collect();
        text += &format!("shards          {} of {}", format_count(present.len()), format_count(count));
        if let Some(difference_ns) = runs.start_difference_ns {
            text += &format!(", started within {}", format_ns(difference_ns as f64));
        }
        text.push('\n');
    }
    for problem in &runs.problems {
        let name = if problem.is_error() { "ERROR" } else { "WARNING" };
        text += &format!("{name:<16}{}\n", problem.text);
    }
    text
}

/// Renders the errors as text: a line for each kind, and a line for the logs whose errors are not fully known.
pub fn error_summary(logs: &[NamedLog], errors: &ReportedErrors) -> String {
    let mut text = String::new();
    for error in errors.known.iter() {
        let count_of = |log: &NamedLog| log.log.errors.known.count(error.kind);
        let with_some = logs.iter().filter(|log| count_of(log) > 0);
        let parts: Vec<String> =
            with_some.map(|log| format!("{} in {}", format_count(count_of(log)), log.name)).collect();
        let (count, parts) = (format_count(error.count), parts.join(", "));
        text += &format!("ERRORS          {count} × {}: {parts}\n", error.kind);
    }
    let partial = logs.iter().filter(|log| !log.log.errors.is_complete);
    let partial: Vec<&str> = partial.map(|log| log.name.as_str()).collect();
    if !partial.is_empty() {
        let reason = "written by another program, or contains a run that was killed or is incomplete";
        text += &format!("errors unknown  in {} ({reason})\n", partial.join(", "));
    }
    text
}

/// Renders a row for each second and tag, then for each log and tag, then for each tag.
pub fn csv(logs: &[NamedLog], sums: &[TagSum]) -> io::Result<String> {
    let mut table = Vec::new();
    let mut row = |kind: &str, log: &str, tag: Option<&str>, sum: &Sum| {
        let mut cells = vec![
            kind.to_owned(),
            log.to_owned(),
            tag.unwrap_or_default().to_owned(),
            sum.start_ns.to_string(),
            (sum.end_ns - sum.start_ns).to_string(),
            sum.latency.len().to_string(),
            format!("{:.3}", sum.per_second()),
        ];
        match Latency::of(&sum.latency) {
            None => cells.extend([const { String::new() }; 7]),
            Some(Latency { min_ns, mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns }) => {
                cells.extend([min_ns.to_string(), format!("{mean_ns:.3}")]);
                cells.extend([p50_ns, p90_ns, p99_ns, p999_ns, max_ns].map(|ns| ns.to_string()));
            }
        }
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

#[derive(Serialize)]
pub struct Report<'a> {
    schema: &'static str,
    schema_version: u32,
    logs: Vec<String>,
    tags: Vec<TagReport>,
    all_tags: Option<Figures>,
    errors: Vec<KindCount>,
    /// Whether all logs contain the errors of all their runs.
    errors_are_complete: bool,
    errors_by_log: Vec<LogErrors>,
    #[serde(flatten)]
    runs: &'a Runs,
}

#[derive(Serialize)]
struct LogErrors {
    log: String,
    /// `None` if the log contains no error counts.
    errors: Option<Vec<KindCount>>,
    errors_are_complete: bool,
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

impl<'a> Report<'a> {
    pub fn new(logs: &[NamedLog], sums: &[TagSum], errors: &ReportedErrors, runs: &'a Runs) -> Self {
        let log_report =
            |(log, sum): &(usize, Sum)| LogReport { log: logs[*log].name.clone(), figures: Figures::of(sum) };
        let tag_report = |sum: &TagSum| TagReport {
            tag: sum.tag.clone(),
            total: Figures::of(&sum.total),
            by_log: sum.by_log.iter().map(log_report).collect(),
        };
        let log_errors = |NamedLog { name, log: HdrLog { errors, .. }, .. }: &NamedLog| LogErrors {
            log: name.clone(),
            errors: (!errors.is_unknown()).then(|| counts(&errors.known)),
            errors_are_complete: errors.is_complete,
        };
        Self {
            schema: "anello-load-merge",
            schema_version: 2,
            logs: logs.iter().map(|log| log.name.clone()).collect(),
            tags: sums.iter().map(tag_report).collect(),
            all_tags: all_tags(sums).as_ref().map(Figures::of),
            errors: counts(&errors.known),
            errors_are_complete: errors.is_complete,
            errors_by_log: logs.iter().map(log_errors).collect(),
            runs,
        }
    }
}

fn counts(errors: &Errors) -> Vec<KindCount> {
    errors.iter().map(|error| KindCount { kind: error.kind, count: error.count }).collect()
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
