//! CSV table of intervals for spreadsheets and plotting tools (RFC 4180, except that lines end with LF instead of
//! CRLF).
//!
//! The table has a header line, one row for each interval, and a last row with the totals of the measurement. The first
//! column (`interval` or `total`) identifies the kind of row, so that readers can exclude the totals from sums. A cell
//! is empty if the value is not available. Column names and units are those of the [`IntervalRecord`] fields; the names
//! of nested fields are joined with underscores.

use std::io::{self, Write};

use crate::model::interval::Interval;
use crate::model::interval::IntervalRecord;
use crate::model::latency::Latency;

/// Name of a column, and the function that formats its cells.
type Column = (&'static str, fn(&IntervalRecord) -> String);

/// All columns except the first.
const COLUMNS: &[Column] = &[
    ("start_ns", |record| record.start_ns.to_string()),
    ("elapsed_ns", |record| record.elapsed_ns.to_string()),
    ("requests", |record| record.requests.to_string()),
    ("requests_per_second", |record| format_decimal(Some(record.requests_per_second))),
    ("latency_min_ns", |record| format_latency(record.latency, |latency| latency.min_ns)),
    ("latency_mean_ns", |record| format_decimal(record.latency.map(|latency| latency.mean_ns))),
    ("latency_p50_ns", |record| format_latency(record.latency, |latency| latency.p50_ns)),
    ("latency_p90_ns", |record| format_latency(record.latency, |latency| latency.p90_ns)),
    ("latency_p99_ns", |record| format_latency(record.latency, |latency| latency.p99_ns)),
    ("latency_p999_ns", |record| format_latency(record.latency, |latency| latency.p999_ns)),
    ("latency_max_ns", |record| format_latency(record.latency, |latency| latency.max_ns)),
    ("uncorrected_min_ns", |record| format_latency(record.uncorrected, |latency| latency.min_ns)),
    ("uncorrected_mean_ns", |record| format_decimal(record.uncorrected.map(|latency| latency.mean_ns))),
    ("uncorrected_p50_ns", |record| format_latency(record.uncorrected, |latency| latency.p50_ns)),
    ("uncorrected_p90_ns", |record| format_latency(record.uncorrected, |latency| latency.p90_ns)),
    ("uncorrected_p99_ns", |record| format_latency(record.uncorrected, |latency| latency.p99_ns)),
    ("uncorrected_p999_ns", |record| format_latency(record.uncorrected, |latency| latency.p999_ns)),
    ("uncorrected_max_ns", |record| format_latency(record.uncorrected, |latency| latency.max_ns)),
    ("offered", |record| format_integer(record.counts.offered)),
    ("late", |record| record.counts.late.to_string()),
    ("unsent", |record| record.counts.unsent.to_string()),
    ("abandoned", |record| record.counts.abandoned.to_string()),
    ("sent_bytes", |record| record.counts.sent_bytes.to_string()),
    ("received_bytes", |record| record.counts.received_bytes.to_string()),
    ("errors", |record| record.counts.errors.total().to_string()),
    // One cell for all kinds, because adding a column would break readers. Readers count unknown kinds as `other`.
    ("errors_by_kind", |record| record.counts.errors.by_kind()),
    ("open_connections", |record| record.open_connections.to_string()),
    ("server_cpu_ns", |record| format_integer(record.server.map(|server| server.cpu_ns))),
    ("server_cpu_ns_per_request", |record| format_decimal(record.server_cpu_ns_per_request)),
    ("server_voluntary_switches", |record| {
        format_integer(record.server.map(|server| server.voluntary_switches))
    }),
    ("server_involuntary_switches", |record| {
        format_integer(record.server.map(|server| server.involuntary_switches))
    }),
    ("server_resident_bytes", |record| format_integer(record.server.map(|server| server.resident_bytes))),
    ("load_cpu_ns", |record| record.load_cpu_ns.to_string()),
    ("load_cpu_ns_per_request", |record| format_decimal(record.load_cpu_ns_per_request)),
    ("stolen_ns", |record| format_integer(record.stolen_ns)),
];

/// Writer of the table. Every row is flushed immediately. All methods return the errors of the output.
#[derive(Debug)]
pub struct CsvWriter<W> {
    output: W,
}

impl<W: Write> CsvWriter<W> {
    /// Creates a writer and writes the header line.
    pub fn new(mut output: W) -> io::Result<Self> {
        let names = COLUMNS.iter().map(|(name, _)| *name);
        write_row(&mut output, std::iter::once("row").chain(names))?;
        Ok(Self { output })
    }

    /// Writes the row of an interval.
    pub fn write(&mut self, interval: &Interval) -> io::Result<()> {
        self.write_record("interval", interval)
    }

    /// Writes the row with the totals of the measurement, and returns the output.
    pub fn finish(mut self, total: &Interval) -> io::Result<W> {
        self.write_record("total", total)?;
        Ok(self.output)
    }

    fn write_record(&mut self, kind: &str, interval: &Interval) -> io::Result<()> {
        let record = IntervalRecord::from(interval);
        let cells = COLUMNS.iter().map(|(_, cell)| cell(&record));
        write_row(&mut self.output, std::iter::once(kind.to_owned()).chain(cells))
    }
}

/// Writes a row and flushes the output. Cells are quoted where necessary.
///
/// # Errors
/// Returns any error of the output.
pub fn write_row<T: AsRef<[u8]>>(output: &mut impl Write, cells: impl Iterator<Item = T>) -> io::Result<()> {
    let mut row = csv::Writer::from_writer(Vec::new());
    row.write_record(cells)?;
    output.write_all(&row.into_inner().map_err(csv::IntoInnerError::into_error)?)?;
    output.flush()
}

fn format_integer(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

fn format_latency(latency: Option<Latency>, field: fn(&Latency) -> u64) -> String {
    format_integer(latency.as_ref().map(field))
}

/// Formats a number with three decimals. Rates and per-request values are not more precise than that.
fn format_decimal(number: Option<f64>) -> String {
    number.map_or_else(String::new, |number| format!("{number:.3}"))
}
