//! The `anello` command: servers, load generator, lab and doctor on one runtime.
//!
//! Exit codes: 0 for success, 1 for a runtime error, 2 for an invalid command line.

#![forbid(unsafe_code)]

mod activation;
mod address;
mod bare;
mod build_identity;
mod completions;
mod cores;
mod doctor;
mod driver_flags;
mod duration;
mod echo;
mod http;
mod lab;
mod lab_compare;
mod lab_disk_file;
mod lab_list;
mod lab_load;
mod lab_load_http;
mod lab_peers;
mod lab_report;
mod lab_run;
mod lab_with;
mod limits;
mod listening;
mod load;
mod load_flags;
mod load_merge;
mod load_progress;
mod load_table;
mod load_tls_flags;
mod load_url;
mod manual;
mod notify;
mod output;
mod sandbox;
mod stop;
mod value_errors;

use std::env;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Thread-per-core network runtime for Linux: io_uring or epoll, selected at startup.
///
/// Run servers (echo, http), measure (load, lab), and check what this machine supports (doctor).
#[derive(Parser)]
#[command(name = "anello", version, long_version = build_identity::LONG_VERSION)]
#[command(propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// The variants with by far the most flags are boxed to keep the enum small.
#[derive(Subcommand)]
enum Command {
    Echo(Box<echo::Arguments>),
    Http(Box<http::Arguments>),
    Bare(bare::Arguments),
    Doctor(doctor::Arguments),
    Load(Box<load::Arguments>),
    Lab(lab::Arguments),
    Man(manual::Arguments),
    Completions(completions::Arguments),
}

fn main() -> ExitCode {
    let (arguments, configuration) = match http::config::read::<Arguments>(env::args_os()) {
        Ok(read) => read,
        Err(failure) => return failure.report(),
    };
    start_log();
    let result = match arguments.command {
        Command::Echo(arguments) => echo::run(*arguments),
        Command::Http(arguments) => http::run(*arguments, &configuration),
        Command::Bare(arguments) => bare::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Load(arguments) => load::run(*arguments),
        Command::Lab(arguments) => lab::run(arguments),
        Command::Man(arguments) => manual::run(&arguments, Arguments::command()),
        Command::Completions(arguments) => completions::run(&arguments, Arguments::command()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::print_stderr(format_args!("anello: {error}"));
            ExitCode::from(1)
        }
    }
}

/// Writes log lines to standard error. `ANELLO_LOG` is the filter (default `warn`), for example `info` or
/// `anello=debug`.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("ANELLO_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false);
    // No colours in files and journals, nor if NO_COLOR is set (no-color.org).
    let is_coloured =
        io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = log.with_ansi(is_coloured);
    // Reporting a failed write of a log line would panic if standard error is closed.
    log.log_internal_errors(false).init();
}
