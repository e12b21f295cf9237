//! Execution of a load run: progress, output files and the report.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anello_load::formats::csv::CsvWriter;
use anello_load::formats::hdr_log::HdrLogWriter;
use anello_load::formats::ndjson::NdjsonWriter;
use anello_load::{Event, Interval, LoadConfig, Outcome, PauseSwitch};

use super::flags::{CommonFlags, remedy_flags};
use super::table;
use super::view::{self, Display};
use crate::common::error::Context;
use crate::common::{output, process};

/// Runs the load, shows its progress, writes the interval records, and prints the report.
pub fn run(load: &LoadConfig, flags: &CommonFlags) -> io::Result<ExitCode> {
    process::raise_open_files();
    let has_view = view::is_wanted(flags);
    let stop = process::stop_flag(has_view)?;
    let mut files = Some(Outputs::create(flags)?);
    let pause = PauseSwitch::default();
    let mut display = Display::new(has_view, load, &stop, &pause)?;
    let mut writers = None;
    let mut write_error = None;
    let outcome = anello_load::run_with_pause(load, &flags.driver.builder(), &pause, |event| {
        let mut written = Ok(());
        match event {
            Event::Began { unix_ns } => {
                let begun = files.take().map(|files| files.begin(unix_ns, load, flags));
                written = begun.transpose().map(|begun| writers = begun);
            }
            Event::Interval(interval) => {
                written = writers.as_mut().map_or(Ok(()), |writers| writers.write(interval));
            }
            Event::Progress(_) | Event::Step(_) => {}
        }
        display.update(&event);
        // An output error, such as a full disk, ends the load: an incomplete record must not look complete.
        write_error = write_error.take().or(written.err());
        let should_continue = write_error.is_none() && !stop.load(Ordering::Relaxed);
        if should_continue { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    display.finish();
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
    let is_success = outcome.report.requests > 0 && flags.allowed.allows(&outcome.report.errors);
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the report to standard output, or to standard error if the intervals are streamed to standard output.
fn print(outcome: &Outcome, flags: &CommonFlags) -> io::Result<()> {
    let text = match flags.json {
        true => serde_json::to_string_pretty(&outcome.report)? + "\n",
        false => table::render(&outcome.report),
    };
    match &flags.ndjson {
        Some(path) if is_stdout(path) => io::stderr().write_all(text.as_bytes()),
        _ => output::show(&text),
    }
}

/// Returns whether an output file is standard output, written as `-`.
fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

struct Outputs<Hdr, Ndjson, Csv> {
    hdr: Option<Hdr>,
    ndjson: Option<Ndjson>,
    csv: Option<Csv>,
}

type Writer = Box<dyn Write>;

impl Outputs<File, Writer, File> {
    /// Opens the files before the load starts, so that an invalid path is reported immediately.
    fn create(flags: &CommonFlags) -> io::Result<Self> {
        let create =
            |path: &PathBuf| File::create(path).context(format_args!("cannot write {}", path.display()));
        let create_stream = |path: &PathBuf| match is_stdout(path) {
            true => io::Result::Ok(Box::new(io::stdout()) as Writer),
            false => Ok(Box::new(create(path)?) as Writer),
        };
        Ok(Self {
            hdr: flags.hdr.as_ref().map(create).transpose()?,
            ndjson: flags.ndjson.as_ref().map(create_stream).transpose()?,
            csv: flags.csv.as_ref().map(create).transpose()?,
        })
    }

    fn begin(self, unix_ns: u64, load: &LoadConfig, flags: &CommonFlags) -> io::Result<OutputWriters> {
        let title = format!("anello load of {} with {} connections", load.target, load.connections);
        let comments: Vec<&str> = [title.as_str()].into_iter().chain(flags.comment.as_deref()).collect();
        Ok(Outputs {
            hdr: self.hdr.map(|file| HdrLogWriter::new(file, unix_ns, &comments)).transpose()?,
            ndjson: self.ndjson.map(|output| NdjsonWriter::new(output, unix_ns)).transpose()?,
            csv: self.csv.map(CsvWriter::new).transpose()?,
        })
    }
}

type OutputWriters = Outputs<HdrLogWriter<File>, NdjsonWriter<Writer>, CsvWriter<File>>;

impl OutputWriters {
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
