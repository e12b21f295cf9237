//! Stored runs.

use std::io;
use std::path::Path;

use anello_lab::LabResult;
use anello_lab::raw::read_runs;

use crate::common::error::invalid_input;

/// Reads a run from its JSON or HTML report.
///
/// # Errors
/// Returns an error that names the file if it cannot be read, is not a run, or contains more than one run.
pub fn read_result(path: &Path) -> io::Result<LabResult> {
    match <[LabResult; 1]>::try_from(read_runs(path)?) {
        Ok([run]) => Ok(run),
        Err(_) => Err(invalid_input(format!(
            "{} contains several runs (pass the JSON of one of them)",
            path.display()
        ))),
    }
}
