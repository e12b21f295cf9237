//! Merging logs and printing the sums.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_load::formats::hdr_log::HdrLog;
use anello_load::merge::{self, NamedLog, Problem, Runs};

use super::flags::MergeArguments;
use super::output::{Report, csv, error_summary, run_summary, table};
use crate::common::error::{Context, usage_error};
use crate::common::output::{print_stderr, show};
use crate::load::flags::is_stdout;

pub fn run(arguments: &MergeArguments) -> io::Result<ExitCode> {
    let mut paths = Vec::new();
    for input in &arguments.inputs {
        paths.extend(files(input)?);
    }
    let mut logs = Vec::new();
    paths.iter().try_for_each(|path| read(path, &mut logs))?;
    let runs = Runs::new(&mut logs)?;
    let sums = merge::totals(&logs)?;
    let errors = merge::errors(&logs)?;
    if let Some(path) = &arguments.hdr {
        let is_same = |input: &PathBuf| {
            path.canonicalize().is_ok_and(|target| input.canonicalize().is_ok_and(|input| input == target))
        };
        if paths.iter().any(is_same) {
            let cause =
                "cannot write the merged log: the file is one of the logs to merge (choose another file)";
            return Err(usage_error(cause)).context(path.display());
        }
    }
    let create = |path: &PathBuf| File::create(path).context(path.display());
    let sum_file = arguments.hdr.as_ref().map(create).transpose()?;
    if let Some(warning) = time_gap_warning(&logs) {
        print_stderr(format_args!("anello: {warning}"));
    }
    let text = match (arguments.json, arguments.csv) {
        (true, _) => serde_json::to_string_pretty(&Report::new(&logs, &sums, &errors, &runs))? + "\n",
        (_, true) => {
            (error_summary(&logs, &errors) + &run_summary(&runs)).lines().for_each(print_stderr);
            csv(&logs, &sums)?
        }
        _ => table(&logs, &sums, &errors, &runs),
    };
    // The sums are printed first, so that they are not lost if the log cannot be written.
    let shown = show(&text);
    let written = match (sum_file, &arguments.hdr) {
        (Some(file), Some(path)) => merge::write_log(&logs, file).map(drop).context(path.display()),
        _ => Ok(()),
    };
    written.and(shown)?;
    let has_responses = sums.iter().any(|sum| !sum.total.latency.is_empty());
    let is_allowed = arguments.allowed.allows(&errors.known);
    let is_one_load = !runs.problems.iter().any(Problem::is_error);
    if !has_responses && is_allowed && is_one_load {
        // Explains exit code 1, because nothing else in the output does.
        print_stderr("anello: no responses in any of the runs");
    }
    let is_success = has_responses && is_allowed && is_one_load;
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the files to read for an argument: those of a directory that are reports or logs, or the file itself.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.context(path.display())?.into_iter().map(|entry| entry.path());
    let is_input = |path: &PathBuf| path.extension().is_some_and(|end| end == "json" || end == "hlog");
    // A run that failed or was killed leaves an empty report.
    let is_empty = |path: &PathBuf| path.metadata().is_ok_and(|metadata| metadata.len() == 0);
    let mut files: Vec<PathBuf> =
        entries.filter(|path| is_input(path) && !path.is_dir() && !is_empty(path)).collect();
    if files.is_empty() {
        return Err(invalid_data("no files *.json or *.hlog in the directory")).context(path.display());
    }
    files.sort();
    Ok(files)
}

/// Reads a file with an interval log or with reports.
fn read(path: &Path, logs: &mut Vec<NamedLog>) -> io::Result<()> {
    let (name, text) = match is_stdout(path) {
        true => {
            let mut text = Vec::new();
            ("standard input".to_owned(), io::stdin().read_to_end(&mut text).map(|_| text))
        }
        false => (path.display().to_string(), fs::read(path)),
    };
    let text = text.context(&name)?;
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        let before = logs.len();
        for report in serde_json::Deserializer::from_slice(&text).into_iter() {
            // Several reports in a file are numbered.
            let log = report.map_err(not_a_report).and_then(|report| {
                NamedLog::from_report(format!("{name}#{}", logs.len() - before + 1), report)
                    .map_err(invalid_data)
            });
            logs.push(log.context(&name)?);
        }
        if let [only] = &mut logs[before..] {
            only.name = name;
        }
        return Ok(());
    }
    let log = HdrLog::parse(&text).map_err(invalid_data).context(&name)?;
    // The log of a run without a successful connection contains only errors, and that of a shard that was killed in its
    // first interval only the identity.
    let is_shard = log.runs.iter().any(|run| run.shard.is_some());
    if log.records.is_empty() && log.errors.known.is_empty() && !is_shard {
        return Err(invalid_data("no intervals in the log")).context(&name);
    }
    logs.push(NamedLog { name, log, report: None });
    Ok(())
}

fn not_a_report(error: serde_json::Error) -> io::Error {
    invalid_data(format!("not a report of anello load --json: {error}"))
}

fn invalid_data(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Returns a warning if one log ends before another one starts: request rates computed from the sums are then
/// meaningless.
fn time_gap_warning(logs: &[NamedLog]) -> Option<String> {
    let timed = || logs.iter().filter(|log| !log.log.records.is_empty());
    let first_end = timed().min_by_key(|log| log.log.end_ns())?;
    let last_start = timed().max_by_key(|log| log.log.start_ns())?;
    (first_end.log.end_ns() <= last_start.log.start_ns()).then(|| {
        format!(
            "{} ends before {} starts: requests/s of the sums are averaged over the gap as well. If the runs were in \
             fact simultaneous, either the clocks of the machines differ or a log lacks wall-clock timestamps.",
            first_end.name, last_start.name
        )
    })
}
