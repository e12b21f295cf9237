//! `anello load`: a load generator that reports latency, throughput and CPU cost.

mod flags;
mod format;
mod merge;
mod progress;
mod resolve;
mod run;
mod table;
mod tls_flags;
mod url;
mod values;

use std::io;
use std::process::ExitCode;

use self::flags::{HttpArguments, TcpArguments};
use self::merge::MergeArguments;

/// Generate load for a server and report latency, throughput and errors.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// The two variants with many flags are boxed.
#[derive(clap::Subcommand)]
enum Command {
    Tcp(Box<TcpArguments>),
    Http(Box<HttpArguments>),
    Merge(MergeArguments),
}

/// Runs a subcommand of `anello load`.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    match arguments.command {
        Command::Tcp(arguments) => run::run(&arguments.load()?, &arguments.common),
        Command::Http(arguments) => run::run(&arguments.load()?, &arguments.common),
        Command::Merge(arguments) => merge::run(&arguments),
    }
}
