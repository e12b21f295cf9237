//! `anello lab run`: runs a scenario and writes the reports.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::Duration;

use anello_lab::peers::{Peers, Protocol, State};
use anello_lab::tls::Identity;
use anello_lab::{
    Cell, Contender, Instructions, LabConfig, LabResult, LocalMachine, Method, Observer, PRESETS, Progress,
    Resources, Workload, checkpoint, drop_cells_over_limit, machine, preset, resolve, run_from,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::lab_disk_file::{DiskFile, disk_file, is_owned_by_lab};
use crate::lab_load::{LabLoad, LoadDriver};
use crate::lab_with::{adapt_to_cells, parse_contender};
use crate::output::{print_stderr, show};
use crate::{build_identity, duration, stop};

/// Compare servers with interleaved slices of load; by default anello and the baselines, in about a minute.
///
/// Checks each server (complete bytes, a stalled reader, 5000 connections). Then starts the servers pinned to their
/// cores and loads them in turn from another core, in random order, verifying every byte. Prints the results and
/// writes them as JSON and HTML. One server runs twice; the difference between its two instances is the noise floor.
/// Ctrl-C stops the run and writes the results so far, which --resume can continue; a second Ctrl-C exits
/// immediately.
#[derive(clap::Args)]
pub struct RunArguments {
    /// Predefined scenario: quick (the default), smoke, frevib, joakimthun, monoio-peak, monoio-fixed, few, go-uring,
    /// models, options, large, many, aa, http, files, tls, chen622, disk or idle.
    #[arg(long, value_name = "NAME", value_parser = parse_preset, conflicts_with_all = ["scenario", "smoke"])]
    preset: Option<String>,

    /// Scenario file (TOML; see docs/reference/lab-scenarios.md).
    #[arg(long, value_name = "FILE", conflicts_with = "smoke")]
    scenario: Option<PathBuf>,

    /// Run for a few seconds to test the setup, too short to show small differences; same as --preset smoke.
    #[arg(long)]
    smoke: bool,

    /// JSON of an interrupted run to continue. Pass the same --contender and --peers; the file contains the other
    /// settings.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["preset", "smoke", "seed", "rounds", "load_time", "connections", "message_bytes", "method", "skip_checks"],
    )]
    resume: Option<PathBuf>,

    /// Seed of the random order and of the bootstrap intervals; a run with the same seed uses the same order.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Number of rounds per cell and pass; in a round, each server gets one slice of load.
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    rounds: Option<usize>,

    /// Approximate total time of load, such as 5m; sets the number of passes.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    load_time: Option<Duration>,

    /// Connection counts to measure instead of those of the scenario, such as 1,50,300.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    connections: Vec<usize>,

    /// Message sizes in bytes to measure instead of those of the scenario, such as 128,1024.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    message_bytes: Vec<usize>,

    /// Share of their cores that servers have in saturated cells: saturated (80 %, or that of the scenario, so that
    /// requests always wait) or whole-core; by default that of the scenario.
    #[arg(long, value_name = "METHOD")]
    method: Option<Method>,

    /// Skip the correctness checks of the contenders; the report mentions this.
    #[arg(long)]
    skip_checks: bool,

    /// Additional server to compare, as a command with arguments separated by spaces; can be repeated. The server
    /// prints a line with addr=IP:PORT when it is ready, and echoes or serves HTTP until SIGTERM. In the command,
    /// {cores} is replaced by its cores, {root} by its document root, {certificate} and {key} by its TLS files.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_contender)]
    contender: Vec<Contender>,

    /// Directory with the peers' sources; by default peers in the current directory, else in the workspace that this
    /// command was built from.
    #[arg(long, value_name = "DIRECTORY")]
    peers: Option<PathBuf>,

    /// File of 1 GiB that disk workers read and write; by default in /var/tmp, or the file of the resumed run. A file
    /// that does not exist is created, and removed after the run.
    #[arg(long, value_name = "PATH")]
    disk_file: Option<PathBuf>,

    /// Driver of the load, the same for all servers; by default auto, or the driver of the resumed run. A more
    /// efficient driver lets the load saturate faster servers.
    #[arg(long, value_enum)]
    load_driver: Option<LoadDriver>,

    /// JSON output of bench/instructions/run --json, with instructions per request to show next to the CPU time. Its
    /// servers are matched to contenders by name, ignoring case, spaces and punctuation ("uring" matches "io_uring").
    #[arg(long, value_name = "FILE")]
    instructions: Option<PathBuf>,

    /// Directory for the reports; created if it does not exist.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab")]
    out: PathBuf,
}

/// Runs the lab and writes the reports.
pub fn run(arguments: &RunArguments) -> io::Result<ExitCode> {
    if std::env::var_os("ANELLO_DRIVER").is_some() {
        let message = "ANELLO_DRIVER overrides the drivers under comparison (unset it)";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    // Registered before the first child is started, so that Ctrl-C at any time ends the run with the results so far.
    let stop = stop::flag()?;
    let previous = arguments.resume.as_deref().map(checkpoint::load).transpose()?;
    let disk_file = disk_file(arguments.disk_file.as_deref(), previous.as_ref());
    let previous_command = previous.as_ref().map(|previous| previous.plan.repeat_command.as_str());
    let is_own = is_owned_by_lab(&disk_file, arguments.disk_file.as_deref(), previous_command);
    let disk_file = DiskFile { existed: !is_own && disk_file.exists(), path: disk_file };
    let mut config = configuration(arguments, &disk_file.path, previous.as_ref())?;
    let driver =
        arguments.load_driver.or_else(|| LoadDriver::named(previous.as_ref()?.plan.load_driver.as_deref()?));
    let identity = Identity::for_cells(&config.cells)?;
    let load = LabLoad::new(driver.unwrap_or(LoadDriver::Auto), &disk_file.path)?;
    let mut load = load.with_identity(identity.as_ref(), &config.cells);
    let mut machine = LocalMachine::new().with_identity(identity);
    config.provenance.load_driver = Some(load.driver_name());
    config.provenance.instructions =
        arguments.instructions.as_deref().map(|path| instructions(path, &config)).transpose()?;
    config.validate().map_err(|error| invalid(error.to_string()))?;
    announce(&config);
    let mut display =
        Display { bar: progress_bar(), directory: arguments.out.clone(), save_error_reported: false };
    let result = run_from(&config, previous, &mut load, &mut machine, &mut display, &stop);
    display.bar.finish_and_clear();
    // Restores the CPU affinity of this thread, because writing the reports needs no reserved core.
    drop(machine);
    let mut result = result.map_err(io::Error::other)?;
    let driver_note = format!("The load ran on anello's {} driver.", load.driver_name());
    for note in [driver_note].into_iter().chain(load.handshake_note()) {
        if !result.notes.contains(&note) {
            result.notes.push(note);
        }
    }
    report(&result, arguments)
}

/// Reads instruction counts, and prints the contenders that have none.
fn instructions(path: &Path, config: &LabConfig) -> io::Result<Instructions> {
    let with_path = |reason: String| format!("{}: {reason}", path.display());
    let text = fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), with_path(error.to_string())))?;
    let counts = Instructions::from_json(&text).map_err(|reason| invalid(with_path(reason.to_string())))?;
    let contenders = config.contenders.iter().filter(|contender| contender.twin_of.is_none());
    let unknown: Vec<&str> =
        contenders.map(|contender| contender.name.as_str()).filter(|name| !counts.know(name)).collect();
    if !unknown.is_empty() {
        print_stderr(format_args!("  {}: no instruction counts for {}", path.display(), unknown.join(", ")));
    }
    Ok(counts)
}

/// Writes the reports, then prints the result. A closed pipe on standard output does not prevent the reports, and an
/// error while writing them does not prevent the printed result.
fn report(result: &LabResult, arguments: &RunArguments) -> io::Result<ExitCode> {
    let written = anello_lab::write_reports(result, &arguments.out);
    let mut text = format!("{}\n", anello_lab::render_table(result).trim_end());
    if let Ok(paths) = &written {
        text += &format!("\nReport: {}\nJSON:   {}\n", paths.html.display(), paths.json.display());
        if result.interrupted {
            text += &format!("Resume: {}\n", resume_command(arguments, &paths.json));
        }
    }
    show(&text)?;
    written.map(|_| ExitCode::SUCCESS)
}

/// Prints the size and the estimated duration of the run.
fn announce(config: &LabConfig) {
    let seconds = config.estimated_time().as_secs();
    let time =
        if seconds < 90 { format!("{seconds} seconds") } else { format!("{} minutes", (seconds + 30) / 60) };
    let (cells, contenders) = (config.cells.len(), config.contenders.len());
    print_stderr(format_args!(
        "{}: {contenders} contenders in {cells} cells, about {time}",
        config.scenario.name
    ));
    config.scenario.scaling.iter().for_each(|note| print_stderr(format_args!("  {note}")));
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Returns the configuration from scenario and flags, or from the resumed run.
fn configuration(
    arguments: &RunArguments,
    disk_file: &Path,
    previous: Option<&LabResult>,
) -> io::Result<LabConfig> {
    let (file_name, text) = scenario_text(arguments, previous)?;
    let mut config = resolve(&file_name, &text, &resources(arguments.peers.as_deref(), disk_file)?)
        .map_err(|error| invalid(error.to_string()))?;
    config.startup.launcher = launcher()?;
    config.contenders.extend(adapt_to_cells(&arguments.contender, &config.cells)?);
    let executable = std::env::current_exe()?;
    for own in config.contenders.iter_mut().filter(|contender| contender.program == executable) {
        own.commit = build_identity::commit();
        own.built_with = Some(build_identity::built_with());
    }
    // An argument, such as a path, is not necessarily valid Unicode.
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    config.provenance.repeat_command = repeat_command(words);
    match previous {
        Some(previous) => {
            let plan = &previous.plan;
            (config.timing.seed, config.timing.passes, config.timing.rounds) =
                (plan.seed, plan.passes, plan.rounds);
            (config.cells, config.check) = (plan.cells.clone(), plan.checked);
            config.cores.server_share = plan.server_share;
            config.timing.slice = Duration::from_nanos(plan.slice_ns);
            config.timing.warm_up = Duration::from_nanos(plan.warm_up_ns);
            config.scenario.scaling.clone_from(&plan.scenario.scaling);
        }
        None => apply_overrides(&mut config, arguments, machine::connections_limit())?,
    }
    Ok(config)
}

/// Applies the flags that override the scenario, and drops cells with more than `connections_limit` connections. Adds a
/// note to the report for each change.
fn apply_overrides(
    config: &mut LabConfig,
    arguments: &RunArguments,
    connections_limit: usize,
) -> io::Result<()> {
    let mut notes = Vec::new();
    if !(arguments.connections.is_empty() && arguments.message_bytes.is_empty()) {
        config.cells = override_cells(&config.cells, &arguments.connections, &arguments.message_bytes);
        notes.push("The cells were changed by flags.".to_owned());
        notes.extend(drop_cells_over_limit(&mut config.cells, connections_limit));
        if config.cells.is_empty() {
            return Err(invalid(format!(
                "no cells left to measure: the lab can open at most {connections_limit} connections (lower \
                 --connections, or raise the limit of open files, `ulimit -Hn`)"
            )));
        }
    }
    config.timing.seed = arguments.seed.unwrap_or(config.timing.seed);
    if let Some(rounds) = arguments.rounds.filter(|&rounds| rounds != config.timing.rounds) {
        notes.push(format!("{rounds} rounds instead of {}, by flag.", config.timing.rounds));
        config.timing.rounds = rounds;
    }
    notes.extend(arguments.method.and_then(|method| config.set_method(method)));
    if arguments.skip_checks {
        config.check = false;
    }
    notes.extend(arguments.load_time.and_then(|time| fit_passes(config, time)));
    config.scenario.scaling.extend(notes);
    Ok(())
}

/// Sets the number of passes so that their load takes about `time`. Returns a note if the number has changed.
fn fit_passes(config: &mut LabConfig, time: Duration) -> Option<String> {
    let passes = config.timing.passes;
    config.timing.passes = 1;
    let pass = config.load_time().as_secs_f64();
    config.timing.passes = ((time.as_secs_f64() / pass.max(1e-3)).round() as usize).clamp(1, 100_000);
    (config.timing.passes != passes)
        .then(|| format!("{} passes instead of {passes}, by --load-time.", config.timing.passes))
}

/// Returns the cells with other connection counts (disk: queue depths), other message sizes, or both. An empty list
/// leaves the values of the cells unchanged.
fn override_cells(cells: &[Cell], connections: &[usize], message_bytes: &[usize]) -> Vec<Cell> {
    let mut overridden: Vec<Cell> = Vec::new();
    for &cell in cells {
        let workloads = match cell.workload {
            Workload::Echo { .. } if !message_bytes.is_empty() => {
                message_bytes.iter().map(|&message_bytes| Workload::Echo { message_bytes }).collect()
            }
            workload => vec![workload],
        };
        let own = [cell.connections];
        let counts = if connections.is_empty() { &own } else { connections };
        for workload in workloads {
            let with_connections = |&connections: &usize| Cell { workload, connections, ..cell };
            overridden.extend(counts.iter().map(with_connections));
        }
    }
    overridden.sort();
    overridden.dedup();
    overridden
}

/// Returns the name of the scenario, for error messages, and its text.
fn scenario_text(arguments: &RunArguments, previous: Option<&LabResult>) -> io::Result<(String, String)> {
    if let Some(path) = &arguments.scenario {
        let text = fs::read_to_string(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        return Ok((path.display().to_string(), text));
    }
    if let Some(previous) = previous {
        let scenario = &previous.plan.scenario;
        return Ok((scenario.name.clone(), scenario.text.clone()));
    }
    let name = if arguments.smoke { "smoke" } else { arguments.preset.as_deref().unwrap_or("quick") };
    let text = preset(name).ok_or_else(|| invalid(format!("unknown preset {name}")))?;
    Ok((name.to_owned(), text.to_owned()))
}

/// Returns the resources of this machine: its cores and the peers built on it.
pub fn resources(peers_directory: Option<&Path>, disk_file: &Path) -> io::Result<Resources> {
    let mut resources = Resources::of_this_machine(std::env::current_exe()?, disk_file.to_owned());
    let peers = match Peers::find(peers_directory) {
        Ok(peers) => peers,
        // Peers are optional: a binary that was installed without its sources has none.
        Err(error) if peers_directory.is_none() && error.kind() == io::ErrorKind::NotFound => {
            return Ok(resources);
        }
        Err(error) => return Err(error),
    };
    (resources.peers, resources.unbuilt_peers) = contenders_for(&peers, Protocol::Echo);
    (resources.http_peers, resources.unbuilt_http_peers) = contenders_for(&peers, Protocol::Http);
    Ok(resources)
}

/// Returns the peers of a protocol: the contenders of built peers, and the names of the contenders of other peers.
fn contenders_for(peers: &Peers, protocol: Protocol) -> (Vec<Contender>, Vec<String>) {
    let built = peers.contenders(protocol, "{cores}");
    let unbuilt = peers.speaking(protocol).filter(|peer| !matches!(peer.state(), State::Built(_)));
    let contenders = unbuilt.flat_map(|peer| &peer.manifest.contenders);
    (built, contenders.map(|contender| contender.name.clone()).collect())
}

/// Returns the command that starts servers so that the kernel kills them when this process exits, even after SIGKILL.
fn launcher() -> io::Result<Vec<String>> {
    let executable = std::env::current_exe()?.into_os_string().into_string();
    let executable = executable.map_err(|path| {
        io::Error::other(format!("path of the executable is not UTF-8: {}", path.display()))
    })?;
    Ok([&executable, "lab", "launch", &process::id().to_string()].map(str::to_owned).to_vec())
}

/// Returns the command line that repeats this run, without its `--out`.
fn repeat_command(words: impl Iterator<Item = String>) -> String {
    let mut command = "anello".to_owned();
    let mut words = words;
    while let Some(word) = words.next() {
        if word == "--out" {
            words.next();
        } else if !word.starts_with("--out=") {
            append_argument(&mut command, &word);
        }
    }
    command
}

/// Returns the command line that resumes an interrupted run: its JSON, and the flags that the JSON does not contain.
fn resume_command(arguments: &RunArguments, json: &Path) -> String {
    let mut command = "anello lab run".to_owned();
    let mut add = |flag: &str, value: &str| {
        append_argument(&mut command, flag);
        append_argument(&mut command, value);
    };
    add("--resume", &json.to_string_lossy());
    for contender in &arguments.contender {
        let mut definition = format!("{}={}", contender.name, contender.program.display());
        contender.arguments.iter().for_each(|argument| definition += &format!(" {argument}"));
        add("--contender", &definition);
    }
    if let Some(peers) = &arguments.peers {
        add("--peers", &peers.to_string_lossy());
    }
    add("--out", &arguments.out.to_string_lossy());
    command
}

/// Appends an argument to a command line, quoted if a shell requires it.
fn append_argument(command: &mut String, argument: &str) {
    let needs_quotes =
        argument.is_empty() || argument.contains(|c: char| c.is_whitespace() || "'\"\\$;&|<>*?".contains(c));
    command.push(' ');
    if needs_quotes {
        *command += &format!("'{}'", argument.replace('\'', r"'\''"));
    } else {
        command.push_str(argument);
    }
}

fn parse_preset(name: &str) -> Result<String, String> {
    let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
    match names.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("unknown preset (expected one of {})", names.join(", "))),
    }
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1 << 30).contains(count));
    count.ok_or_else(|| "expected a whole number from 1 to 1073741824".to_owned())
}

/// Returns the progress bar, which is hidden unless standard error is a terminal.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {percent}%  {elapsed} of about {duration}  {msg}");
    let bar = ProgressBar::new(0);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Shows the progress of a run and writes its checkpoints.
struct Display {
    bar: ProgressBar,
    directory: PathBuf,
    /// Whether a failure to write a checkpoint has been reported.
    save_error_reported: bool,
}

impl Observer for Display {
    fn progress(&mut self, progress: Progress) {
        let bar = &self.bar;
        match progress {
            Progress::Begin { slices } => bar.set_length(slices as u64),
            Progress::Checking { contender, what } => {
                bar.set_message(format!("checking {contender}: {what}"))
            }
            Progress::Cell { cell, .. } => bar.set_message(cell.to_string()),
            Progress::Slices { done } => bar.set_position(done as u64),
            Progress::Failed(failure) => {
                bar.suspend(|| {
                    print_stderr(format_args!(
                        "{}: {} ({})",
                        failure.contender, failure.what, failure.consequence
                    ));
                });
            }
            Progress::Analysis => bar.set_message("analyzing"),
            Progress::Checked(_) | Progress::Ready { .. } => {}
        }
    }

    fn checkpoint(&mut self, result: &LabResult) {
        if let Err(error) = checkpoint::save(result, &self.directory) {
            // The run continues, because the final reports can still succeed.
            if !self.save_error_reported {
                self.bar.suspend(|| {
                    print_stderr(format_args!("cannot save a checkpoint, --resume is not possible: {error}"));
                });
            }
            self.save_error_reported = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use anello_lab::echo_cells;

    use super::*;

    #[test]
    fn repeat_command_omits_out() {
        let words = ["lab", "run", "--out", "a b", "--seed", "3", "--out=c", "--contender", "x=y z", "it's"];
        let command = repeat_command(words.iter().map(|&word| word.to_owned()));
        assert_eq!(command, r"anello lab run --seed 3 --contender 'x=y z' 'it'\''s'");
    }

    #[test]
    fn resume_command_keeps_flags_missing_from_json() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            run: RunArguments,
        }
        let command = |words: &[&str]| {
            let line = <Line as clap::Parser>::try_parse_from([&["run"][..], words].concat()).unwrap();
            resume_command(&line.run, Path::new("a b/lab-1.json"))
        };
        assert_eq!(command(&[]), "anello lab run --resume 'a b/lab-1.json' --out anello-lab");
        let other =
            ["--contender", "x = ./x  --cores {cores}", "--contender=y=y", "--peers", "p", "--out", "a b"];
        assert_eq!(
            command(&other),
            "anello lab run --resume 'a b/lab-1.json' --contender 'x=./x --cores {cores}' --contender y=y --peers p --out 'a b'"
        );
    }

    #[test]
    fn overridden_cells_keep_other_values() {
        let cells = echo_cells(&[128, 1024], &[1, 50]);
        assert_eq!(override_cells(&cells, &[7], &[]), echo_cells(&[128, 1024], &[7]));
        assert_eq!(override_cells(&cells, &[], &[9]), echo_cells(&[9], &[1, 50]));
        assert_eq!(override_cells(&cells, &[7], &[9]), echo_cells(&[9], &[7]));
        let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
        assert_eq!(override_cells(&[idle], &[7], &[9]), [Cell { connections: 7, ..idle }]);
    }

    /// Parses the flags of a run.
    fn flags(words: &[&str]) -> RunArguments {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            run: RunArguments,
        }
        let words = ["run"].iter().chain(words);
        <Line as clap::Parser>::parse_from(words).run
    }

    #[test]
    fn connections_flag_obeys_open_file_limit() {
        let mut config = LabConfig::smoke(PathBuf::from("anello"));
        apply_overrides(&mut config, &flags(&["--connections", "5,100,101", "--message-bytes", "64"]), 100)
            .unwrap();
        assert_eq!(config.cells, echo_cells(&[64], &[5, 100]));
        let scaling = config.scenario.scaling.join("\n");
        assert!(
            scaling.contains("only have 100 connections open (`ulimit -Hn`): cells with 101 connections."),
            "{scaling}"
        );
        let error = apply_overrides(&mut config, &flags(&["--connections", "101"]), 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("no cells left to measure"), "{error}");
        let mut disk = LabConfig::preset("disk", PathBuf::from("anello")).unwrap();
        apply_overrides(&mut disk, &flags(&["--connections", "101"]), 100).unwrap();
        assert!(
            disk.cells.iter().all(|cell| cell.connections == 101),
            "operations in flight, not connections"
        );
    }

    #[test]
    fn method_flag_sets_server_share() {
        for (method, share, note) in
            [("saturated", 0.8, ""), ("whole-core", 1.0, "Method whole-core instead of saturated, by flag.")]
        {
            let mut config = LabConfig::smoke(PathBuf::from("anello"));
            config.scenario.scaling.clear();
            apply_overrides(&mut config, &flags(&["--method", method]), 1000).unwrap();
            assert_eq!((config.cores.server_share, config.scenario.scaling.concat().as_str()), (share, note));
        }
    }

    #[test]
    fn unchanged_passes_give_no_note() {
        let mut config = LabConfig::quick(PathBuf::from("anello"));
        let (passes, time) = (config.timing.passes, config.load_time());
        assert_eq!(fit_passes(&mut config, time), None);
        assert_eq!(config.timing.passes, passes);
        let note = fit_passes(&mut config, 3 * time);
        assert_eq!(note, Some(format!("{} passes instead of {passes}, by --load-time.", 3 * passes)));
        assert_eq!(config.timing.passes, 3 * passes);
    }
}
