//! `anello lab report`: an HTML report of one or more stored runs.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anello_lab::analysis::backfill;
use anello_lab::raw::read_runs;

use crate::common::error::Context;
use crate::common::output::show;

/// Recreate the HTML report from saved runs, given as JSON (optionally compressed with gzip) or as HTML reports.
///
/// The report is a single file without external resources that contains all runs. The plots are also written as SVG
/// files to a directory named `plots` next to the report.
#[derive(clap::Args)]
pub struct ReportArguments {
    /// Runs to include: JSON files, optionally compressed with gzip, or HTML files.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File to write.
    #[arg(long, value_name = "FILE", default_value = "anello-lab.html")]
    out: PathBuf,
    /// Also print the table of each run.
    #[arg(long)]
    table: bool,
    /// Also write Markdown tables that compare anello with each peer, and each contender with its base, in all cells.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

pub fn run(arguments: &ReportArguments) -> io::Result<ExitCode> {
    let runs = arguments.runs.iter().map(|path| read_runs(path)).collect::<io::Result<Vec<_>>>()?;
    let mut results = runs.concat();
    // Runs from older versions lack the comparisons of all pairs and the combined CPU time of server and load
    // generator.
    results.iter_mut().for_each(backfill);
    if let Some(path) = &arguments.markdown {
        let markdown = anello_lab::render_markdown(&results);
        fs::write(path, markdown).context(format_args!("cannot write {}", path.display()))?;
    }
    let plots = anello_lab::write_html(&results, &arguments.out)?;
    let mut text = String::new();
    for result in results.iter().filter(|_| arguments.table) {
        text += &format!("{}\n", anello_lab::render_table(result));
    }
    text += &format!(
        "Report: {}, with {plots} plots in the directory plots next to it\n",
        arguments.out.display()
    );
    show(&text).map(|()| ExitCode::SUCCESS)
}
