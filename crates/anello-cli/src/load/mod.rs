//! `anello load`: a load generator that reports latency, throughput and CPU cost.

mod flags;
mod merge;
mod output_file;
mod run;
mod shard;
mod table;
mod url;
mod values;
mod view;

use std::io;
use std::process::ExitCode;

use self::flags::{HttpArguments, TcpArguments};
use self::merge::MergeArguments;

// The two variants with many flags are boxed.
#[derive(clap::Subcommand)]
pub enum Command {
    Tcp(Box<TcpArguments>),
    Http(Box<HttpArguments>),
    Merge(MergeArguments),
}

pub fn run(command: Command) -> io::Result<ExitCode> {
    match command {
        Command::Tcp(arguments) => run::run(&arguments.load()?, &arguments.common),
        Command::Http(arguments) => run::run(&arguments.load()?, &arguments.common),
        Command::Merge(arguments) => merge::run(&arguments),
    }
}
