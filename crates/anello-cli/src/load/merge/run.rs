//! Reads the logs, adds them and prints the sums.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_load::formats::hdr_log::HdrLog;
use anello_load::merge::{self, NamedLog};

use super::flags::MergeArguments;
use super::json::Report;
use super::{csv, table};

/// Merges the logs and prints the result.
pub fn run(arguments: &MergeArguments) -> io::Result<ExitCode> {
    let logs = arguments.logs.iter().map(|path| read(path)).collect::<io::Result<Vec<_>>>()?;
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let sums = merge::totals(&logs).map_err(invalid)?;
    let errors = merge::errors(&logs).map_err(invalid)?;
    if let Some(path) = &arguments.hdr {
        refuse_to_overwrite(path, &arguments.logs)?;
        let file = File::create(path).map_err(|error| with_path(path, error))?;
        merge::write_log(&logs, file).map_err(|error| with_path(path, error))?;
    }
    if let Some(warning) = time_gap_warning(&logs) {
        eprintln!("anello: {warning}");
    }
    let text = match (arguments.json, arguments.csv) {
        (true, _) => serde_json::to_string_pretty(&Report::new(&logs, &sums, &errors))? + "\n",
        (_, true) => {
            eprint!("{}", table::error_summary(&logs, &errors));
            csv::render(&logs, &sums)?
        }
        _ => table::render(&logs, &sums, &errors),
    };
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    let has_responses = sums.iter().any(|sum| !sum.total.latency.is_empty());
    let is_allowed = arguments.allowed.allows(&errors.known);
    if !has_responses && is_allowed {
        // The output contains no other reason for exit code 1.
        eprintln!("anello: no responses in any of the runs");
    }
    Ok(ExitCode::from(if has_responses && is_allowed { 0 } else { 1 }))
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> io::Result<NamedLog> {
    let text = fs::read(path).map_err(|error| with_path(path, error))?;
    let invalid = |reason: String| with_path(path, io::Error::new(io::ErrorKind::InvalidData, reason));
    let log = HdrLog::parse(&text).map_err(|error| invalid(error.to_string()))?;
    // The log of a run without a successful connection contains only errors.
    if log.records.is_empty() && log.errors.known.is_empty() {
        return Err(invalid("no intervals in the log".to_owned()));
    }
    Ok(NamedLog { name: path.display().to_string(), log })
}

/// Returns an error if `path` is one of the logs, because writing the sum would overwrite it.
fn refuse_to_overwrite(path: &Path, logs: &[PathBuf]) -> io::Result<()> {
    let Ok(target) = path.canonicalize() else { return Ok(()) };
    match logs.iter().any(|log| log.canonicalize().is_ok_and(|log| log == target)) {
        true => {
            let reason = "cannot write the sum: the file is one of the logs to merge (choose another file)";
            Err(with_path(path, io::Error::new(io::ErrorKind::InvalidInput, reason)))
        }
        false => Ok(()),
    }
}

/// Returns a warning if one log ends before another one starts, because the request rates of the sums are then
/// meaningless.
fn time_gap_warning(logs: &[NamedLog]) -> Option<String> {
    let timed = || logs.iter().filter(|log| !log.log.records.is_empty());
    let first_end = timed().min_by_key(|log| log.log.end_ns())?;
    let last_start = timed().max_by_key(|log| log.log.start_ns())?;
    (first_end.log.end_ns() <= last_start.log.start_ns()).then(|| {
        format!(
            "{} ends before {} starts: requests/s of the sums include the time between them. If the runs were \
             simultaneous, the clocks of the machines differ, or a log lacks wall-clock timestamps.",
            first_end.name, last_start.name
        )
    })
}
