//! The forms of a result: a table for the terminal, JSON for programs, HTML for everyone else, its plots as files, and
//! tables for documents.

mod base;
mod chart;
mod drawings;
pub(crate) mod format;
mod html;
mod markdown;
mod matrix;
mod palette;
mod peaks;
pub mod raw;
mod svg;
mod table;
pub(crate) mod text;
mod value;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use html::{render_html, render_page};
pub use markdown::render_markdown;
pub use table::render_table;

use crate::result::LabResult;
use crate::run::replace::replace;

/// Where the reports of one run lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportPaths {
    /// The whole result.
    pub json: PathBuf,
    /// The report to look at.
    pub html: PathBuf,
    /// The terminal table.
    pub table: PathBuf,
    /// The folder with every plot as an SVG file.
    pub plots: PathBuf,
}

/// The whole result as JSON: every slice, every verdict, everything that the other reports are made of.
///
/// # Errors
/// Never in practice: the result has no keys that JSON cannot express.
pub fn render_json(result: &LabResult) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(result)
}

/// Every plot of the result as a file of its own: name with extension and text, in colours for a light ground.
#[must_use]
pub fn render_plots(result: &LabResult) -> Vec<(String, String)> {
    let groups = drawings::drawings(result);
    let all =
        groups.iter().flat_map(|group| [&group.lines, &group.bars, &group.ratios, &group.curves]).flatten();
    all.map(|drawing| (format!("{}.svg", drawing.name), svg::standalone(&drawing.svg))).collect()
}

/// Writes all reports into `directory`, made if it does not exist, named after the start of the run: JSON, HTML, text and
/// a folder of plots.
///
/// # Errors
/// Which path could not be written and why.
pub fn write_reports(result: &LabResult, directory: &Path) -> io::Result<ReportPaths> {
    let stem = result.file_stem();
    let path = |extension: &str| directory.join(format!("{stem}.{extension}"));
    let paths = ReportPaths {
        json: path("json"),
        html: path("html"),
        table: path("txt"),
        plots: directory.join(format!("{stem}-plots")),
    };
    make_directory(directory)?;
    write(&paths.json, &render_json(result)?)?;
    write(&paths.html, &render_html(result))?;
    write(&paths.table, &render_table(result))?;
    write_plots(result, &paths.plots)?;
    Ok(paths)
}

/// Writes one page with all the results to `path`, and their plots into the folder `plots` beside it (with several
/// results, a folder for each within it). Returns the number of plots.
///
/// # Errors
/// Which path could not be written and why.
pub fn write_html(results: &[LabResult], path: &Path) -> io::Result<usize> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directory(directory)?;
    write(path, &render_page(results))?;
    let plots = directory.join("plots");
    let mut count = 0;
    for (index, result) in results.iter().enumerate() {
        let folder = if results.len() > 1 { plots.join((index + 1).to_string()) } else { plots.clone() };
        count += write_plots(result, &folder)?;
    }
    Ok(count)
}

fn write_plots(result: &LabResult, directory: &Path) -> io::Result<usize> {
    let plots = render_plots(result);
    make_directory(directory)?;
    for (name, text) in &plots {
        let path = directory.join(name);
        // Made from the run that is kept, and many: they can be made again.
        fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    }
    Ok(plots.len())
}

fn make_directory(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory).map_err(|error| failed(directory, &error))
}

/// A run is kept in these files, and what was there before may be the only checkpoint of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    replace(path, text.as_bytes()).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> io::Error {
    let text = format!("cannot write {}: {error}; choose another directory for the reports", path.display());
    io::Error::new(error.kind(), text)
}
