//! `anello lab`: benchmarks that compare servers on this machine.
//!
//! The crate anello-lab schedules a run. `lab_run.rs` reads the flags of a run, shows its progress and writes its
//! reports. `lab_load.rs` generates the load; `lab_load_http.rs` contains its HTTP part. `lab_list.rs`,
//! `lab_report.rs`, `lab_compare.rs` and `lab_peers.rs` implement the other subcommands.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::lab_compare::{self, CompareArguments};
use crate::lab_list::{self, ListArguments};
use crate::lab_peers;
use crate::lab_report::{self, ReportArguments};
use crate::lab_run::{self, RunArguments};

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
    Peers(lab_peers::Arguments),
    #[command(hide = true)]
    Launch(LaunchArguments),
}

/// Replace this process by a command that the kernel kills when the lab exits. `lab run` starts each server this way.
#[derive(clap::Args)]
struct LaunchArguments {
    /// Process ID of the lab, which must be the parent of this process.
    lab: u32,
    /// Command to execute, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs a subcommand of `anello lab`.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    match arguments.command {
        Command::Run(arguments) => lab_run::run(&arguments),
        Command::List(arguments) => lab_list::run(&arguments),
        Command::Report(arguments) => lab_report::run(&arguments),
        Command::Compare(arguments) => lab_compare::run(&arguments),
        Command::Peers(arguments) => lab_peers::run(&arguments),
        Command::Launch(arguments) => Err(launch(&arguments)),
    }
}

/// Requests SIGKILL for when the lab's thread that started this process exits (`PR_SET_PDEATHSIG`, Linux 2.1.57), then
/// executes the server.
///
/// `execve(2)` keeps the request unless the program is set-user-ID or has capabilities. Processes that the server
/// starts are not covered. Returns only if the server cannot be started.
fn launch(arguments: &LaunchArguments) -> io::Error {
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return errno.into();
    }
    // A lab that exited before the request is no longer the parent, and the kernel would not send the signal.
    if getppid().map(|parent| parent.as_raw_pid().cast_unsigned()) != Some(arguments.lab) {
        return io::Error::other("cannot start the server: the lab has exited");
    }
    let error = process::Command::new(&arguments.command[0]).args(&arguments.command[1..]).exec();
    io::Error::new(error.kind(), format!("cannot start {}: {error}", arguments.command[0].display()))
}
