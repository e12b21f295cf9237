//! `anello completions`: shell completion scripts, generated from the command-line definition.

use std::io;
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};

use crate::common::output;

/// Print a shell script that completes anello's commands and flags.
///
/// For bash: anello completions bash > ~/.local/share/bash-completion/completions/anello
#[derive(clap::Args)]
pub struct Arguments {
    /// Shell to generate the script for.
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(arguments: &Arguments, mut command: Command) -> io::Result<ExitCode> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(arguments.shell, &mut command, name, &mut script);
    output::show(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
}
