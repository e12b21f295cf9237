//! A stream of intervals as JSON, one object a line, for programs that watch a run.
//!
//! ```text
//!  {"type":"begin","schema":"anello-load-intervals","schema_version":1,"began_unix_ns":1700000000250000000}
//!  {"type":"interval","start_ns":0,"elapsed_ns":1000000000,"requests":48211,…}
//!  {"type":"interval",…}
//!  {"type":"total",…}                                        the whole measurement; lacks if the run was killed
//! ```

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::formats::IntervalRecord;
use crate::interval::Interval;

/// Name of the format.
pub const SCHEMA: &str = "anello-load-intervals";

/// Version of the format: goes up with every change that an old reader would misunderstand, not when fields are added.
pub const SCHEMA_VERSION: u32 = 1;

/// One line of the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)] // The large one is the rule; lines are not kept.
pub enum Line {
    /// The first: what the stream is.
    Begin(Begin),
    /// One interval.
    Interval(IntervalRecord),
    /// The last: the whole measurement.
    Total(IntervalRecord),
}

/// What a stream is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The [`SCHEMA_VERSION`] it was written by.
    pub schema_version: u32,
    /// When the measurement began, in nanoseconds since 1970.
    pub began_unix_ns: u64,
}

/// Writes the stream, and passes each line on at once.
pub struct NdjsonWriter<W> {
    output: W,
}

impl<W: Write> NdjsonWriter<W> {
    /// Writes the first line.
    ///
    /// # Errors
    /// Those of the output.
    pub fn new(output: W, began_unix_ns: u64) -> io::Result<Self> {
        let mut writer = Self { output };
        writer.write_line(&Line::Begin(Begin {
            schema: SCHEMA.to_owned(),
            schema_version: SCHEMA_VERSION,
            began_unix_ns,
        }))?;
        Ok(writer)
    }

    /// Writes one interval.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&mut self, interval: &Interval) -> io::Result<()> {
        self.write_line(&Line::Interval(interval.into()))
    }

    /// Writes the last line, the whole measurement, and gives the output back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self, total: &Interval) -> io::Result<W> {
        self.write_line(&Line::Total(total.into()))?;
        Ok(self.output)
    }

    fn write_line(&mut self, line: &Line) -> io::Result<()> {
        // In one piece, so that two programs that write to one pipe do not mix their lines.
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.output.write_all(&text)?;
        self.output.flush()
    }
}

impl<W> fmt::Debug for NdjsonWriter<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NdjsonWriter").finish_non_exhaustive()
    }
}
