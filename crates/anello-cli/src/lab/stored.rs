//! Stored runs.

use std::io;
use std::path::Path;

use anello_lab::LabResult;
use anello_lab::raw::read_runs;

/// Reads a run from its JSON or HTML report.
///
/// # Errors
/// Returns an error that names the file if it cannot be read, is not a run, or contains more than one.
pub fn read_result(path: &Path) -> io::Result<LabResult> {
    let mut runs = read_runs(path)?;
    match runs.pop() {
        Some(run) if runs.is_empty() => Ok(run),
        _ => {
            let message = format!("{} contains several runs (pass the JSON of one of them)", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}
