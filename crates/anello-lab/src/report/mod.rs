//! The three forms of a result: a table for the terminal, JSON for programs, HTML for everyone else.

mod format;
mod html;
mod plot;
mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use html::render_html;
pub use table::render_table;

use crate::result::LabResult;

/// Where the reports of one run lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportPaths {
    /// The whole result.
    pub json: PathBuf,
    /// The report to look at.
    pub html: PathBuf,
    /// The terminal table.
    pub table: PathBuf,
}

/// The whole result as JSON: every slice, every verdict, everything that the other reports are made of.
///
/// # Errors
/// Never in practice: the result has no keys that JSON cannot express.
pub fn render_json(result: &LabResult) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(result)
}

/// Writes all three reports into `directory`, made if it does not exist, named after the start of the run.
///
/// # Errors
/// Which path could not be written and why.
pub fn write_reports(result: &LabResult, directory: &Path) -> io::Result<ReportPaths> {
    let failed = |path: &Path, error: io::Error| {
        let text =
            format!("cannot write {}: {error}; choose another directory for the reports", path.display());
        io::Error::new(error.kind(), text)
    };
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    let stem = format!("lab-{}", format::compact_time(result.started_unix_s));
    let write = |extension: &str, text: String| {
        let path = directory.join(format!("{stem}.{extension}"));
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
        Ok::<PathBuf, io::Error>(path)
    };
    Ok(ReportPaths {
        json: write("json", render_json(result)?)?,
        html: write("html", render_html(result))?,
        table: write("txt", render_table(result))?,
    })
}
