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
use anello_load::{Event, Interval, LoadConfig, Outcome, PauseSwitch, RunIdentity};

use super::flags::{CommonFlags, is_stdout, remedy_flags};
use super::table;
use super::view::{self, Display};
use crate::common::error::Context;
use crate::common::{output, process};

/// Runs the load, shows its progress, writes the interval records, and prints the report.
pub fn run(load: &LoadConfig, flags: &CommonFlags) -> io::Result<ExitCode> {
    process::raise_open_files();
    let has_view = view::is_wanted(flags);
    let stop = process::stop_flag(has_view)?;
    let mut files = Some(Outputs::create(flags, load)?);
    let json_path = flags.json.as_deref().filter(|path| !is_stdout(path));
    let json_file = json_path.map(|path| create(path, load)).transpose()?;
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
    if let Some(error) = write_error {
        return Err(error);
    }
    writers.map_or(Ok(()), |writers| writers.finish(&outcome))?;
    flags.driver.report_ignored(&outcome.report.driver);
    print(&outcome, json_file, flags)?;
    let is_success = outcome.report.requests > 0 && flags.allowed.allows(&outcome.report.errors);
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the report to its file, and prints it to standard output, or to standard error if the intervals are streamed
/// to standard output.
fn print(outcome: &Outcome, json_file: Option<File>, flags: &CommonFlags) -> io::Result<()> {
    let json = || io::Result::Ok(serde_json::to_string_pretty(&outcome.report)? + "\n");
    if let Some(mut file) = json_file {
        file.write_all(json()?.as_bytes()).context("cannot write the report")?;
    }
    let text = match &flags.json {
        Some(path) if is_stdout(path) => json()?,
        _ => table::render(&outcome.report),
    };
    match [&flags.hdr, &flags.ndjson].into_iter().flatten().any(|path| is_stdout(path)) {
        true => io::stderr().write_all(text.as_bytes()),
        false => output::show(&text),
    }
}

struct Outputs<Hdr, Ndjson, Csv> {
    hdr: Option<Hdr>,
    ndjson: Option<Ndjson>,
    csv: Option<Csv>,
}

type Writer = Box<dyn Write>;

/// Creates an output file. `{shard}` in its name is replaced with the index of the shard.
fn create(path: &Path, load: &LoadConfig) -> io::Result<File> {
    let index = load.shard.as_ref().map_or(0, |shard| shard.index);
    let path = match path.to_str() {
        Some(name) => PathBuf::from(name.replace("{shard}", &index.to_string())),
        None => path.to_owned(),
    };
    File::create(&path).context(format_args!("cannot write {}", path.display()))
}

impl Outputs<Writer, Writer, File> {
    /// Opens the files before the load starts, so that an invalid path is reported immediately.
    fn create(flags: &CommonFlags, load: &LoadConfig) -> io::Result<Self> {
        let create_stream = |path: &PathBuf| match is_stdout(path) {
            true => io::Result::Ok(Box::new(io::stdout()) as Writer),
            false => Ok(Box::new(create(path, load)?) as Writer),
        };
        Ok(Self {
            hdr: flags.hdr.as_ref().map(create_stream).transpose()?,
            ndjson: flags.ndjson.as_ref().map(create_stream).transpose()?,
            csv: flags.csv.as_ref().map(|path| create(path, load)).transpose()?,
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

type OutputWriters = Outputs<HdrLogWriter<Writer>, NdjsonWriter<Writer>, CsvWriter<File>>;

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
