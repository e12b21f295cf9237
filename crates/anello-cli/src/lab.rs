//! `anello lab`: which server is fastest on this machine.
//!
//! The lab decides what runs when. `lab_run.rs` reads the flags of a run, shows its progress and writes its reports;
//! `lab_load.rs` gives it the load, `lab_load_http.rs` what is particular to HTTP; `lab_list.rs`, `lab_report.rs`,
//! `lab_compare.rs` and `lab_peers.rs` are the other commands.

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

/// Compare servers on this machine.
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

/// Becomes a command that ends when the lab does: how `lab run` starts every server.
#[derive(clap::Args)]
struct LaunchArguments {
    /// Process id of the lab, which must be the parent of this process.
    lab: u32,
    /// The command to become, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the command.
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
