//! Flags of `anello lab run`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anello_lab::{Contender, Method, PRESETS, Target};

use crate::common::values;
use crate::lab::load::LoadDriver;
use crate::lab::sources::PeersFlag;

const MAX_COUNT: usize = 1 << 30;

/// Compare servers with interleaved slices of load; by default anello and the baselines, in about a minute.
///
/// First checks that each server returns all bytes, tolerates a stalled reader and serves 5000 connections. Then starts
/// the servers pinned to their cores and loads them in turn from another core, in random order, verifying every byte.
/// Prints the results and writes them as JSON and HTML. One server runs twice; the difference between its two instances
/// is the noise floor. Ctrl-C stops the run and writes the results so far, which --resume can continue; a second Ctrl-C
/// exits immediately. On a terminal, a view shows the slices and the results so far; q ends the run like Ctrl-C.
#[derive(clap::Args)]
pub struct RunArguments {
    /// Predefined scenario: quick (the default), smoke, frevib, joakimthun, monoio-peak, monoio-fixed, few, go-uring,
    /// models, options, large, many, aa, http, files, tls, chen622, disk or idle.
    #[arg(long, value_name = "NAME", value_parser = PRESETS.map(|(name, _)| name), hide_possible_values = true, conflicts_with_all = ["scenario", "smoke"])]
    pub preset: Option<String>,
    /// Scenario file (TOML; see docs/reference/lab-scenarios.md).
    #[arg(long, value_name = "FILE", conflicts_with = "smoke")]
    pub scenario: Option<PathBuf>,
    /// Run for a few seconds to test the setup (too short to show small differences); same as --preset smoke.
    #[arg(long)]
    pub smoke: bool,
    /// JSON file of an interrupted run to continue. Pass the same values of --contender and --peers as before; the file
    /// contains the other settings.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["preset", "smoke", "seed", "rounds", "load_time", "connections", "message_bytes", "targets", "method", "skip_checks"],
    )]
    pub resume: Option<PathBuf>,
    /// Seed for the random order of cells and servers and for the bootstrap intervals; runs with the same seed use the
    /// same order.
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Number of rounds per cell (one combination of settings) in each pass; in a round, every server is loaded once.
    #[arg(long, value_name = "COUNT", value_parser = values::up_to(MAX_COUNT))]
    pub rounds: Option<usize>,
    /// Approximate total load time, such as 5m; sets the number of passes.
    #[arg(long, value_name = "DURATION", value_parser = values::nonzero_duration)]
    pub load_time: Option<Duration>,
    /// Connection counts to measure, such as 1,50,300; replaces those in the scenario.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::up_to(MAX_COUNT))]
    pub connections: Vec<usize>,
    /// Message sizes to measure, in bytes, such as 128,1024; replaces those in the scenario.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::up_to(MAX_COUNT))]
    pub message_bytes: Vec<usize>,
    /// HTTP targets to measure, such as /json,/echo; the cells with other targets are omitted.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Target::parse)]
    pub targets: Vec<Target>,
    /// Method for saturated cells: saturated limits servers to 80 % of their cores, or to the share in the scenario, so
    /// that requests are always pending; whole-core does not limit them. By default, the method of the scenario is
    /// used.
    #[arg(long, value_name = "METHOD")]
    pub method: Option<Method>,
    /// Skip the correctness checks of the contenders; the report mentions this.
    #[arg(long)]
    pub skip_checks: bool,
    /// Measure the other contenders if one cannot be started for its check, and report it; by default, the run then
    /// ends at this check. Servers of anello and of peers that exit, such as those on io_uring in a container without
    /// it, never end the run.
    #[arg(long)]
    pub keep_going: bool,
    /// Additional server to compare, as a command with arguments separated by spaces; can be repeated. The server
    /// prints a line with addr=IP:PORT when it is ready, and then echoes data or serves HTTP until it receives SIGTERM.
    /// In the command, {cores} is replaced by the server's cores, {root} by its document root, and {certificate} and
    /// {key} by its TLS files.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_contender)]
    pub contender: Vec<Contender>,
    #[command(flatten)]
    pub peers: PeersFlag,
    /// Host of the servers, as an ssh destination; by default this machine. Requires a login without a password, and
    /// the same build of anello and the other servers at the same paths as here. Disks cannot be measured across hosts.
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub server_host: Option<String>,
    /// Host of the load generator, as an ssh destination; by default this machine. Requires the same as --server-host.
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub load_host: Option<String>,
    /// Name or address under which the load generator's host reaches the servers' host, whose servers listen there; by
    /// default the host name in ssh's configuration, or the name of this machine.
    #[arg(long, value_name = "ADDRESS")]
    pub server_address: Option<String>,
    /// Copy anello and the programs of the other servers to a temporary directory on the hosts, and remove it after the
    /// run. Only the program of each server is copied, not the files that it needs.
    #[arg(long)]
    pub copy_programs: bool,
    /// 1 GiB file that disk workers read and write; by default a file in /var/tmp, or the file of the resumed run. If
    /// the file does not exist, it is created, and removed after the run.
    #[arg(long, value_name = "PATH")]
    pub disk_file: Option<PathBuf>,
    /// Driver of the load generator, the same for all servers; by default auto, or the driver of the resumed run. A
    /// more efficient driver lets the load generator saturate faster servers.
    #[arg(long, value_enum)]
    pub load_driver: Option<LoadDriver>,
    /// JSON output of bench/instructions/run --json; its instructions per request are shown next to the CPU time. Its
    /// servers are matched to contenders by name, ignoring case, spaces and punctuation ("uring" matches "io_uring").
    #[arg(long, value_name = "FILE")]
    pub instructions: Option<PathBuf>,
    /// Show a progress bar instead of the view on the whole terminal.
    #[arg(long)]
    pub no_tui: bool,
    /// Directory for the reports; created if it does not exist.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab")]
    pub out: PathBuf,
    /// Also write the result as JSON to this file, compressed with gzip if its name ends in .gz.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn parse_host(text: &str) -> Result<String, String> {
    let is_valid = !text.is_empty() && !text.starts_with('-');
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err("expected an ssh destination, such as user@host".to_owned())
    }
}

/// Parses `NAME=COMMAND ARGUMENTS`.
pub fn parse_contender(text: &str) -> Result<Contender, String> {
    let invalid =
        || format!("invalid contender {text:?} (expected 'tokio=path/to/server --addr 127.0.0.1:0')");
    let (name, command) = text.split_once('=').ok_or_else(invalid)?;
    let mut words = command.split_whitespace();
    let program = words.next().filter(|_| !name.trim().is_empty()).ok_or_else(invalid)?;
    Ok(Contender::new(name.trim(), Path::new(program), &words.collect::<Vec<_>>()))
}

/// Parses the flags of `anello lab run`.
#[cfg(test)]
pub fn parse_run(words: &[&str]) -> RunArguments {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArguments,
    }
    <Line as clap::Parser>::parse_from(["run"].iter().chain(words)).run
}
