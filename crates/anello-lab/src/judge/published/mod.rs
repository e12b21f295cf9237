//! Published benchmark results, for comparison with the results of a run.
//!
//! The tables are in the directory `published/` of the crate and are compiled in. Absolute figures of another machine
//! cannot be compared, but their *ratios* are claims ("io_uring answers 1.5 times as many requests as epoll at 300
//! connections") that a run on this machine can confirm or refute. [`compare_with_published()`] compares the same pair
//! of servers in the same cell.

mod comparison;
mod sources;

pub use comparison::{
    ClaimResult, Comparison, Judgement, LocalResult, PublishedComparison, compare_with_published, judge,
};
pub use sources::{Claim, Expectation, Pair, SOURCES, Source};

use std::fmt;

use crate::plan::cell::Workload;
use crate::plan::site::Target;

/// One row of a published table.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Published name of the server.
    pub server: String,
    /// Number of the column, if two published columns have the same heading.
    pub column: Option<u64>,
    /// Cell of the measurement.
    pub cell: PublishedCell,
    /// Requests answered per second; `None` if the measurement failed or was not published.
    pub requests_per_second: Option<f64>,
    /// Mean latency, in microseconds.
    pub latency_mean_us: Option<f64>,
    /// CPU usage of the server during the measurement, in percent of one core.
    pub cpu_percent: Option<f64>,
}

impl Figure {
    /// Returns the CPU time of the server per request, in nanoseconds.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> Option<f64> {
        Some(self.cpu_percent? / 100.0 * 1e9 / self.requests_per_second?)
    }
}

/// Source of the figures that [`peak`] returns.
pub const PEAKS_OF: &str = "Monoio's benchmark, 2021";

const PEAKS: &str = include_str!("../../../published/monoio_2021_best.csv");

/// Returns the highest published rate of a server for this message size and number of cores, over all numbers of
/// connections. Returns `None` if no rate was published.
#[must_use]
pub fn peak(server: &str, message_bytes: usize, server_cores: usize) -> Option<Figure> {
    // The table is compiled in and a test parses it, so parsing does not fail here.
    parse(PEAKS).ok()?.into_iter().find(|figure| {
        let cell = figure.cell;
        same_name(&figure.server, server)
            && (cell.workload, cell.server_cores) == (Workload::Echo { message_bytes }, server_cores)
    })
}

/// Returns `true` if two names are equal apart from case and punctuation.
fn same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    plain(one) == plain(other)
}

/// Cell of a published figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublishedCell {
    /// Workload: echo with a message size, or HTTP requests for the most similar target of the lab.
    pub workload: Workload,
    /// Number of concurrent connections.
    pub connections: usize,
    /// Number of cores of the server.
    pub server_cores: usize,
    /// Offered requests per second; `None` for a closed loop.
    pub offered_per_second: Option<u64>,
}

/// Error in a published table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableError {
    /// Line number, from 1.
    line: usize,
    what: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for TableError {}

/// Parses a table: a line of column names, then one figure per line. Values contain no commas. Unknown columns are
/// ignored. The workload is HTTP if there is a column `target`, otherwise echo with messages of `message_bytes`.
///
/// # Errors
/// Returns the first line with a problem and a description of the problem.
pub fn parse(text: &str) -> Result<Vec<Figure>, TableError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, head) = lines.next().ok_or_else(|| TableError { line: 1, what: "is empty".to_owned() })?;
    let names: Vec<&str> = head.split(',').map(str::trim).collect();
    lines
        .map(|(index, line)| figure(&names, line).map_err(|what| TableError { line: index + 1, what }))
        .collect()
}

fn figure(names: &[&str], line: &str) -> Result<Figure, String> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    if values.len() != names.len() {
        return Err(format!("has {} values for {} columns", values.len(), names.len()));
    }
    let text = |name: &str| {
        let index = names.iter().position(|&column| column == name)?;
        Some(values[index]).filter(|value| !value.is_empty())
    };
    let number = |name: &str| match text(name) {
        None => Ok(None),
        Some(value) => match value.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => Err(format!("invalid {name} {value:?}")),
        },
    };
    let whole = |name: &str| match text(name) {
        None => Ok(None),
        Some(value) => value.parse::<u64>().map(Some).map_err(|_| format!("invalid {name} {value:?}")),
    };
    let required = |name: &str| whole(name)?.ok_or_else(|| format!("has no {name}"));
    let workload = match text("target") {
        None => Workload::Echo { message_bytes: required("message_bytes")? as usize },
        Some(name) => {
            let target = Target::ALL.into_iter().find(|target| target.name() == name);
            Workload::http(target.ok_or_else(|| format!("unknown target {name:?}"))?)
        }
    };
    Ok(Figure {
        server: text("server").ok_or("has no server")?.to_owned(),
        column: whole("column")?,
        cell: PublishedCell {
            workload,
            connections: required("connections")? as usize,
            server_cores: whole("server_cores")?.unwrap_or(1) as usize,
            offered_per_second: whole("offered_requests_per_second")?,
        },
        requests_per_second: number("requests_per_second")?,
        latency_mean_us: number("latency_mean_us")?,
        cpu_percent: number("cpu_percent")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_all_published_tables() {
        let rows = |key: &str| {
            let source = SOURCES.iter().find(|source| source.key == key).unwrap();
            parse(source.table).unwrap_or_else(|error| panic!("{key}: {error}")).len()
        };
        assert_eq!(SOURCES.map(|source| rows(source.key)), [36, 8, 125, 72, 18, 5, 5]);
        assert_eq!(parse(PEAKS).map(|figures| figures.len()), Ok(21));
    }

    #[test]
    fn peak_is_found_by_server_size_and_cores() {
        let published = |server: &str, bytes, cores| {
            peak(server, bytes, cores).map(|figure| (figure.cell.connections, figure.requests_per_second))
        };
        assert_eq!(published("Monoio", 100, 1), Some((600, Some(232_888.0))));
        assert_eq!(published("tokio", 100, 16), Some((4480, Some(908_179.0))));
        assert_eq!(
            [published("tokio", 1024, 1), published("anello epoll", 100, 1), published("tokio", 100, 3)],
            [None; 3]
        );
    }

    #[test]
    fn parse_error_names_line_and_problem() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error(""), "line 1: is empty");
        assert!(error("server,connections,message_bytes\na,1").starts_with("line 2: has 2 values"));
        assert!(error("server,connections,message_bytes\na,x,1").contains("invalid connections \"x\""));
        assert!(error("server,connections,message_bytes,requests_per_second\na,1,1,-5").contains("-5"));
        assert!(error("server,connections\na,1").contains("message_bytes"));
        assert!(error("server,connections,target\na,1,/x").contains("unknown target \"/x\""));
    }

    #[test]
    fn empty_field_is_parsed_as_none() {
        let figures =
            parse("server,message_bytes,connections,requests_per_second\nepoll,1024,1024,\n").unwrap();
        assert_eq!((figures[0].requests_per_second, figures[0].cell.server_cores), (None, 1));
    }
}
