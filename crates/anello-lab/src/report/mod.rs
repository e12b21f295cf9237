//! Reports on a run: text for the terminal, JSON, an HTML page, plots as SVG files, and Markdown.

mod chart;
mod details;
mod document;
mod figures;
pub(crate) mod format;
mod names;
mod page;
mod palette;
mod published;
mod ratios;
pub mod raw;
mod svg;
pub(crate) mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use document::{render_markdown, render_table};
pub use page::{render_html, render_page};

use crate::report::chart::GroupCharts;
use crate::result::LabResult;
use crate::result::gzip::compress;
use crate::run::replace::{check_writable, replace};

/// Paths of the reports on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportPaths {
    /// Complete result.
    pub json: PathBuf,
    /// HTML page.
    pub html: PathBuf,
    /// Text for the terminal.
    pub table: PathBuf,
    /// Directory with all charts as SVG files.
    pub plots: PathBuf,
}

/// Renders the complete result as JSON.
///
/// # Errors
/// Does not fail, because JSON can represent all map keys in the result.
pub fn render_json(result: &LabResult) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(result)
}

/// Writes the complete result as JSON, compressed with gzip if the file name ends in `.gz`.
///
/// # Errors
/// Returns an error with the path if the file cannot be written.
pub fn write_json(result: &LabResult, path: &Path) -> io::Result<()> {
    if path.extension().is_some_and(|extension| extension == "gz") {
        return write(path, &compress(&serde_json::to_string(result)?)?);
    }
    write(path, render_json(result)?.as_bytes())
}

/// Checks that the reports and checkpoints can be written to `directory`, which is created if necessary, and the result
/// to
/// `json`. Leaves existing files unchanged.
///
/// # Errors
/// Returns an error with the path if the directory or a file cannot be created, or if there is no space for it.
pub fn check_outputs(directory: &Path, json: Option<&Path>) -> io::Result<()> {
    if directory.exists() && !directory.is_dir() {
        return Err(naming(directory)(io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory")));
    }
    fs::create_dir_all(directory).map_err(naming(directory))?;
    check_writable(&directory.join("report")).map_err(naming(directory))?;
    json.map_or(Ok(()), |path| check_writable(path).map_err(naming(path)))
}

/// Renders all charts as SVG. Returns the file name, with extension, and the text of each.
#[must_use]
pub fn render_plots(result: &LabResult) -> Vec<(String, String)> {
    let looks = palette::looks(&result.contenders, &result.plan.reference);
    let mut plots = Vec::new();
    for group in result.groups() {
        let GroupCharts { main, others, latencies } = GroupCharts::of(result, &group);
        let charts = [main, others, latencies].into_iter().flatten();
        plots.extend(charts.map(|chart| (format!("{}.svg", chart.name), svg::render(&chart, &looks))));
    }
    plots
}

/// Writes all reports to `directory`, which is created if necessary. The file names contain the start time of the run.
///
/// # Errors
/// Returns an error with the path if a file cannot be written or a directory cannot be created.
pub fn write_reports(result: &LabResult, directory: &Path) -> io::Result<ReportPaths> {
    let path = |suffix: &str| directory.join(format!("{}{suffix}", result.file_stem()));
    let (json, html, table, plots) = (path(".json"), path(".html"), path(".txt"), path("-plots"));
    fs::create_dir_all(directory).map_err(naming(directory))?;
    write_json(result, &json)?;
    write(&html, render_html(result).as_bytes())?;
    write(&table, render_table(result).as_bytes())?;
    write_plots(result, &plots)?;
    Ok(ReportPaths { json, html, table, plots })
}

/// Writes a page with all results to `path`, and their charts to the directory `plots` next to it. With several
/// results, each has its own subdirectory in `plots`. Returns the number of charts.
///
/// # Errors
/// Returns an error with the path if a file cannot be written or a directory cannot be created.
pub fn write_html(results: &[LabResult], path: &Path) -> io::Result<usize> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(naming(directory))?;
    write(path, render_page(results).as_bytes())?;
    let plots = directory.join("plots");
    let counts = results.iter().enumerate().map(|(index, result)| {
        let number = if results.len() > 1 { (index + 1).to_string() } else { String::new() };
        write_plots(result, &plots.join(number))
    });
    counts.sum()
}

fn write_plots(result: &LabResult, directory: &Path) -> io::Result<usize> {
    let plots = render_plots(result);
    fs::create_dir_all(directory).map_err(naming(directory))?;
    for (name, text) in &plots {
        let path = directory.join(name);
        // There are many plots, and they can be rendered again, so they are not synced to disk.
        fs::write(&path, text).map_err(naming(&path))?;
    }
    Ok(plots.len())
}

/// Replaces a file atomically, because the existing file may be the only checkpoint of the run.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes).map_err(naming(path))
}

/// Adds the path and a remedy to an error.
fn naming(path: &Path) -> impl Fn(io::Error) -> io::Error {
    let path = path.display();
    move |error| {
        let text = format!("cannot write {path}: {error} (choose another directory for the reports)");
        io::Error::new(error.kind(), text)
    }
}
