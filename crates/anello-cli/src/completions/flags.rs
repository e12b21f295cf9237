//! Command-line arguments of `anello completions`.

use clap_complete::Shell;

/// Print a shell script that completes anello's commands and flags.
///
/// For bash: anello completions bash > ~/.local/share/bash-completion/completions/anello
#[derive(clap::Args)]
pub struct Arguments {
    /// Shell to generate the script for.
    #[arg(value_enum)]
    pub shell: Shell,
}
