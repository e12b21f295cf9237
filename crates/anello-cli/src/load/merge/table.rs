//! The sums as a text table.

use std::fmt::Write as _;

use anello_load::Latency;
use anello_load::formats::hdr_log::{ReportedErrors, UNCORRECTED};
use anello_load::merge::{NamedLog, Sum, TagSum};

use super::all_tags::all_tags;
use crate::load::format::{format_ns, group_digits};

/// Returns the heading of a tag.
fn title(tag: Option<&str>) -> String {
    match tag {
        None => "latency".to_owned(),
        Some(UNCORRECTED) => "uncorrected latency (from sending)".to_owned(),
        Some(tag) => format!("latency of {tag}"),
    }
}

/// Renders the sums as a text table.
pub fn render(logs: &[NamedLog], sums: &[TagSum], errors: &ReportedErrors) -> String {
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
pub fn error_summary(logs: &[NamedLog], errors: &ReportedErrors) -> String {
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
