//! Runs the load generator: shows its progress, writes the interval records and prints the report.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anello_load::formats::csv::CsvWriter;
use anello_load::formats::hdr_log::HdrLogWriter;
use anello_load::formats::ndjson::NdjsonWriter;
use anello_load::{Event, Interval, LoadConfig, Outcome, run as run_load};

use super::flags::CommonFlags;
use super::progress::ProgressLine;
use super::table;
use super::tls_flags::remedy_flags;
use crate::common::error::Context;
use crate::common::{limits, output, stop};

/// Runs the load and prints the report.
pub fn run(load: &LoadConfig, flags: &CommonFlags) -> io::Result<ExitCode> {
    limits::raise_open_files();
    let stop = stop::flag()?;
    let mut line = ProgressLine::new();
    let mut files = Some(OutputFiles::create(flags)?);
    let mut writers = None;
    let mut write_error = None;
    let outcome = run_load(load, &flags.driver.builder(), |event| {
        let mut written = Ok(());
        match event {
            Event::Began { unix_ns } => {
                let begun = files.take().map(|files| OutputWriters::begin(files, unix_ns, load, flags));
                written = begun.transpose().map(|begun| writers = begun);
            }
            Event::Interval(interval) => {
                line.note(interval);
                written = writers.as_mut().map_or(Ok(()), |writers| writers.write(interval));
            }
            Event::Progress(progress) => line.show(progress),
            Event::Step(step) => line.step(step),
        }
        // An output error, such as a full disk, ends the load: an incomplete record must not look complete.
        write_error = write_error.take().or(written.err());
        let should_continue = write_error.is_none() && !stop.load(Ordering::Relaxed);
        if should_continue { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    line.end();
    let mut outcome = outcome?;
    for error in outcome.report.errors.iter_mut() {
        error.example += remedy_flags(error.tls_remedy);
    }
    if let Some(error) = write_error {
        return Err(error);
    }
    writers.map_or(Ok(()), |writers| writers.finish(&outcome))?;
    flags.driver.report_ignored(&outcome.report.driver);
    print(&outcome, flags)?;
    Ok(if flags.is_success(&outcome.report) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the report to standard output, or to standard error if the intervals are streamed to standard output.
fn print(outcome: &Outcome, flags: &CommonFlags) -> io::Result<()> {
    let text = match flags.json {
        true => serde_json::to_string_pretty(&outcome.report)? + "\n",
        false => table::render(&outcome.report),
    };
    if flags.streams_to_stdout() {
        return io::stderr().write_all(text.as_bytes());
    }
    output::show(&text)
}

/// Files for the interval records, opened before the load starts, so that an invalid path fails before the load runs.
struct OutputFiles {
    hdr: Option<File>,
    ndjson: Option<Box<dyn Write>>,
    csv: Option<File>,
}

impl OutputFiles {
    fn create(flags: &CommonFlags) -> io::Result<Self> {
        let ndjson: Option<Box<dyn Write>> = match &flags.ndjson {
            Some(path) if path.as_os_str() == "-" => Some(Box::new(io::stdout())),
            Some(path) => Some(Box::new(create(path)?)),
            None => None,
        };
        let file = |path: &Option<PathBuf>| path.as_deref().map(create).transpose();
        Ok(Self { hdr: file(&flags.hdr)?, ndjson, csv: file(&flags.csv)? })
    }
}

fn create(path: &Path) -> io::Result<File> {
    File::create(path).context(format_args!("cannot write {}", path.display()))
}

/// Writers of the interval records.
struct OutputWriters {
    hdr: Option<HdrLogWriter<File>>,
    ndjson: Option<NdjsonWriter<Box<dyn Write>>>,
    csv: Option<CsvWriter<File>>,
}

impl OutputWriters {
    fn begin(files: OutputFiles, unix_ns: u64, load: &LoadConfig, flags: &CommonFlags) -> io::Result<Self> {
        let title = format!("anello load of {} with {} connections", load.target, load.connections);
        let comments: Vec<&str> = [title.as_str()].into_iter().chain(flags.comment.as_deref()).collect();
        Ok(Self {
            hdr: files.hdr.map(|file| HdrLogWriter::new(file, unix_ns, &comments)).transpose()?,
            ndjson: files.ndjson.map(|output| NdjsonWriter::new(output, unix_ns)).transpose()?,
            csv: files.csv.map(CsvWriter::new).transpose()?,
        })
    }

    fn write(&mut self, interval: &Interval) -> io::Result<()> {
        self.hdr.as_mut().map_or(Ok(()), |hdr| hdr.write(interval))?;
        self.ndjson.as_mut().map_or(Ok(()), |ndjson| ndjson.write(interval))?;
        self.csv.as_mut().map_or(Ok(()), |csv| csv.write(interval))
    }

    fn finish(self, outcome: &Outcome) -> io::Result<()> {
        self.hdr.map_or(Ok(()), |mut hdr| hdr.write_errors(&outcome.report.errors))?;
        self.ndjson.map_or(Ok(()), |ndjson| ndjson.finish(&outcome.total).map(drop))?;
        self.csv.map_or(Ok(()), |csv| csv.finish(&outcome.total).map(drop))
    }
}
