//! `anello lab report`: the HTML report of one or several kept runs.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anello_lab::analysis::backfill;
use anello_lab::raw::read_runs;

use crate::output::show;

/// Make the HTML report anew from one or several runs: their JSON, or reports that have it in them.
///
/// One file that needs no network, with all runs one after the other, and the plots beside it as SVG files in a folder
/// called plots.
#[derive(clap::Args)]
pub struct ReportArguments {
    /// The runs: JSON or HTML.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,

    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "anello-lab.html")]
    out: PathBuf,

    /// Print the table of every run as well.
    #[arg(long)]
    table: bool,

    /// Write anello against every peer, and each contender against the one that it names as its base, every cell, as
    /// Markdown tables for a document as well.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Writes the report.
pub fn run(arguments: &ReportArguments) -> io::Result<ExitCode> {
    let runs = arguments.runs.iter().map(|path| read_runs(path)).collect::<io::Result<Vec<_>>>()?;
    let mut results = runs.concat();
    // Runs are kept from before there were all pairs, or the CPU of server and load together.
    results.iter_mut().for_each(backfill);
    if let Some(path) = &arguments.markdown {
        fs::write(path, anello_lab::render_markdown(&results)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
        })?;
    }
    let plots = anello_lab::write_html(&results, &arguments.out)?;
    let mut text = String::new();
    for result in results.iter().filter(|_| arguments.table) {
        text += &format!("{}\n", anello_lab::render_table(result));
    }
    text += &format!("Report: {} and {plots} plots beside it\n", arguments.out.display());
    show(&text)?;
    Ok(ExitCode::SUCCESS)
}
