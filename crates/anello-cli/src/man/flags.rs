//! Command-line arguments of `anello man`.

use std::path::PathBuf;

/// Print the manual page of a command, or write the pages of all commands to files.
///
/// `anello man http | man -l -` shows one page; `anello man --out /usr/local/share/man/man1` installs all of them.
#[derive(clap::Args)]
pub struct Arguments {
    /// Command whose manual page is printed, such as "lab run"; by default, anello itself.
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Write the pages of all commands to this directory, which is created if it does not exist.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub out: Option<PathBuf>,
}
