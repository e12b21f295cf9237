//! `anello lab peers`: builds and lists the peers, which are servers that use other runtimes or libraries. If a peer
//! cannot be built, the command continues with the others.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anello_lab::peers::{Built, Outcome, Peer, Peers, State, Toolchains};

use super::sources::PeersFlag;
use crate::common::error::usage_error;
use crate::common::output::{print_stderr, show};

#[derive(clap::Subcommand)]
pub enum Command {
    Build(BuildArguments),
    /// List the peers and whether they are built.
    List(PeersFlag),
}

/// Build the peers for which this machine has a toolchain, and report which ones cannot be built and why.
///
/// A peer is not rebuilt if its sources and compiler have not changed. Libraries are downloaded from the package
/// registry of each language, in the versions given in the lock files.
///
/// Exits with 0, or with 1 if a peer named on the command line cannot be built.
#[derive(clap::Args)]
pub struct BuildArguments {
    /// Names of peers or of their contenders; all peers by default.
    names: Vec<String>,
    /// Build even peers that are up to date.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    peers: PeersFlag,
}

pub fn run(command: &Command) -> io::Result<ExitCode> {
    match command {
        Command::Build(arguments) => build(arguments),
        Command::List(peers) => list(&Peers::find(peers.directory.as_deref())?),
    }
}

fn build(arguments: &BuildArguments) -> io::Result<ExitCode> {
    let peers = Peers::find(arguments.peers.directory.as_deref())?;
    let selected = if arguments.names.is_empty() {
        peers.all().iter().collect()
    } else {
        peers.named(&arguments.names).map_err(|error| usage_error(error.to_string()))?
    };
    let toolchains = Toolchains::from_environment();
    let mut all_built = true;
    for peer in &selected {
        if io::stderr().is_terminal() {
            print_stderr(format_args!("building {} ...", peer.manifest.name));
        }
        let outcome = peer.build(&toolchains, arguments.force);
        all_built &= matches!(outcome, Outcome::UpToDate(_) | Outcome::Built(_));
        show(&format!("{:12} {}\n", peer.manifest.name, describe(peer, &outcome)))?;
    }
    let is_success = all_built || arguments.names.is_empty();
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(peers: &Peers) -> io::Result<ExitCode> {
    let toolchains = Toolchains::from_environment();
    let heading = ["peer", "contender", "protocol", "driver", "language", "version", "state"];
    let mut rows = vec![heading.map(str::to_owned)];
    for peer in peers.all() {
        let (version, state) = peer_status(peer, &toolchains);
        let manifest = &peer.manifest;
        rows.extend(manifest.contenders.iter().map(|contender| {
            let (protocol, driver) = (manifest.protocol.to_string(), contender.driver.to_string());
            let (name, language) = (manifest.name.clone(), manifest.language.clone());
            [name, contender.name.clone(), protocol, driver, language, version.clone(), state.clone()]
        }));
    }
    show(&table(&rows)).map(|()| ExitCode::SUCCESS)
}

/// Formats rows as a table whose columns are as wide as their longest cells.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Returns the version and the build state of a peer as text.
fn peer_status(peer: &Peer, toolchains: &Toolchains) -> (String, String) {
    let (version, state) = match peer.state() {
        State::Built(built) => (Some(built.version), "built".to_owned()),
        State::Outdated(built) => (Some(built.version), "built, but outdated".to_owned()),
        State::NotBuilt => match &peer.missing_programs(toolchains)[..] {
            [] => (None, "not built".to_owned()),
            missing => (None, format!("not built: {}", not_found(missing))),
        },
        other => (None, format!("{other:?}")),
    };
    let version = version.or_else(|| peer.manifest.version.clone()).unwrap_or_else(|| "system".to_owned());
    (version, state)
}

/// Describes the outcome of a build in one line, or in several lines if it failed.
fn describe(peer: &Peer, outcome: &Outcome) -> String {
    let versions = |built: &Built| format!("{} {} with {}", built.library, built.version, built.compiler);
    let hint = peer.manifest.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
    match outcome {
        Outcome::UpToDate(built) => format!("up to date: {}", versions(built)),
        Outcome::Built(built) => format!("built: {}", versions(built)),
        Outcome::Missing(programs) => format!("not built: {}{hint}", not_found(programs)),
        Outcome::Failed { why, last_lines, log } => {
            let lines = last_lines.iter().map(|line| format!("    {line}\n")).collect::<String>();
            format!("not built: {why}{hint}\n{lines}    complete log: {}", log.display())
        }
        other => format!("{other:?}"),
    }
}

fn not_found(programs: &[String]) -> String {
    format!("{} not found in PATH", programs.join(", "))
}
