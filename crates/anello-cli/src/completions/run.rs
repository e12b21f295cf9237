//! Prints the completion script.

use std::io;
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};

use super::flags::Arguments;
use crate::common::output;

/// Prints the completion script.
pub fn run(arguments: &Arguments, command: Command) -> io::Result<ExitCode> {
    output::show(&script(arguments.shell, command))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
