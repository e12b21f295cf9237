//! What others have published, to be set beside what is measured here.
//!
//! The tables lie in the crate's folder `published/` and are part of the program. Figures of another machine mean
//! little here, but their *ratios* are claims ("io_uring answers 1.5 times as many requests as epoll at 300
//! connections") that this machine can confirm or refute: [`compare_with_published()`] looks up the same pair in the same cell.

mod comparison;
mod sources;

pub use comparison::{
    ClaimResult, Comparison, Judgement, LocalResult, PublishedComparison, compare_with_published, judge,
};
pub use sources::{Claim, Expectation, Pair, SOURCES, Source};

use std::fmt;

use crate::cell::Workload;
use crate::site::Target;

/// One row of a published table.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The server, as its publisher calls it.
    pub server: String,
    /// Where two published columns carry the same heading: which.
    pub column: Option<u64>,
    /// The cell it was measured in.
    pub cell: PublishedCell,
    /// Requests answered per second; none if that was not published, or failed.
    pub requests_per_second: Option<f64>,
    /// Mean latency in microseconds.
    pub latency_mean_us: Option<f64>,
    /// CPU of the server while it was measured, in percent of one core.
    pub cpu_percent: Option<f64>,
}

impl Figure {
    /// CPU time of the server for each request, in nanoseconds.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> Option<f64> {
        Some(self.cpu_percent? / 100.0 * 1e9 / self.requests_per_second?)
    }
}

/// Where the peaks of [`peak`] come from.
pub const PEAKS_OF: &str = "Monoio's benchmark, 2021";

const PEAKS: &str = include_str!("../../published/monoio_2021_best.csv");

/// The best that was published of a server with messages of this size on so many cores, at whatever number of connections;
/// none if nothing was.
#[must_use]
pub fn peak(server: &str, message_bytes: usize, server_cores: usize) -> Option<Figure> {
    // The table is part of the program and is read by its tests: one that cannot be read does not get here.
    parse(PEAKS).ok()?.into_iter().find(|figure| {
        let cell = figure.cell;
        same_name(&figure.server, server)
            && (cell.workload, cell.server_cores) == (Workload::Echo { message_bytes }, server_cores)
    })
}

/// Whether two names are the same but for the letters' case and the signs between them.
fn same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    plain(one) == plain(other)
}

/// Where a published figure was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublishedCell {
    /// What was asked: echo of messages of some size, or HTTP requests for what is most like it here.
    pub workload: Workload,
    /// Connections open at once.
    pub connections: usize,
    /// Cores of the server.
    pub server_cores: usize,
    /// Requests offered per second, if that was fixed.
    pub offered_per_second: Option<u64>,
}

/// A published table that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableError {
    /// The line, from 1.
    line: usize,
    what: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for TableError {}

/// Reads a table: a line of column names, then one figure in each line; values hold no commas. Columns of other names
/// are left aside. What was asked is the `target` where there is such a column, else echo of `message_bytes`.
///
/// # Errors
/// The line and what is wrong with it.
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
        let place = names.iter().position(|&column| column == name)?;
        Some(values[place]).filter(|value| !value.is_empty())
    };
    let number = |name: &str| match text(name) {
        None => Ok(None),
        Some(value) => match value.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => Err(format!("{value:?} is no {name}")),
        },
    };
    let whole = |name: &str| match text(name) {
        None => Ok(None),
        Some(value) => value.parse::<u64>().map(Some).map_err(|_| format!("{value:?} is no {name}")),
    };
    let needed = |name: &str| whole(name)?.ok_or_else(|| format!("has no {name}"));
    let workload = match text("target") {
        None => Workload::Echo { message_bytes: needed("message_bytes")? as usize },
        Some(name) => {
            let target = Target::ALL.into_iter().find(|target| target.name() == name);
            Workload::http(target.ok_or_else(|| format!("{name:?} is no target"))?)
        }
    };
    Ok(Figure {
        server: text("server").ok_or("has no server")?.to_owned(),
        column: whole("column")?,
        cell: PublishedCell {
            workload,
            connections: needed("connections")? as usize,
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
    fn every_table_can_be_read_whole() {
        let rows = |key: &str| {
            let source = SOURCES.iter().find(|source| source.key == key).unwrap();
            parse(source.table).unwrap_or_else(|error| panic!("{key}: {error}")).len()
        };
        assert_eq!(SOURCES.map(|source| rows(source.key)), [36, 8, 125, 72, 18, 5, 5]);
        assert_eq!(parse(PEAKS).map(|figures| figures.len()), Ok(21));
    }

    #[test]
    fn a_published_peak_is_found_by_server_size_and_cores() {
        let found = |server: &str, bytes, cores| {
            peak(server, bytes, cores).map(|figure| (figure.cell.connections, figure.requests_per_second))
        };
        assert_eq!(found("Monoio", 100, 1), Some((600, Some(232_888.0))));
        assert_eq!(found("tokio", 100, 16), Some((4480, Some(908_179.0))));
        assert_eq!(
            [found("tokio", 1024, 1), found("anello epoll", 100, 1), found("tokio", 100, 3)],
            [None; 3]
        );
    }

    #[test]
    fn what_is_wrong_with_a_table_is_named() {
        let fault = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(fault(""), "line 1: is empty");
        assert!(fault("server,connections,message_bytes\na,1").starts_with("line 2: has 2 values"));
        assert!(fault("server,connections,message_bytes\na,x,1").contains("\"x\" is no connections"));
        assert!(fault("server,connections,message_bytes,requests_per_second\na,1,1,-5").contains("-5"));
        assert!(fault("server,connections\na,1").contains("message_bytes"));
        assert!(fault("server,connections,target\na,1,/x").contains("\"/x\" is no target"));
    }

    #[test]
    fn an_empty_field_is_no_figure() {
        let figures =
            parse("server,message_bytes,connections,requests_per_second\nepoll,1024,1024,\n").unwrap();
        assert_eq!((figures[0].requests_per_second, figures[0].cell.server_cores), (None, 1));
    }
}
