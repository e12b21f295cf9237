//! Runs a load: shows its progress, writes the interval records and prints the report.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anello_load::formats::csv::CsvWriter;
use anello_load::formats::hdr_log::HdrLogWriter;
use anello_load::formats::ndjson::NdjsonWriter;
use anello_load::{ErrorKind, Event, Interval, LoadConfig, Outcome, run as run_load};

use super::flags::CommonFlags;
use super::progress::ProgressLine;
use super::table;
use super::tls_flags::with_flags;
use crate::common::{limits, stop};

/// Runs the load and prints the report.
pub fn run(load: &LoadConfig, flags: &CommonFlags) -> io::Result<ExitCode> {
    limits::raise_open_files();
    let stop = stop::flag()?;
    let mut line = ProgressLine::new();
    let mut files = OutputWriters::create(flags)?;
    let mut write_error = None;
    let outcome = run_load(load, &flags.driver.builder(), |event| {
        let written = match event {
            Event::Began { unix_ns } => files.begin(unix_ns, load, flags),
            Event::Interval(interval) => {
                line.note(interval);
                files.write(interval)
            }
            Event::Progress(progress) => {
                line.show(progress);
                Ok(())
            }
            Event::Step(step) => {
                line.step(step);
                Ok(())
            }
        };
        // An output error, such as a full disk, ends the load: an incomplete record must not look complete.
        write_error = write_error.take().or(written.err());
        let should_continue = write_error.is_none() && !stop.load(Ordering::Relaxed);
        if should_continue { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    line.end();
    let mut outcome = outcome?;
    outcome.report.errors.explain(ErrorKind::Tls, with_flags);
    if let Some(error) = write_error {
        return Err(error);
    }
    files.finish(&outcome)?;
    flags.driver.report_ignored(&outcome.report.driver);
    print(&outcome, flags)?;
    Ok(ExitCode::from(if flags.is_success(&outcome.report) { 0 } else { 1 }))
}

/// Prints the report to standard output, or to standard error if the intervals are streamed to standard output.
fn print(outcome: &Outcome, flags: &CommonFlags) -> io::Result<()> {
    let text = match flags.json {
        true => serde_json::to_string_pretty(&outcome.report)? + "\n",
        false => table::render(&outcome.report),
    };
    let mut output: Box<dyn Write> = match flags.streams_to_stdout() {
        true => Box::new(io::stderr().lock()),
        false => Box::new(io::stdout().lock()),
    };
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Writers of the interval records.
#[derive(Default)]
struct OutputWriters {
    /// Files opened before the load starts, so that an invalid path fails before the load runs. `None` once the writers
    /// use the files.
    opened: Option<OutputFiles>,
    hdr: Option<HdrLogWriter<File>>,
    ndjson: Option<NdjsonWriter<Box<dyn Write>>>,
    csv: Option<CsvWriter<File>>,
}

struct OutputFiles {
    hdr: Option<File>,
    ndjson: Option<Box<dyn Write>>,
    csv: Option<File>,
}

impl OutputWriters {
    fn create(flags: &CommonFlags) -> io::Result<Self> {
        let ndjson: Option<Box<dyn Write>> = match &flags.ndjson {
            Some(path) if path.as_os_str() == "-" => Some(Box::new(io::stdout())),
            Some(path) => Some(Box::new(create(path)?)),
            None => None,
        };
        let file = |path: &Option<std::path::PathBuf>| path.as_deref().map(create).transpose();
        let opened = OutputFiles { hdr: file(&flags.hdr)?, ndjson, csv: file(&flags.csv)? };
        Ok(Self { opened: Some(opened), ..Self::default() })
    }

    fn begin(&mut self, unix_ns: u64, load: &LoadConfig, flags: &CommonFlags) -> io::Result<()> {
        let Some(opened) = self.opened.take() else { return Ok(()) };
        let title = format!("anello load of {} with {} connections", load.target, load.connections);
        let mut comments = vec![title.as_str()];
        comments.extend(flags.comment.as_deref());
        self.hdr = opened.hdr.map(|file| HdrLogWriter::new(file, unix_ns, &comments)).transpose()?;
        self.ndjson = opened.ndjson.map(|output| NdjsonWriter::new(output, unix_ns)).transpose()?;
        self.csv = opened.csv.map(CsvWriter::new).transpose()?;
        Ok(())
    }

    fn write(&mut self, interval: &Interval) -> io::Result<()> {
        if let Some(hdr) = &mut self.hdr {
            hdr.write(interval)?;
        }
        if let Some(ndjson) = &mut self.ndjson {
            ndjson.write(interval)?;
        }
        if let Some(csv) = &mut self.csv {
            csv.write(interval)?;
        }
        Ok(())
    }

    fn finish(self, outcome: &Outcome) -> io::Result<()> {
        if let Some(mut hdr) = self.hdr {
            hdr.write_errors(&outcome.report.errors)?;
        }
        if let Some(ndjson) = self.ndjson {
            ndjson.finish(&outcome.total)?;
        }
        if let Some(csv) = self.csv {
            csv.finish(&outcome.total)?;
        }
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    File::create(path)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}
