//! `anello lab`: benchmarks that compare servers on this machine or across hosts.
//!
//! The crate anello-lab schedules a run. There is one module per subcommand; `load` generates the load for a run.

mod agent;
mod compare;
mod disk_file;
mod launch;
mod list;
mod load;
mod open;
mod peers;
mod report;
mod run;
mod sources;

use std::io;
use std::process::ExitCode;

use self::compare::CompareArguments;
use self::launch::LaunchArguments;
use self::list::ListArguments;
use self::open::OpenArguments;
use self::report::ReportArguments;
use self::run::RunArguments;

#[derive(clap::Subcommand)]
pub enum Command {
    Run(Box<RunArguments>),
    List(ListArguments),
    Report(ReportArguments),
    Open(OpenArguments),
    Compare(CompareArguments),
    /// Build or list the peers: servers with other runtimes or libraries that the lab compares with anello.
    #[command(subcommand)]
    Peers(peers::Command),
    #[command(hide = true)]
    Launch(LaunchArguments),
    /// Run servers or the load generator for a lab on another host, which starts this command over ssh.
    #[command(hide = true)]
    Agent,
}

pub fn run(command: Command) -> io::Result<ExitCode> {
    match command {
        Command::Run(arguments) => run::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Open(arguments) => open::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Peers(command) => peers::run(&command),
        Command::Launch(arguments) => Err(launch::run(&arguments)),
        Command::Agent => agent::run().map(|()| ExitCode::SUCCESS),
    }
}
