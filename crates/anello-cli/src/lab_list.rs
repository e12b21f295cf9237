//! `anello lab list`: what can be run, who can compete, and what has been run already.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_lab::peers::Serves;
use anello_lab::result::FindingKind;
use anello_lab::{Contender, LabResult, PRESETS, Resources, resolve};

use crate::lab_compare::read_result;
use crate::{lab_disk_file, lab_run};

/// Widest column of names.
const NAME_WIDTH: usize = 18;

/// List presets, contenders, peers, and the runs that are kept in the output directory.
#[derive(clap::Args)]
pub struct ListArguments {
    /// The directory that the reports went to.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab")]
    out: PathBuf,

    /// The folder of the peers' sources; peers in the current directory or beside the program's workspace by default.
    #[arg(long, value_name = "DIRECTORY")]
    peers: Option<PathBuf>,
}

/// Prints the lists.
pub fn run(arguments: &ListArguments) -> io::Result<ExitCode> {
    let resources = lab_run::resources(arguments.peers.as_deref(), &lab_disk_file::default_disk_file())?;
    list_presets(&resources);
    list_contenders(&resources);
    list_runs(&arguments.out)?;
    Ok(ExitCode::SUCCESS)
}

/// Every preset as it would run on this machine now, with the peers that are built.
fn list_presets(resources: &Resources) {
    println!("presets (anello lab run --preset NAME)");
    for (name, text) in PRESETS {
        match resolve(name, text, resources) {
            Ok(config) => println!(
                "  {name:14} {:>3} cells {:>3} contenders {:>8}  {}",
                config.cells.len(),
                config.contenders.len(),
                format_duration(config.estimated_time().as_secs()),
                config.scenario.title
            ),
            Err(error) => println!("  {name:14} not on this machine: {error}"),
        }
    }
}

/// A time in words, roughly.
fn format_duration(seconds: u64) -> String {
    match seconds {
        0..90 => format!("{seconds} s"),
        90..5400 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

fn list_contenders(resources: &Resources) {
    println!("\ncontenders built in");
    for contender in Contender::default_contenders(&resources.executable) {
        let again = contender
            .twin_of
            .map_or(String::new(), |of| format!("{of} a second time, to learn what cannot be told"));
        let driver = contender.driver.unwrap_or_default();
        println!("{}", format!("  {:NAME_WIDTH$} {driver:10} {again}", contender.name).trim_end());
    }
    println!("\ncontenders built in for HTTP");
    for contender in Contender::http_servers(&resources.executable) {
        let (driver, serves) = (contender.driver.as_deref().unwrap_or(""), served_targets(&contender));
        println!("  {:NAME_WIDTH$} {driver:10} {serves}", contender.name);
    }
    list_peers("peers", &resources.peers, &resources.unbuilt_peers);
    list_peers("HTTP peers", &resources.http_peers, &resources.unbuilt_http_peers);
}

fn list_peers(what: &str, built: &[Contender], unbuilt: &[String]) {
    println!("\n{what} built (anello lab peers build)");
    for peer in built {
        let (driver, version) = (peer.driver.as_deref().unwrap_or(""), peer.version.as_deref().unwrap_or(""));
        let line = format!("  {:NAME_WIDTH$} {driver:10} {version:10} {}", peer.name, served_targets(peer));
        println!("{}", line.trim_end());
    }
    if built.is_empty() {
        println!("  none");
    }
    if !unbuilt.is_empty() {
        println!("  not built: {}", unbuilt.join(", "));
    }
}

/// What an HTTP server has answers for; nothing of others.
fn served_targets(contender: &Contender) -> String {
    let serves = contender.serves.iter().map(|what| match what {
        Serves::Files => "files",
        Serves::Fixed => "/fixed",
    });
    serves.collect::<Vec<_>>().join(", ")
}

/// The runs in a directory, the newest first; a file that is no run of this version is named with the reason.
fn list_runs(directory: &Path) -> io::Result<()> {
    println!("\nruns in {}", directory.display());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("  none yet: `anello lab run` makes the first");
            return Ok(());
        }
        Err(error) => {
            return Err(io::Error::new(
                error.kind(),
                format!("cannot read {}: {error}", directory.display()),
            ));
        }
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    for path in paths.iter().rev() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match read_result(path) {
            Ok(result) => println!("  {name}  {}", describe(&result)),
            Err(error) => println!("  {error}"),
        }
    }
    if paths.is_empty() {
        println!("  none yet: `anello lab run` makes the first");
    }
    Ok(())
}

/// One line about a run: scenario, size, length, and what came out.
fn describe(result: &LabResult) -> String {
    let stopped = if result.interrupted { ", stopped before its end" } else { "" };
    let headline = result.findings.iter().find(|finding| finding.kind == FindingKind::Headline);
    format!(
        "{}, {} contenders, {} cells, {:.0} s{stopped}: {}",
        result.plan.scenario.name,
        result.contenders.len(),
        result.cells.len(),
        result.elapsed_ns as f64 / 1e9,
        headline.map_or("", |finding| finding.text.as_str())
    )
}
