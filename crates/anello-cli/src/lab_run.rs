//! `anello lab run`: a scenario, from flags and files to the reports.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::Duration;

use anello_lab::peers::{PeerContender, Peers, Protocol, State};
use anello_lab::tls::Identity;
use anello_lab::{
    Cell, Contender, Instructions, LabConfig, LabResult, LocalMachine, Observer, PRESETS, Progress,
    Resources, Workload, checkpoint, drop_cells_over_limit, machine, preset, resolve, run_from,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::lab_disk_file::{DiskFile, disk_file, is_owned_by_lab};
use crate::lab_load::{LabLoad, LoadDriver};
use crate::lab_with::{adapt_to_cells, parse_contender};
use crate::output::{print_stderr, show};
use crate::{build_identity, duration, stop};

/// Compare servers by interleaved slices of load; without flags anello and the bare servers, in about a minute.
///
/// Checks every server (complete bytes, a stalled reader, 5000 connections), then starts each pinned to its cores and
/// loads them in turn from another core, in random order, checking every byte. Prints what it found and writes it as
/// JSON and HTML. One server runs twice: what the two differ by is what this machine cannot tell. Ctrl-C finishes with
/// what there is, which --resume takes up again; a second one ends at once.
#[derive(clap::Args)]
pub struct RunArguments {
    /// What to compare: quick, smoke, frevib, joakimthun, monoio-peak, monoio-fixed, few, go-uring, models, options, large,
    /// many, aa, http, files, tls, chen622, disk or idle; quick if nothing is said.
    #[arg(long, value_name = "NAME", value_parser = parse_preset, conflicts_with_all = ["scenario", "smoke"])]
    preset: Option<String>,

    /// A scenario file (TOML; docs/reference/lab-scenarios.md).
    #[arg(long, value_name = "FILE", conflicts_with = "smoke")]
    scenario: Option<PathBuf>,

    /// A few seconds, to see that everything works; too short for fine differences. The same as --preset smoke.
    #[arg(long)]
    smoke: bool,

    /// Go on with a run that was stopped: its JSON. Give the same --contender and --peers as there; the rest is in the file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "smoke", "seed", "rounds", "load_time", "connections", "message_bytes", "skip_checks"])]
    resume: Option<PathBuf>,

    /// Seed of the order of everything and of the intervals; the same seed repeats a run.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Rounds in each cell each time that the servers are started: in a round every server gets one slice of load.
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    rounds: Option<usize>,

    /// Load for about so long in all, as in 5m, by starting the servers more or less often.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    load_time: Option<Duration>,

    /// Numbers of connections to measure instead of the scenario's, as in 1,50,300.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    connections: Vec<usize>,

    /// Message sizes to measure instead of the scenario's, as in 128,1024.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    message_bytes: Vec<usize>,

    /// Time contenders without checking first that they lose no bytes; the report says so.
    #[arg(long)]
    skip_checks: bool,

    /// One more server to compare: a command that prints a line with addr=IP:PORT when it is ready, echoes (or speaks HTTP)
    /// until SIGTERM and takes words separated by spaces, {cores} being the cores it may use, {root} the folder it is to
    /// serve, {certificate} and {key} the files it is to serve TLS with; may be given several times.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_contender)]
    contender: Vec<Contender>,

    /// The folder of the peers' sources; peers in the current directory or beside the program's workspace by default.
    #[arg(long, value_name = "DIRECTORY")]
    peers: Option<PathBuf>,

    /// The file that disk workers read and write, 1 GiB: made if it does not exist, and then removed at the end;
    /// in /var/tmp by default, or that of the run that is gone on with.
    #[arg(long, value_name = "PATH")]
    disk_file: Option<PathBuf>,

    /// The driver that the load runs on, the same for all servers: auto, or what the run that is gone on with had. The
    /// less a request costs the load, the more it tells about the servers.
    #[arg(long, value_enum)]
    load_driver: Option<LoadDriver>,

    /// Instructions per request, to be shown beside the CPU time: what `bench/instructions/run --json` has written.
    /// A server there is a contender here if their names are alike but for case, blanks and signs ("uring" is
    /// "io_uring").
    #[arg(long, value_name = "FILE")]
    instructions: Option<PathBuf>,

    /// The directory to write the reports to; made if it does not exist.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab")]
    out: PathBuf,
}

/// Runs the lab and reports.
pub fn run(arguments: &RunArguments) -> io::Result<ExitCode> {
    if std::env::var_os("ANELLO_DRIVER").is_some() {
        let text = "ANELLO_DRIVER is set, and would override the drivers that are to be compared: unset it";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // Before any child is started: Ctrl-C is to end the run, at whatever moment, with what there is.
    let stop = stop::flag()?;
    let previous = arguments.resume.as_deref().map(checkpoint::load).transpose()?;
    let disk_file = disk_file(arguments.disk_file.as_deref(), previous.as_ref());
    let earlier = previous.as_ref().map(|previous| previous.plan.repeat_command.as_str());
    let is_own = is_owned_by_lab(&disk_file, arguments.disk_file.as_deref(), earlier);
    let disk_file = DiskFile { was_there: !is_own && disk_file.exists(), path: disk_file };
    let mut config = configuration(arguments, &disk_file.path, previous.as_ref())?;
    let driver =
        arguments.load_driver.or_else(|| LoadDriver::named(previous.as_ref()?.plan.load_driver.as_deref()?));
    let identity = Identity::for_cells(&config.cells)?;
    let load = LabLoad::new(driver.unwrap_or(LoadDriver::Auto), &disk_file.path)?;
    let mut load = load.with_identity(identity.as_ref(), &config.cells);
    let mut machine = LocalMachine::new().with_identity(identity);
    config.load_driver = Some(load.driver_name());
    config.instructions =
        arguments.instructions.as_deref().map(|path| instructions(path, &config)).transpose()?;
    config.validate().map_err(invalid)?;
    announce(&config);
    let mut display =
        Display { bar: progress_bar(), directory: config.output_directory.clone(), has_unsaved: false };
    let result = run_from(&config, previous, &mut load, &mut machine, &mut display, &stop);
    display.bar.finish_and_clear();
    // Before the reports are made, which needs no core of its own: the machine gives the thread its cores back.
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

/// Counts of instructions; says which contenders they know nothing of.
fn instructions(path: &Path, config: &LabConfig) -> io::Result<Instructions> {
    let named = |why: String| format!("{}: {why}", path.display());
    let text =
        fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), named(error.to_string())))?;
    let counts = Instructions::from_json(&text).map_err(|why| invalid(named(why)))?;
    let contenders = config.contenders.iter().filter(|contender| contender.twin_of.is_none());
    let unknown: Vec<&str> =
        contenders.map(|contender| contender.name.as_str()).filter(|name| !counts.know(name)).collect();
    if !unknown.is_empty() {
        print_stderr(format_args!("  {} counts no instructions of {}", path.display(), unknown.join(", ")));
    }
    Ok(counts)
}

/// Writes the reports, and then shows the result: it is kept whoever reads on, and shown even if it cannot be kept.
fn report(result: &LabResult, arguments: &RunArguments) -> io::Result<ExitCode> {
    let written = anello_lab::write_reports(result, &arguments.out);
    let mut text = format!("{}\n", anello_lab::render_table(result).trim_end());
    if let Ok(paths) = &written {
        text += &format!("\nReport: {}\nJSON:   {}\n", paths.html.display(), paths.json.display());
        if result.interrupted {
            text += &format!("Go on:  {}\n", resume_command(arguments, &paths.json));
        }
    }
    show(&text)?;
    written.map(|_| ExitCode::SUCCESS)
}

/// Says what is about to happen, and for how long.
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

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// The configuration that scenario and flags ask for, or that an earlier run had.
fn configuration(
    arguments: &RunArguments,
    disk_file: &Path,
    previous: Option<&LabResult>,
) -> io::Result<LabConfig> {
    let (file_name, text) = scenario_text(arguments, previous)?;
    let mut config = resolve(&file_name, &text, &resources(arguments.peers.as_deref(), disk_file)?)
        .map_err(|why| invalid(why.to_string()))?;
    config.launcher = launcher()?;
    config.contenders.extend(adapt_to_cells(&arguments.contender, &config.cells)?);
    let executable = std::env::current_exe()?;
    for own in config.contenders.iter_mut().filter(|contender| contender.program == executable) {
        own.commit = build_identity::commit();
        own.built_with = Some(build_identity::built_with());
    }
    // A word may be no Unicode, as a path may be.
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    config.repeat_command = repeat_command(words);
    config.output_directory.clone_from(&arguments.out);
    match previous {
        Some(previous) => {
            let plan = &previous.plan;
            (config.seed, config.passes, config.rounds) = (plan.seed, plan.passes, plan.rounds);
            (config.cells, config.check) = (plan.cells.clone(), plan.checked);
            config.slice = Duration::from_nanos(plan.slice_ns);
            config.warm_up = Duration::from_nanos(plan.warm_up_ns);
            config.scenario.scaling.clone_from(&plan.scenario.scaling);
        }
        None => apply_overrides(&mut config, arguments, machine::connections_limit())?,
    }
    Ok(config)
}

/// What flags say instead of the scenario, as far as the lab may have so many connections open; all of it goes into the
/// report.
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
                "nothing is left to measure: the lab may have {connections_limit} connections open here (`ulimit -Hn`); give \
                 --connections no more than that, or raise the limit"
            )));
        }
    }
    config.seed = arguments.seed.unwrap_or(config.seed);
    if let Some(rounds) = arguments.rounds.filter(|&rounds| rounds != config.rounds) {
        notes.push(format!("{rounds} rounds instead of {}, by flag.", config.rounds));
        config.rounds = rounds;
    }
    if arguments.skip_checks {
        config.check = false;
    }
    notes.extend(arguments.load_time.and_then(|time| fit_passes(config, time)));
    config.scenario.scaling.extend(notes);
    Ok(())
}

/// As many passes as fill so much time with load; says so if they are not those that there were.
fn fit_passes(config: &mut LabConfig, time: Duration) -> Option<String> {
    let passes = config.passes;
    config.passes = 1;
    let pass = config.load_time().as_secs_f64();
    config.passes = ((time.as_secs_f64() / pass.max(1e-3)).round() as usize).clamp(1, 100_000);
    (config.passes != passes)
        .then(|| format!("{} passes instead of {passes}, by --load-time.", config.passes))
}

/// The cells with other connections (disk: depths), other message sizes, or both; as they are where none are given.
fn override_cells(cells: &[Cell], connections: &[usize], message_bytes: &[usize]) -> Vec<Cell> {
    let mut others: Vec<Cell> = Vec::new();
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
            let with = |&connections: &usize| Cell { workload, connections, ..cell };
            others.extend(counts.iter().map(with));
        }
    }
    others.sort();
    others.dedup();
    others
}

/// The scenario, and its name for errors.
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
    let text = preset(name).ok_or_else(|| invalid(format!("there is no preset {name}")))?;
    Ok((name.to_owned(), text.to_owned()))
}

/// This machine, with the peers that are built on it.
pub fn resources(folder: Option<&Path>, disk_file: &Path) -> io::Result<Resources> {
    let mut resources = Resources::of_this_machine(std::env::current_exe()?, disk_file.to_owned());
    let peers = match Peers::find(folder) {
        Ok(peers) => peers,
        // A program that was installed without its sources has none, and needs none.
        Err(error) if folder.is_none() && error.kind() == io::ErrorKind::NotFound => {
            return Ok(resources);
        }
        Err(error) => return Err(error),
    };
    (resources.peers, resources.unbuilt_peers) = contenders_for(&peers, Protocol::Echo);
    (resources.http_peers, resources.unbuilt_http_peers) = contenders_for(&peers, Protocol::Http);
    Ok(resources)
}

/// The peers of a protocol: the contenders of those that are built, and the names of those of the others.
fn contenders_for(peers: &Peers, protocol: Protocol) -> (Vec<Contender>, Vec<String>) {
    let built = peers.contenders(protocol, "{cores}").into_iter().map(peer_contender).collect();
    let unbuilt = peers.speaking(protocol).filter(|peer| !matches!(peer.state(), State::Built(_)));
    let contenders = unbuilt.flat_map(|peer| &peer.manifest.contenders);
    (built, contenders.map(|contender| contender.name.clone()).collect())
}

fn peer_contender(peer: PeerContender) -> Contender {
    Contender {
        driver: Some(peer.driver.to_string()),
        version: Some(peer.version),
        commit: peer.origin.library_commit,
        library_checksum: peer.origin.library_checksum,
        server_commit: peer.origin.server_commit,
        built_with: Some(peer.built_with),
        features: peer.features,
        connections_limit: peer.connections_limit,
        warm_up: peer.warm_up,
        kind: Some(peer.kind),
        serves: peer.serves,
        takes_tls: peer.takes_tls,
        ..peer.contender
    }
}

/// What starts servers so that they end with this process, even if it is killed.
fn launcher() -> io::Result<Vec<String>> {
    let executable = std::env::current_exe()?.into_os_string().into_string();
    let executable =
        executable.map_err(|path| io::Error::other(format!("{} is no UTF-8", path.display())))?;
    Ok([&executable, "lab", "launch", &process::id().to_string()].map(str::to_owned).to_vec())
}

/// The command line that repeats this run, without where its report went.
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

/// The command line that takes a stopped run up again: its JSON, and the flags that are not in it.
fn resume_command(arguments: &RunArguments, json: &Path) -> String {
    let mut command = "anello lab run".to_owned();
    let mut add = |flag: &str, value: &str| {
        append_argument(&mut command, flag);
        append_argument(&mut command, value);
    };
    add("--resume", &json.to_string_lossy());
    for contender in &arguments.contender {
        let mut with = format!("{}={}", contender.name, contender.program.display());
        contender.arguments.iter().for_each(|word| with += &format!(" {word}"));
        add("--contender", &with);
    }
    if let Some(peers) = &arguments.peers {
        add("--peers", &peers.to_string_lossy());
    }
    add("--out", &arguments.out.to_string_lossy());
    command
}

/// Adds a word to a command line, in quotes where a shell would not take it as it is.
fn append_argument(command: &mut String, word: &str) {
    let plain =
        !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"\\$;&|<>*?".contains(c));
    command.push(' ');
    if plain {
        command.push_str(word);
    } else {
        *command += &format!("'{}'", word.replace('\'', r"'\''"));
    }
}

fn parse_preset(name: &str) -> Result<String, String> {
    let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
    match names.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("there are {}", names.join(", "))),
    }
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1 << 30).contains(count));
    count.ok_or_else(|| "write a number of at least 1".to_owned())
}

/// The lab's progress on the terminal; nothing where standard error is none.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {percent}%  {elapsed} of about {duration}  {msg}");
    let bar = ProgressBar::new(0);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Shows the run and keeps what it has so far.
struct Display {
    bar: ProgressBar,
    directory: PathBuf,
    /// Whether it was said that checkpoints cannot be written.
    has_unsaved: bool,
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
            Progress::Analysis => bar.set_message("working it out"),
            Progress::Checked(_) | Progress::Ready { .. } => {}
        }
    }

    fn checkpoint(&mut self, result: &LabResult) {
        if let Err(error) = checkpoint::save(result, &self.directory) {
            // The run goes on; the reports may have better luck.
            if !self.has_unsaved {
                self.bar.suspend(|| print_stderr(format_args!("this run could not be resumed: {error}")));
            }
            self.has_unsaved = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use anello_lab::echo_cells;

    use super::*;

    #[test]
    fn the_repeat_command_leaves_out_where_the_report_went() {
        let words = ["lab", "run", "--out", "a b", "--seed", "3", "--out=c", "--contender", "x=y z", "it's"];
        let command = repeat_command(words.iter().map(|&word| word.to_owned()));
        assert_eq!(command, r"anello lab run --seed 3 --contender 'x=y z' 'it'\''s'");
    }

    #[test]
    fn a_stopped_run_is_taken_up_with_the_flags_that_are_not_in_its_json() {
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
    fn cells_of_flags_keep_what_the_scenario_says_otherwise() {
        let cells = echo_cells(&[128, 1024], &[1, 50]);
        assert_eq!(override_cells(&cells, &[7], &[]), echo_cells(&[128, 1024], &[7]));
        assert_eq!(override_cells(&cells, &[], &[9]), echo_cells(&[9], &[1, 50]));
        assert_eq!(override_cells(&cells, &[7], &[9]), echo_cells(&[9], &[7]));
        let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
        assert_eq!(override_cells(&[idle], &[7], &[9]), [Cell { connections: 7, ..idle }]);
    }

    /// The flags of a run as they come from a command line.
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
    fn connections_of_flags_obey_the_limit_of_open_files() {
        let mut config = LabConfig::smoke(PathBuf::from("anello"));
        apply_overrides(&mut config, &flags(&["--connections", "5,100,101", "--message-bytes", "64"]), 100)
            .unwrap();
        assert_eq!(config.cells, echo_cells(&[64], &[5, 100]));
        let scaling = config.scenario.scaling.join("\n");
        assert!(
            scaling.contains("only have 100 connections open (`ulimit -Hn`): cells with 101 connections."),
            "{scaling}"
        );
        let why = apply_overrides(&mut config, &flags(&["--connections", "101"]), 100).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::InvalidInput);
        assert!(why.to_string().contains("nothing is left to measure"), "{why}");
        let mut disk = LabConfig::preset("disk", PathBuf::from("anello")).unwrap();
        apply_overrides(&mut disk, &flags(&["--connections", "101"]), 100).unwrap();
        assert!(
            disk.cells.iter().all(|cell| cell.connections == 101),
            "operations in flight, not connections"
        );
    }

    #[test]
    fn passes_that_stay_as_they_are_are_not_spoken_of() {
        let mut config = LabConfig::quick(PathBuf::from("anello"));
        let (passes, time) = (config.passes, config.load_time());
        assert_eq!(fit_passes(&mut config, time), None);
        assert_eq!(config.passes, passes);
        let note = fit_passes(&mut config, 3 * time);
        assert_eq!(note, Some(format!("{} passes instead of {passes}, by --load-time.", 3 * passes)));
        assert_eq!(config.passes, 3 * passes);
    }
}
