//! Published tables as CSV, and the figures in them.

use serde::Deserialize;
use thiserror::Error;

use crate::plan::cell::Workload;
use crate::plan::site::Target;

/// One row of a published table.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Published name of the server.
    pub server: String,
    /// Column number, if two published columns have the same heading.
    pub(crate) column: Option<u64>,
    /// Measured cell.
    pub cell: PublishedCell,
    /// Requests answered per second; `None` if the measurement failed or was not published.
    pub requests_per_second: Option<f64>,
    pub(crate) latency_mean_us: Option<f64>,
    /// CPU usage of the server during the measurement, as a percentage of one core.
    cpu_percent: Option<f64>,
}

impl Figure {
    /// Returns the CPU time of the server per request, in nanoseconds.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> Option<f64> {
        Some(self.cpu_percent? / 100.0 * 1e9 / self.requests_per_second?)
    }
}

pub(crate) const PEAKS_OF: &str = "Monoio's benchmark, 2021";

/// Returns the highest published echo rate of a server over all connection counts. `None` if none was published.
#[must_use]
pub fn peak(server: &str, message_bytes: usize, server_cores: usize) -> Option<Figure> {
    // The table is compiled in and a test parses it, so parsing does not fail here.
    let peaks = parse(include_str!("../../../published/monoio_2021_best.csv")).ok()?;
    peaks.into_iter().find(|Figure { server: published, cell, .. }| {
        same_name(published, server)
            && (cell.workload, cell.server_cores) == (Workload::Echo { message_bytes }, server_cores)
    })
}

/// Returns `true` if two names are equal apart from case and punctuation.
pub(crate) fn same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    plain(one) == plain(other)
}

/// Cell of a published figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublishedCell {
    /// Workload: echo with a message size, or HTTP requests for the lab's most similar target.
    pub workload: Workload,
    /// Number of concurrent connections.
    pub connections: usize,
    /// Number of server cores.
    pub server_cores: usize,
    /// Offered requests per second; `None` for a closed loop.
    pub offered_per_second: Option<u64>,
}

/// Error in a published table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {what}")]
pub struct TableError {
    /// 1-based.
    line: u64,
    what: String,
}

/// A row as it appears in the table. Other columns are ignored.
#[derive(Deserialize)]
struct Record {
    server: String,
    column: Option<u64>,
    connections: usize,
    message_bytes: Option<usize>,
    target: Option<String>,
    server_cores: Option<usize>,
    offered_requests_per_second: Option<u64>,
    requests_per_second: Option<f64>,
    latency_mean_us: Option<f64>,
    cpu_percent: Option<f64>,
}

/// Parses a table: a line of column names, then one figure per line. The workload is HTTP if there is a column
/// `target`, otherwise echo with messages of `message_bytes`.
///
/// # Errors
/// Returns the number of the first line with a problem, and a description of the problem.
pub fn parse(text: &str) -> Result<Vec<Figure>, TableError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let error = |error: csv::Error| TableError {
        line: error.position().map_or(1, csv::Position::line),
        what: error.to_string(),
    };
    let head = reader.headers().map_err(error)?.clone();
    if head.is_empty() {
        return Err(TableError { line: 1, what: "is empty".to_owned() });
    }
    let parse = |row: csv::Result<csv::StringRecord>| {
        let row = row.map_err(error)?;
        let line = row.position().map_or(1, csv::Position::line);
        figure(row.deserialize(Some(&head)).map_err(error)?).map_err(|what| TableError { line, what })
    };
    reader.records().map(parse).collect()
}

fn figure(record: Record) -> Result<Figure, String> {
    let figures = [record.requests_per_second, record.latency_mean_us, record.cpu_percent];
    let is_invalid = |figure: &f64| !(figure.is_finite() && *figure >= 0.0);
    if let Some(figure) = figures.into_iter().flatten().find(is_invalid) {
        return Err(format!("invalid figure {figure}"));
    }
    let workload = match &record.target {
        None => Workload::Echo { message_bytes: record.message_bytes.ok_or("has no message_bytes")? },
        Some(name) => {
            let target = Target::ALL.into_iter().find(|target| target.name() == name);
            Workload::http(target.ok_or_else(|| format!("unknown target {name:?}"))?)
        }
    };
    Ok(Figure {
        server: record.server,
        column: record.column,
        cell: PublishedCell {
            workload,
            connections: record.connections,
            server_cores: record.server_cores.unwrap_or(1),
            offered_per_second: record.offered_requests_per_second,
        },
        requests_per_second: record.requests_per_second,
        latency_mean_us: record.latency_mean_us,
        cpu_percent: record.cpu_percent,
    })
}
