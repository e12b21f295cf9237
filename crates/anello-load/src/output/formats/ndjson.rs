//! Stream of intervals as newline-delimited JSON, for programs that monitor a run.
//!
//! ```text
//!  {"type":"begin","schema":"anello-load-intervals","schema_version":2,"started_unix_ns":1700000000250000000}
//!  {"type":"interval","start_ns":0,"elapsed_ns":1000000000,"requests":48211,…}
//!  {"type":"interval",…}
//!  {"type":"total",…}                                        totals; missing if the run was killed
//! ```

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::model::interval::{Interval, IntervalRecord};

/// Name of the stream format.
pub const SCHEMA: &str = "anello-load-intervals";

/// Version of the stream format. Incremented for incompatible changes; adding a field is a compatible change.
pub const SCHEMA_VERSION: u32 = 2;

/// One line of the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)] // Most lines have the large variant, and lines are not stored.
#[non_exhaustive]
pub enum Line {
    /// First line: the format of the stream and the start of the measurement.
    Begin(Begin),
    /// An interval.
    Interval(IntervalRecord),
    /// Last line: the totals of the measurement.
    Total(IntervalRecord),
}

/// Content of the first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Value of [`SCHEMA_VERSION`] in the program that wrote the stream.
    pub schema_version: u32,
    /// Start of the measurement, in nanoseconds since the Unix epoch.
    #[serde(alias = "began_unix_ns")]
    pub started_unix_ns: u64,
}

/// Writer of the stream. All methods return any error from the output.
#[derive(Debug)]
pub struct NdjsonWriter<W> {
    output: W,
}

impl<W: Write> NdjsonWriter<W> {
    /// Creates a writer and writes the first line.
    pub fn new(output: W, started_unix_ns: u64) -> io::Result<Self> {
        let begin = Begin { schema: SCHEMA.to_owned(), schema_version: SCHEMA_VERSION, started_unix_ns };
        let mut writer = Self { output };
        writer.write_line(&Line::Begin(begin))?;
        Ok(writer)
    }

    /// Writes the line for an interval.
    pub fn write(&mut self, interval: &Interval) -> io::Result<()> {
        self.write_line(&Line::Interval(interval.into()))
    }

    /// Writes the last line with the totals of the measurement, and returns the output.
    pub fn finish(mut self, total: &Interval) -> io::Result<W> {
        self.write_line(&Line::Total(total.into()))?;
        Ok(self.output)
    }

    fn write_line(&mut self, line: &Line) -> io::Result<()> {
        // One `write_all` call per line, so that two programs writing to the same pipe do not interleave their lines.
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.output.write_all(&text)?;
        self.output.flush()
    }
}
