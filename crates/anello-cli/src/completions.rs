//! `anello completions`: shell completion scripts, generated from the definition of the command line.

use std::io;
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};

use crate::output;

/// Print a shell script that completes anello's commands and flags.
///
/// For bash: anello completions bash > ~/.local/share/bash-completion/completions/anello
#[derive(clap::Args)]
pub struct Arguments {
    /// Shell to generate the script for.
    #[arg(value_enum)]
    shell: Shell,
}

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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, ValueEnum};

    use super::*;

    #[test]
    fn script_of_each_shell_contains_all_commands() {
        let command = crate::Arguments::command();
        for shell in Shell::value_variants() {
            let script = script(*shell, command.clone());
            for visible in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
                assert!(script.contains(visible.get_name()), "{shell} {}", visible.get_name());
            }
            assert!(script.contains("keep-alive-timeout"), "{shell}");
        }
    }
}
