//! Merging logs and printing the sums.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_load::formats::hdr_log::HdrLog;
use anello_load::merge::{self, NamedLog};

use super::flags::MergeArguments;
use super::output::{Report, csv, error_summary, table};
use crate::common::error::{Context, invalid_input};
use crate::common::output::{print_stderr, show};

pub fn run(arguments: &MergeArguments) -> io::Result<ExitCode> {
    let logs = arguments.logs.iter().map(|path| read(path)).collect::<io::Result<Vec<_>>>()?;
    let sums = merge::totals(&logs)?;
    let errors = merge::errors(&logs)?;
    if let Some(path) = &arguments.hdr {
        let is_same = |log: &PathBuf| {
            path.canonicalize().is_ok_and(|target| log.canonicalize().is_ok_and(|log| log == target))
        };
        if arguments.logs.iter().any(is_same) {
            let cause =
                "cannot write the merged log: the file is one of the logs to merge (choose another file)";
            return Err(invalid_input(cause)).context(path.display());
        }
        let file = File::create(path).context(path.display())?;
        merge::write_log(&logs, file).context(path.display())?;
    }
    if let Some(warning) = time_gap_warning(&logs) {
        print_stderr(format_args!("anello: {warning}"));
    }
    let text = match (arguments.json, arguments.csv) {
        (true, _) => serde_json::to_string_pretty(&Report::new(&logs, &sums, &errors))? + "\n",
        (_, true) => {
            error_summary(&logs, &errors).lines().for_each(print_stderr);
            csv(&logs, &sums)?
        }
        _ => table(&logs, &sums, &errors),
    };
    show(&text)?;
    let has_responses = sums.iter().any(|sum| !sum.total.latency.is_empty());
    let is_allowed = arguments.allowed.allows(&errors.known);
    if !has_responses && is_allowed {
        // Explains exit code 1, because nothing else in the output does.
        print_stderr("anello: no responses in any of the runs");
    }
    Ok(if has_responses && is_allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(path: &Path) -> io::Result<NamedLog> {
    let text = fs::read(path).context(path.display())?;
    let log = HdrLog::parse(&text).map_err(invalid_data).context(path.display())?;
    // The log of a run without a successful connection contains only errors.
    if log.records.is_empty() && log.errors.known.is_empty() {
        return Err(invalid_data("no intervals in the log")).context(path.display());
    }
    Ok(NamedLog { name: path.display().to_string(), log })
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
