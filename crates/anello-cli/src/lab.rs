//! `anello lab`: which server is fastest on this machine.
//!
//! The lab decides what runs when; this file gives it the load (anello-load, on a runtime of anello in this very
//! process and thread), shows progress and writes the reports.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::rc::Rc;
use std::time::Duration;

use anello::{DriverKind, Runtime};
use anello_lab::{Contender, LabConfig, LabResult, Load, LoadSession, LocalMachine, Progress, SliceLoad};
use anello_load::{ErrorKind, Session, TcpLoad};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{duration, stop};

/// How long the connections of one contender in one cell may take to open, and a request to be answered: far more
/// than a server in order ever needs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Compare servers on this machine.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(RunArguments),
    #[command(hide = true)]
    Launch(LaunchArguments),
}

/// Becomes a command that ends when the lab does: how `lab run` starts every server.
#[derive(clap::Args)]
struct LaunchArguments {
    /// Process id of the lab, which must be the parent of this process.
    lab: u32,
    /// The command to become, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Compare anello on both drivers and the bare servers, by interleaved slices of load; about a minute.
///
/// Starts every server pinned to one core and loads them in turn from another, in random order, checking every byte.
/// Prints what it found and writes it as JSON and HTML. One server runs twice: what the two differ by is what this
/// machine cannot tell. Ctrl-C finishes with what there is; a second one ends at once.
#[derive(clap::Args)]
struct RunArguments {
    /// Seed of the order of everything and of the intervals; the same seed repeats a run.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Rounds in each cell each time that the servers are started: in a round every server gets one slice of load.
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    rounds: Option<usize>,

    /// Load for about so long in all, as in 5m, by starting the servers more or less often.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    time: Option<Duration>,

    /// A few seconds, to see that everything works; too short for fine differences.
    #[arg(long)]
    smoke: bool,

    /// Numbers of connections to measure, as in 1,50,300.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    connections: Vec<usize>,

    /// Message sizes to measure, as in 128,1024.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    message_bytes: Vec<usize>,

    /// One more server to compare: a command that prints a line with addr=IP:PORT when it is ready, echoes until
    /// SIGTERM and takes words separated by spaces; may be given several times.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_contender)]
    with: Vec<Contender>,

    /// The driver that the load runs on, the same for all servers.
    #[arg(long, value_enum, default_value_t = LoadDriver::Epoll)]
    load_driver: LoadDriver,

    /// The directory to write the reports to; made if it does not exist.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadDriver {
    /// Works everywhere, so that results of different machines can be compared.
    Epoll,
    /// Costs the load fewer system calls; fails where io_uring is not allowed.
    Uring,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    match arguments.command {
        Command::Run(arguments) => run_lab(&arguments),
        Command::Launch(arguments) => Err(launch(&arguments)),
    }
}

fn run_lab(arguments: &RunArguments) -> io::Result<ExitCode> {
    if std::env::var_os("ANELLO_DRIVER").is_some() {
        let text = "ANELLO_DRIVER is set, and would override the drivers that are to be compared: unset it";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let config = configuration(arguments)?;
    config.check().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    let stop = stop::flag()?;
    let (mut load, mut machine) = (EchoLoad::new(arguments.load_driver)?, LocalMachine::new());
    let bar = progress_bar();
    let mut progress = |progress| show(&bar, &progress);
    let result = anello_lab::run(&config, &mut load, &mut machine, &mut progress, &stop);
    bar.finish_and_clear();
    // Before the reports are made, which needs no core of its own: the machine gives the thread its cores back.
    drop(machine);
    let mut result = result.map_err(io::Error::other)?;
    result.notes.push(format!("The load ran on anello's {} driver.", load.runtime.driver().name));
    report(&result, &config.output_directory)
}

/// Has the kernel kill this process when the lab's thread that started it ends, however that ends
/// (`PR_SET_PDEATHSIG`, Linux 2.1.57), and becomes the server (`execve(2)`, which keeps that unless the program is
/// set-user-ID or has capabilities). What the server starts in its turn is not covered. Returns only to say why not.
fn launch(arguments: &LaunchArguments) -> io::Error {
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return errno.into();
    }
    // Who died before this was asked for is the parent no more.
    if getppid().map(|parent| parent.as_raw_pid().cast_unsigned()) != Some(arguments.lab) {
        return io::Error::other("the lab ended before its server was started");
    }
    let error = process::Command::new(&arguments.command[0]).args(&arguments.command[1..]).exec();
    io::Error::new(error.kind(), format!("cannot start {}: {error}", arguments.command[0].display()))
}

fn report(result: &LabResult, directory: &Path) -> io::Result<ExitCode> {
    println!("{}", anello_lab::render_table(result).trim_end());
    let paths = anello_lab::write_reports(result, directory)?;
    println!("\nReport: {}\nJSON:   {}", paths.html.display(), paths.json.display());
    Ok(ExitCode::SUCCESS)
}

/// The configuration that the flags ask for.
fn configuration(arguments: &RunArguments) -> io::Result<LabConfig> {
    let executable = std::env::current_exe()?;
    let mut config =
        if arguments.smoke { LabConfig::smoke(executable) } else { LabConfig::quick(executable) };
    config.launcher = launcher()?;
    config.seed = arguments.seed;
    config.contenders.extend(arguments.with.iter().cloned());
    config.rounds = arguments.rounds.unwrap_or(config.rounds);
    if !arguments.connections.is_empty() {
        config.connections.clone_from(&arguments.connections);
    }
    if !arguments.message_bytes.is_empty() {
        config.message_bytes.clone_from(&arguments.message_bytes);
    }
    if let Some(time) = arguments.time {
        config.passes = 1;
        let pass = config.load_time().as_secs_f64();
        config.passes = ((time.as_secs_f64() / pass.max(1e-3)).round() as usize).clamp(1, 100_000);
    }
    config.repeat_command = repeat_command(std::env::args().skip(1));
    config.output_directory.clone_from(&arguments.out);
    Ok(config)
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
            let plain = !word.is_empty()
                && !word.contains(|c: char| c.is_whitespace() || "'\"\\$;&|<>*?".contains(c));
            command += " ";
            command += &if plain { word } else { format!("'{}'", word.replace('\'', r"'\''")) };
        }
    }
    command
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1 << 30).contains(count));
    count.ok_or_else(|| "write a number of at least 1".to_owned())
}

/// Reads `NAME=COMMAND ARGUMENTS`.
fn parse_contender(text: &str) -> Result<Contender, String> {
    let wrong = || format!("{text:?} is not a server: write 'tokio=path/to/server --addr 127.0.0.1:0'");
    let (name, command) = text.split_once('=').ok_or_else(wrong)?;
    let mut words = command.split_whitespace();
    let program = words.next().filter(|_| !name.trim().is_empty()).ok_or_else(wrong)?;
    Ok(Contender::new(name.trim(), Path::new(program), &words.collect::<Vec<_>>()))
}

/// The lab's progress on the terminal; nothing where standard error is none.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {percent}%  {elapsed} of about {duration}  {msg}");
    let bar = ProgressBar::new(0);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn show(bar: &ProgressBar, progress: &Progress) {
    match progress {
        Progress::Begin { slices } => bar.set_length(*slices as u64),
        Progress::Cell { cell, .. } => bar.set_message(cell.to_string()),
        Progress::Slices { done } => bar.set_position(*done as u64),
        Progress::Failed(failure) => {
            bar.suspend(|| eprintln!("{}: {} ({})", failure.contender, failure.what, failure.consequence));
        }
        Progress::Analysis => bar.set_message("working it out"),
        Progress::Ready { .. } => {}
    }
}

/// The lab's load: sessions of anello-load, all on one runtime of the calling thread.
///
/// The driver is chosen once for all contenders, and `ANELLO_DRIVER` has no say: the load must not depend on what it
/// is to measure.
struct EchoLoad {
    runtime: Rc<Runtime>,
}

impl EchoLoad {
    fn new(driver: LoadDriver) -> io::Result<Self> {
        let driver = match driver {
            LoadDriver::Epoll => DriverKind::Epoll,
            LoadDriver::Uring => DriverKind::Uring,
        };
        let runtime = Runtime::builder().driver(driver).driver_from_environment(false).build()?;
        Ok(Self { runtime: Rc::new(runtime) })
    }
}

impl Load for EchoLoad {
    fn connect(
        &mut self,
        target: SocketAddr,
        connections: usize,
        message_bytes: usize,
    ) -> Result<Box<dyn LoadSession>, String> {
        let runtime = Rc::clone(&self.runtime);
        let load = TcpLoad {
            connections,
            message_bytes,
            verify: true,
            connect_timeout: PATIENCE,
            stall_timeout: PATIENCE,
            ..TcpLoad::new(target)
        };
        let session = runtime.block_on(Session::connect(&load)).map_err(|error| error.to_string())?;
        let troubles: Vec<String> = session
            .connect_errors()
            .iter()
            .map(|error| format!("{} of {connections} failed, the first: {}", error.count, error.example))
            .collect();
        let session = EchoSession { runtime, session: Some(session) };
        if troubles.is_empty() { Ok(Box::new(session)) } else { Err(troubles.join("; ")) }
    }
}

/// The connections of one contender in one cell.
struct EchoSession {
    runtime: Rc<Runtime>,
    /// There until dropped.
    session: Option<Session>,
}

impl LoadSession for EchoSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, String> {
        let Some(session) = &mut self.session else { return Err("is closed".to_owned()) };
        let slice = self.runtime.block_on(session.run_slice(duration));
        let others = slice.errors.iter().filter(|error| error.kind != ErrorKind::WrongBytes);
        Ok(SliceLoad {
            requests: slice.requests,
            elapsed_ns: slice.elapsed_ns,
            latency: slice.latency,
            errors: others.map(|error| (format!("{}: {}", error.kind, error.example), error.count)).collect(),
            wrong_replies: slice.errors.count(ErrorKind::WrongBytes),
        })
    }
}

impl Drop for EchoSession {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Closed for good before the next contender has its turn.
            self.runtime.block_on(session.close());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repeat_command_leaves_out_where_the_report_went() {
        let words = ["lab", "run", "--out", "a b", "--seed", "3", "--out=c", "--with", "x=y z", "it's"];
        let command = repeat_command(words.iter().map(|&word| word.to_owned()));
        assert_eq!(command, r"anello lab run --seed 3 --with 'x=y z' 'it'\''s'");
    }

    #[test]
    fn a_contender_has_a_name_and_a_command() {
        let contender = parse_contender("tokio = ./echo --addr 127.0.0.1:0").unwrap();
        assert_eq!((contender.name.as_str(), contender.program.as_path()), ("tokio", Path::new("./echo")));
        assert_eq!(contender.arguments, ["--addr", "127.0.0.1:0"]);
        for wrong in ["", "tokio", "tokio=", "=./echo"] {
            assert!(parse_contender(wrong).is_err(), "{wrong}");
        }
    }
}
