//! `anello lab launch`: starts a server that does not outlive the lab.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Replace this process with a command that the kernel kills when the lab exits. `lab run` starts each server this way.
#[derive(clap::Args)]
pub struct LaunchArguments {
    /// Process ID of the lab, which must be the parent of this process.
    lab: u32,
    /// Command to execute, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Asks the kernel to kill this process when the lab thread that started it exits (`PR_SET_PDEATHSIG`), and executes
/// the server. `execve(2)` preserves the request unless the program is set-user-ID or has capabilities. The request
/// does not apply to processes that the server starts. Returns only if the server cannot be started.
pub fn run(arguments: &LaunchArguments) -> io::Error {
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return errno.into();
    }
    // If the lab exited before the request was made, it is no longer the parent, and the kernel will not send the
    // signal.
    if getppid().map(|parent| parent.as_raw_pid().cast_unsigned()) != Some(arguments.lab) {
        return io::Error::other("cannot start the server: the lab has exited");
    }
    let error = process::Command::new(&arguments.command[0]).args(&arguments.command[1..]).exec();
    io::Error::new(error.kind(), format!("cannot start {}: {error}", arguments.command[0].display()))
}
