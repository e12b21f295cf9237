//! `anello lab list`: presets, contenders, peers and stored runs.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_lab::peers::Serves;
use anello_lab::result::FindingKind;
use anello_lab::{Contender, LabResult, PRESETS, Resources, resolve};

use super::disk_file;
use super::resources::{self, PeersFlag};
use super::stored::read_result;
use crate::common::error::Context;
use crate::common::output::ignore_broken_pipe;

/// Width of the name column.
const NAME_WIDTH: usize = 18;

/// List presets, contenders, peers, and the runs stored in the output directory.
#[derive(clap::Args)]
pub struct ListArguments {
    /// Directory with the reports of earlier runs.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab")]
    out: PathBuf,

    #[command(flatten)]
    peers: PeersFlag,
}

/// Prints the lists. A closed pipe on standard output is not an error.
pub fn run(arguments: &ListArguments) -> io::Result<ExitCode> {
    let resources =
        resources::resources(arguments.peers.directory.as_deref(), &disk_file::default_disk_file())?;
    ignore_broken_pipe(list_all(&mut io::stdout().lock(), &resources, &arguments.out))?;
    Ok(ExitCode::SUCCESS)
}

fn list_all(output: &mut impl Write, resources: &Resources, directory: &Path) -> io::Result<()> {
    list_presets(output, resources)?;
    list_contenders(output, resources)?;
    list_runs(output, directory)?;
    output.flush()
}

/// Lists the presets with their size and estimated duration on this machine, including the peers that are built.
fn list_presets(output: &mut impl Write, resources: &Resources) -> io::Result<()> {
    writeln!(output, "presets (anello lab run --preset NAME)")?;
    for (name, text) in PRESETS {
        match resolve(name, text, resources) {
            Ok(config) => writeln!(
                output,
                "  {name:14} {:>3} cells {:>3} contenders {:>8}  {}",
                config.cells.len(),
                config.contenders.len(),
                format_duration(config.estimated_time().as_secs()),
                config.scenario.title
            )?,
            Err(error) => writeln!(output, "  {name:14} unavailable on this machine: {error}")?,
        }
    }
    Ok(())
}

/// Formats a duration, rounded to seconds, minutes or tenths of hours.
fn format_duration(seconds: u64) -> String {
    match seconds {
        0..90 => format!("{seconds} s"),
        90..5400 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

fn list_contenders(output: &mut impl Write, resources: &Resources) -> io::Result<()> {
    writeln!(output, "\nbuilt-in contenders")?;
    for contender in Contender::default_contenders(&resources.executable) {
        let note = contender.twin_of.map_or(String::new(), |original| {
            format!("second instance of {original}, measures the noise floor")
        });
        let driver = contender.driver.unwrap_or_default();
        let line = format!("  {:NAME_WIDTH$} {driver:10} {note}", contender.name);
        writeln!(output, "{}", line.trim_end())?;
    }
    writeln!(output, "\nbuilt-in contenders for HTTP")?;
    for contender in Contender::http_servers(&resources.executable) {
        let (driver, serves) = (contender.driver.as_deref().unwrap_or(""), served_targets(&contender));
        writeln!(output, "  {:NAME_WIDTH$} {driver:10} {serves}", contender.name)?;
    }
    list_peers(output, "peers", &resources.peers, &resources.unbuilt_peers)?;
    list_peers(output, "HTTP peers", &resources.http_peers, &resources.unbuilt_http_peers)
}

fn list_peers(
    output: &mut impl Write,
    heading: &str,
    built: &[Contender],
    unbuilt: &[String],
) -> io::Result<()> {
    writeln!(output, "\n{heading} built (anello lab peers build)")?;
    for peer in built {
        let (driver, version) = (peer.driver.as_deref().unwrap_or(""), peer.version.as_deref().unwrap_or(""));
        let line = format!("  {:NAME_WIDTH$} {driver:10} {version:10} {}", peer.name, served_targets(peer));
        writeln!(output, "{}", line.trim_end())?;
    }
    if built.is_empty() {
        writeln!(output, "  none")?;
    }
    if !unbuilt.is_empty() {
        writeln!(output, "  not built: {}", unbuilt.join(", "))?;
    }
    Ok(())
}

/// Returns the targets that an HTTP server has, as text; an empty string for other servers.
fn served_targets(contender: &Contender) -> String {
    let targets = contender.serves.iter().map(|target| match target {
        Serves::Files => "files",
        Serves::Fixed => "/fixed",
    });
    targets.collect::<Vec<_>>().join(", ")
}

/// Lists the runs in a directory, the newest first. A file that cannot be read as a run is listed with its error.
fn list_runs(output: &mut impl Write, directory: &Path) -> io::Result<()> {
    writeln!(output, "\nruns in {}", directory.display())?;
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return writeln!(output, "  none yet (start one with `anello lab run`)");
        }
        Err(error) => {
            return Err(error).context(format_args!("cannot read {}", directory.display()));
        }
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| [".json", ".json.gz"].iter().any(|end| path.to_string_lossy().ends_with(end)))
        .collect();
    paths.sort();
    for path in paths.iter().rev() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match read_result(path) {
            Ok(result) => writeln!(output, "  {name}  {}", describe(&result))?,
            Err(error) => writeln!(output, "  {error}")?,
        }
    }
    if paths.is_empty() {
        writeln!(output, "  none yet (start one with `anello lab run`)")?;
    }
    Ok(())
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
