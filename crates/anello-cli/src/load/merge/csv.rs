//! The sums as comma-separated values.

use std::io;

use anello_load::Latency;
use anello_load::formats::csv::write_row;
use anello_load::merge::{self, NamedLog, Sum, TagSum};

/// Renders comma-separated values: a row for each second and tag, then for each log and tag, then for each tag.
pub fn render(logs: &[NamedLog], sums: &[TagSum]) -> io::Result<String> {
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
