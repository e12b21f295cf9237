//! `anello lab list`: presets, contenders, peers and stored runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_lab::peers::Serves;
use anello_lab::result::FindingKind;
use anello_lab::{Contender, LabResult, PRESETS, Resources, resolve};

use super::disk_file::default_disk_file;
use super::sources::{self, PeersFlag, read_result};
use crate::common::error::Context;
use crate::common::output::show;

const NAME_WIDTH: usize = 18;

/// List presets, contenders, peers, and the runs stored in the output directory.
#[derive(clap::Args)]
pub struct ListArguments {
    /// Directory with the reports from earlier runs.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab")]
    out: PathBuf,
    #[command(flatten)]
    peers: PeersFlag,
}

pub fn run(arguments: &ListArguments) -> io::Result<ExitCode> {
    let resources = sources::resources(arguments.peers.directory.as_deref(), &default_disk_file())?;
    let text = presets(&resources) + &contenders(&resources) + &runs(&arguments.out)?;
    show(&text).map(|()| ExitCode::SUCCESS)
}

/// Lists the presets. Their sizes and estimated durations depend on this machine and on the peers that are built.
fn presets(resources: &Resources) -> String {
    let mut text = "presets (anello lab run --preset NAME)\n".to_owned();
    for (name, scenario) in PRESETS {
        text += &match resolve(name, scenario, resources) {
            Ok(config) => format!(
                "  {name:14} {:>3} cells {:>3} contenders {:>8}  {}\n",
                config.cells.len(),
                config.contenders.len(),
                format_duration(config.estimated_time().as_secs()),
                config.scenario.title
            ),
            Err(error) => format!("  {name:14} unavailable on this machine: {error}\n"),
        };
    }
    text
}

fn format_duration(seconds: u64) -> String {
    match seconds {
        0..90 => format!("{seconds} s"),
        90..5400 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

fn contenders(resources: &Resources) -> String {
    let mut text = "\nbuilt-in contenders\n".to_owned();
    for contender in Contender::default_contenders(&resources.executable) {
        let note = |original| format!("second instance of {original}, to measure the noise floor");
        text += &row(&contender, &contender.twin_of.as_ref().map(note).unwrap_or_default());
    }
    text += "\nbuilt-in contenders for HTTP\n";
    for contender in Contender::http_servers(&resources.executable) {
        text += &row(&contender, &served_targets(&contender));
    }
    for (heading, built, unbuilt) in [
        ("peers", &resources.peers, &resources.unbuilt_peers),
        ("HTTP peers", &resources.http_peers, &resources.unbuilt_http_peers),
    ] {
        text += &format!("\n{heading} built (anello lab peers build)\n");
        for peer in built {
            let version = peer.version.as_deref().unwrap_or("");
            text += &row(peer, &format!("{version:10} {}", served_targets(peer)));
        }
        if built.is_empty() {
            text += "  none\n";
        }
        if !unbuilt.is_empty() {
            text += &format!("  not built: {}\n", unbuilt.join(", "));
        }
    }
    text
}

fn row(contender: &Contender, note: &str) -> String {
    let driver = contender.driver.as_deref().unwrap_or("");
    format!("  {:NAME_WIDTH$} {driver:10} {note}", contender.name).trim_end().to_owned() + "\n"
}

/// Returns the targets that an HTTP server supports, as text; an empty string for other servers.
fn served_targets(contender: &Contender) -> String {
    let targets = contender.serves.iter().map(|target| match target {
        Serves::Files => "files",
        Serves::Fixed => "/fixed",
        Serves::Routes => "routes",
        _ => "others",
    });
    targets.collect::<Vec<_>>().join(", ")
}

/// Lists the runs in a directory, newest first. A file that cannot be read as a run is listed with the error.
fn runs(directory: &Path) -> io::Result<String> {
    let mut paths: Vec<PathBuf> = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        entries => {
            let entries = entries.context(format_args!("cannot read {}", directory.display()))?;
            entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
        }
    };
    paths.retain(|path| [".json", ".json.gz"].iter().any(|end| path.to_string_lossy().ends_with(end)));
    paths.sort();
    let mut text = format!("\nruns in {}\n", directory.display());
    for path in paths.iter().rev() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text += &match read_result(path) {
            Ok(result) => format!("  {name}  {}\n", describe(&result)),
            Err(error) => format!("  {error}\n"),
        };
    }
    if paths.is_empty() {
        text += "  none yet (start one with `anello lab run`)\n";
    }
    Ok(text)
}

/// Describes a run in one line: scenario, size, duration and headline finding.
fn describe(result: &LabResult) -> String {
    let interrupted = if result.interrupted { ", interrupted" } else { "" };
    let headline = result.findings.iter().find(|finding| finding.kind == FindingKind::Headline);
    format!(
        "{}, {} contenders, {} cells, {:.0} s{interrupted}: {}",
        result.plan.scenario.name,
        result.contenders.len(),
        result.cells.len(),
        result.elapsed_ns as f64 / 1e9,
        headline.map_or("", |finding| finding.text.as_str())
    )
}
