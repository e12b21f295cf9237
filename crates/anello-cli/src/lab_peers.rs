//! `anello lab peers`: build the servers on other systems that anello is compared with, and list them.
//!
//! The lab knows how; this file reads the flags and prints. Building goes on after a peer that cannot be built, so that
//! a machine gets all that its toolchains allow.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anello_lab::peers::{Built, Outcome, Peer, Peers, State, Toolchains};

/// Build or list the servers on other systems that anello is compared with.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Build(BuildArguments),
    List(ListArguments),
}

/// Build peers, as far as this machine's toolchains allow, and say which could not be built and why.
///
/// A peer that is built and whose sources and compiler have not changed since is not built again. Their libraries are
/// fetched from the package registries of their languages, at the versions in their lock files.
///
/// Exits 0 when all that can be built is, 1 if one that was asked for by name could not be.
#[derive(clap::Args)]
struct BuildArguments {
    /// The peers to build, by their names or those of their contenders; all if none is named.
    names: Vec<String>,

    /// Build also what is built and up to date.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    folder: Folder,
}

/// List the peers, and whether they are built.
#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    folder: Folder,
}

#[derive(clap::Args)]
struct Folder {
    /// The folder that the peers' folders are in; by default `peers` in the current directory, else the one beside the
    /// workspace that this command was built from.
    #[arg(long, value_name = "DIRECTORY")]
    peers: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> io::Result<ExitCode> {
    match &arguments.command {
        Command::Build(arguments) => build(arguments),
        Command::List(arguments) => list(&Peers::find(arguments.folder.peers.as_deref())?),
    }
}

fn build(arguments: &BuildArguments) -> io::Result<ExitCode> {
    let peers = Peers::find(arguments.folder.peers.as_deref())?;
    let selected = if arguments.names.is_empty() {
        peers.all().iter().collect()
    } else {
        let unknown = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        peers.named(&arguments.names).map_err(unknown)?
    };
    let toolchains = Toolchains::from_environment();
    let mut all_built = true;
    for peer in &selected {
        if io::stderr().is_terminal() {
            eprintln!("building {} ...", peer.manifest.name);
        }
        let outcome = peer.build(&toolchains, arguments.force);
        all_built &= matches!(outcome, Outcome::UpToDate(_) | Outcome::Built(_));
        println!("{:12} {}", peer.manifest.name, describe(&outcome));
    }
    let named = !arguments.names.is_empty();
    Ok(if all_built || !named { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(peers: &Peers) -> io::Result<ExitCode> {
    let toolchains = Toolchains::from_environment();
    let heading =
        ["peer", "contender", "protocol", "driver", "language", "version", "state"].map(str::to_owned);
    let mut rows = vec![heading];
    for peer in peers.all() {
        let (version, state) = peer_status(peer, &toolchains);
        for contender in &peer.manifest.contenders {
            let (manifest, name) = (&peer.manifest, contender.name.clone());
            let (protocol, driver) = (manifest.protocol.to_string(), contender.driver.to_string());
            let (version, state) = (version.clone(), state.clone());
            rows.push([
                manifest.name.clone(),
                name,
                protocol,
                driver,
                manifest.language.clone(),
                version,
                state,
            ]);
        }
    }
    print!("{}", table(&rows));
    Ok(ExitCode::SUCCESS)
}

/// Rows below each other, every column as wide as it has to be.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A peer's version, as far as it is known, and whether it is built.
fn peer_status(peer: &Peer, toolchains: &Toolchains) -> (String, String) {
    let (version, state) = match peer.state() {
        State::Built(built) => (Some(built.version), "built".to_owned()),
        State::Outdated(built) => (Some(built.version), "built, but its sources are newer".to_owned()),
        State::NotBuilt => {
            let missing = peer.missing_programs(toolchains);
            let missing =
                if missing.is_empty() { String::new() } else { format!(": {}", not_found(&missing)) };
            (None, format!("not built{missing}"))
        }
    };
    let version =
        version.or_else(|| peer.manifest.version.clone()).unwrap_or_else(|| "the machine's".to_owned());
    (version, state)
}

/// What came of a build, in one line or, if it failed, several.
fn describe(outcome: &Outcome) -> String {
    let made = |built: &Built| format!("{} {} with {}", built.library, built.version, built.compiler);
    let needs = |hint: &Option<String>| hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
    match outcome {
        Outcome::UpToDate(built) => format!("is up to date: {}", made(built)),
        Outcome::Built(built) => format!("built: {}", made(built)),
        Outcome::Missing { programs, hint } => format!("not built: {}{}", not_found(programs), needs(hint)),
        Outcome::Failed { why, last_lines, log, hint } => {
            let lines = last_lines.iter().map(|line| format!("    {line}\n")).collect::<String>();
            format!("not built: {why}{}\n{lines}    all of it: {}", needs(hint), log.display())
        }
    }
}

fn not_found(programs: &[String]) -> String {
    let verb = if programs.len() == 1 { "is" } else { "are" };
    format!("{} {verb} not on PATH", programs.join(", "))
}
