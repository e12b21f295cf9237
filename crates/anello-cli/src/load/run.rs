//! Execution of a load run: progress, output files and the report.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anello_load::formats::csv::CsvWriter;
use anello_load::formats::hdr_log::HdrLogWriter;
use anello_load::formats::ndjson::NdjsonWriter;
use anello_load::{Event, Interval, LoadConfig, Outcome, PauseSwitch, RunIdentity};

use super::flags::{CommonFlags, is_stdout, remedy_flags};
use super::output_file::{OutputFile, OutputFiles};
use super::table;
use super::view::{self, Display};
use crate::common::error::Context;
use crate::common::{output, process};

/// Runs the load, shows its progress, writes the interval records, and prints the report.
pub fn run(load: &LoadConfig, flags: &CommonFlags) -> io::Result<ExitCode> {
    process::raise_open_files();
    let has_view = view::is_wanted(flags);
    let stop = process::stop_flag(has_view)?;
    process::check_open_files(load.own_connections(), load.threads)?;
    let mut created = OutputFiles::default();
    let mut files = Some(Outputs::create(flags, load, &mut created)?);
    let json_path = flags.json.as_deref().filter(|path| !is_stdout(path));
    let json_file = json_path.map(|path| created.create(path, load)).transpose()?;
    let pause = PauseSwitch::default();
    let mut display = Display::new(has_view, load, &stop, &pause)?;
    let mut writers = None;
    let mut write_error = None;
    let outcome = anello_load::run_with_pause(load, &flags.driver.builder(), &pause, |event| {
        let mut written = Ok(());
        match event {
            Event::Began { unix_ns, run } => {
                let begun = files.take().map(|files| files.begin(unix_ns, run, load, flags));
                written = begun.transpose().map(|begun| writers = begun);
            }
            Event::Interval(interval) => {
                written = writers.as_mut().map_or(Ok(()), |writers| writers.write(interval));
            }
            _ => {}
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
    flags.driver.report_ignored(&outcome.report.driver);
    // The report is printed first, so that it is not lost if a file cannot be written.
    let printed = print(&outcome, flags);
    let save = |mut file: OutputFile| file.write_all(json(&outcome)?.as_bytes());
    let saved = json_file.map_or(Ok(()), save);
    let finished = match (write_error, writers) {
        (Some(error), _) => Err(error).context("the load was ended early"),
        (None, writers) => writers.map_or(Ok(()), |writers| writers.finish(&outcome)),
    };
    saved.and(finished).and(printed)?;
    let is_success = outcome.report.requests > 0 && flags.allowed.allows(&outcome.report.errors);
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the report to standard output, or to standard error if the intervals are streamed to standard output.
fn print(outcome: &Outcome, flags: &CommonFlags) -> io::Result<()> {
    let text = match &flags.json {
        Some(path) if is_stdout(path) => json(outcome)?,
        _ => table::render(&outcome.report),
    };
    let printed = match [&flags.hdr, &flags.ndjson].into_iter().flatten().any(|path| is_stdout(path)) {
        true => io::stderr().write_all(text.as_bytes()),
        false => output::show(&text),
    };
    printed.context("cannot print the report")
}

fn json(outcome: &Outcome) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(&outcome.report)? + "\n")
}

struct Outputs<Hdr, Ndjson, Csv> {
    hdr: Option<Hdr>,
    ndjson: Option<Ndjson>,
    csv: Option<Csv>,
}

type Writer = Box<dyn Write>;

impl Outputs<Writer, Writer, OutputFile> {
    /// Opens the files before the load starts, so that an invalid path is reported immediately.
    fn create(flags: &CommonFlags, load: &LoadConfig, files: &mut OutputFiles) -> io::Result<Self> {
        let csv = flags.csv.as_ref().map(|path| files.create(path, load)).transpose()?;
        let mut create_stream = |path: &PathBuf| match is_stdout(path) {
            true => io::Result::Ok(Box::new(io::stdout()) as Writer),
            false => Ok(Box::new(files.create(path, load)?) as Writer),
        };
        Ok(Self {
            hdr: flags.hdr.as_ref().map(&mut create_stream).transpose()?,
            ndjson: flags.ndjson.as_ref().map(&mut create_stream).transpose()?,
            csv,
        })
    }

    fn begin(
        self,
        unix_ns: u64,
        run: &RunIdentity,
        load: &LoadConfig,
        flags: &CommonFlags,
    ) -> io::Result<OutputWriters> {
        let title = format!("anello load of {} with {} connections", load.target, load.own_connections());
        let comments: Vec<&str> = [title.as_str()].into_iter().chain(flags.comment.as_deref()).collect();
        let runs = std::slice::from_ref(run);
        let hdr = self.hdr.map(|output| HdrLogWriter::with_runs(output, unix_ns, &comments, runs));
        Ok(Outputs {
            hdr: hdr.transpose()?,
            ndjson: self.ndjson.map(|output| NdjsonWriter::new(output, unix_ns)).transpose()?,
            csv: self.csv.map(CsvWriter::new).transpose()?,
        })
    }
}

type OutputWriters = Outputs<HdrLogWriter<Writer>, NdjsonWriter<Writer>, CsvWriter<OutputFile>>;

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
