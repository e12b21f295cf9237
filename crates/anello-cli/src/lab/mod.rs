//! `anello lab`: benchmarks that compare servers on this machine.
//!
//! The crate anello-lab schedules a run. There is one module per subcommand; `load` generates the load of a run.

mod compare;
mod disk_file;
mod launch;
mod list;
mod load;
mod peers;
mod report;
mod resources;
mod run;
mod stored;

use std::io;
use std::process::ExitCode;

use self::compare::CompareArguments;
use self::launch::LaunchArguments;
use self::list::ListArguments;
use self::report::ReportArguments;
use self::run::RunArguments;

/// Run benchmarks that compare servers on this machine.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(Box<RunArguments>),
    List(ListArguments),
    Report(ReportArguments),
    Compare(CompareArguments),
    Peers(peers::Arguments),
    #[command(hide = true)]
    Launch(LaunchArguments),
}

/// Runs a subcommand of `anello lab`.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Peers(arguments) => peers::run(&arguments),
        Command::Launch(arguments) => Err(launch::run(&arguments)),
    }
}
