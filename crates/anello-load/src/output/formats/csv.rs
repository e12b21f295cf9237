//! CSV table of intervals for spreadsheets and plotting tools (RFC 4180, except that lines end with LF instead of
//! CRLF).
//!
//! The table has a header line, one row for each interval, and a last row with the totals of the measurement. The first
//! column (`interval` or `total`) allows readers to exclude the totals from sums. A cell is empty if the value is not
//! available. Column names and units match the [`IntervalRecord`] fields; nested names are joined with underscores.

use std::io::{self, Write};

use serde_json::Value;

use crate::model::interval::{Interval, IntervalRecord};

/// For each column after the first, the path of its value in a serialized [`IntervalRecord`]. `errors` is the sum of
/// `errors_by_kind`, which is a single cell because adding a column for a new kind of error would break readers.
const COLUMNS: &str = "start_ns elapsed_ns requests requests_per_second \
    latency/min_ns latency/mean_ns latency/p50_ns latency/p90_ns latency/p99_ns latency/p999_ns latency/max_ns \
    uncorrected/min_ns uncorrected/mean_ns uncorrected/p50_ns uncorrected/p90_ns uncorrected/p99_ns \
    uncorrected/p999_ns uncorrected/max_ns \
    offered late unsent abandoned sent_bytes received_bytes errors errors_by_kind open_connections \
    server/cpu_ns server_cpu_ns_per_request server/voluntary_switches server/involuntary_switches \
    server/resident_bytes load_cpu_ns load_cpu_ns_per_request stolen_ns";

/// Writer of the table. All methods return any error from the output.
#[derive(Debug)]
pub struct CsvWriter<W> {
    output: W,
}

impl<W: Write> CsvWriter<W> {
    /// Creates a writer and writes the header line.
    pub fn new(mut output: W) -> io::Result<Self> {
        let names = COLUMNS.split_whitespace().map(|path| path.replace('/', "_"));
        write_row(&mut output, std::iter::once("row".to_owned()).chain(names))?;
        Ok(Self { output })
    }

    /// Writes the row for an interval.
    pub fn write(&mut self, interval: &Interval) -> io::Result<()> {
        self.write_record("interval", interval)
    }

    /// Writes the row with the totals of the measurement, and returns the output.
    pub fn finish(mut self, total: &Interval) -> io::Result<W> {
        self.write_record("total", total)?;
        Ok(self.output)
    }

    fn write_record(&mut self, kind: &str, interval: &Interval) -> io::Result<()> {
        let record = serde_json::to_value(IntervalRecord::from(interval))?;
        let cells = COLUMNS.split_whitespace().map(|path| match path {
            "errors" => interval.counts.errors.total().to_string(),
            "errors_by_kind" => interval.counts.errors.by_kind(),
            _ => format_cell(record.pointer(&format!("/{path}"))),
        });
        write_row(&mut self.output, std::iter::once(kind.to_owned()).chain(cells))
    }
}

/// Writes a row and flushes the output. Cells are quoted where necessary.
pub fn write_row<T: AsRef<[u8]>>(output: &mut impl Write, cells: impl Iterator<Item = T>) -> io::Result<()> {
    let mut row = csv::Writer::from_writer(Vec::new());
    row.write_record(cells)?;
    output.write_all(&row.into_inner().map_err(csv::IntoInnerError::into_error)?)?;
    output.flush()
}

/// Formats a number. Rates and per-request values have three decimals, because further digits would not be significant.
fn format_cell(value: Option<&Value>) -> String {
    match value {
        Some(Value::Number(number)) if number.is_f64() => {
            format!("{:.3}", number.as_f64().unwrap_or_default())
        }
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}
