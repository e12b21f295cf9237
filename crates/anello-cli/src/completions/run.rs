//! Printing a completion script.

use std::io;
use std::process::ExitCode;

use clap::Command;
use clap_complete::generate;

use super::flags::Arguments;
use crate::common::output;

pub fn run(arguments: &Arguments, mut command: Command) -> io::Result<ExitCode> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(arguments.shell, &mut command, name, &mut script);
    output::show(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
}
