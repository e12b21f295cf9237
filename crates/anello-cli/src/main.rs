//! The `anello` command: servers, a load generator, a benchmark lab and a system check, based on one runtime.
//!
//! Exit codes: 0 for success, 1 for a runtime error, 2 for an invalid command line.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("anello-cli requires Linux: it uses io_uring and epoll (build for a Linux target)");

mod bare;
mod common;
mod completions;
mod doctor;
mod echo;
mod http;
mod lab;
mod load;
mod man;

use std::env;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use self::common::error::is_usage_error;
use self::common::log_limit::LogLimit;
use self::common::terminal::Messages;
use self::common::{build_identity, output};

/// Thread-per-core network runtime for Linux: io_uring or epoll, selected at startup.
///
/// Run servers (echo, http), measure performance (load, lab), and check what this machine supports (doctor).
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
    /// Generate load against a server and report latency, throughput and errors.
    #[command(subcommand)]
    Load(load::Command),
    /// Run benchmarks that compare servers on this machine or across hosts.
    #[command(subcommand)]
    Lab(lab::Command),
    Man(man::Arguments),
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
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Load(command) => load::run(command),
        Command::Lab(command) => lab::run(command),
        Command::Man(arguments) => man::run(&arguments, Arguments::command()),
        Command::Completions(arguments) => completions::run(&arguments, Arguments::command()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::print_stderr(format_args!("anello: {error}"));
            if is_usage_error(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Writes log lines to standard error, after the end of a view. `ANELLO_LOG` selects them: a level, such as `info`, or a
/// list of `target=level`, such as `anello=debug,anello_http=info`. The default is `warn`.
fn start_log() {
    let selected = env::var_os("ANELLO_LOG").filter(|value| !value.is_empty());
    // Without this check, a misspelled level would be a target, and nothing a level.
    let is_directive =
        |entry: &str| entry.contains('=') || !entry.is_empty() && entry.parse::<LevelFilter>().is_ok();
    let is_filter = |value: &&str| value.split(',').all(is_directive);
    let targets =
        selected.as_ref().and_then(|value| value.to_str().filter(is_filter)?.parse::<Targets>().ok());
    if let (Some(value), None) = (&selected, &targets) {
        output::print_stderr(format_args!(
            "anello: invalid ANELLO_LOG={}: logging warnings (use a level, such as info, or a list of target=level, such \
             as anello=debug,anello_http=info)",
            value.display()
        ));
    }
    let targets = targets.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    // Colours are used only on a terminal, and not if NO_COLOR is set (no-color.org).
    let is_coloured =
        io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let log =
        tracing_subscriber::fmt::layer().with_writer(|| Messages).with_target(false).with_ansi(is_coloured);
    // If standard error is closed, reporting that a log line could not be written would panic.
    let log = log.log_internal_errors(false).with_filter(LogLimit::default());
    tracing_subscriber::registry().with(log).with(targets).init();
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::common::values::with_remedy;

    /// Parts of standard-library error messages that must not occur in the command's own messages.
    const RAW: [&str; 6] = [
        "invalid digit",
        "target type",
        "zero for non-zero",
        "empty string",
        "address syntax",
        "invalid float",
    ];

    /// Tries invalid values for each flag of each command.
    #[test]
    fn flags_do_not_expose_std_parse_errors() {
        fn try_each(command: &clap::Command, words: &[&str], tried: &mut usize) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                let Some(long) = arg.get_long() else { continue };
                for value in ["x", "-1", "99999999999999999999999", "0", ""] {
                    let flag = format!("--{long}={value}");
                    let line = words.iter().copied().chain([&*flag]).map(OsStr::new);
                    let Err(error) = Arguments::command().try_get_matches_from(line) else { continue };
                    let message = with_remedy(error).to_string();
                    assert!(!RAW.iter().any(|raw| message.contains(raw)), "{words:?} {flag}: {message}");
                    *tried += 1;
                }
            }
            for command in command.get_subcommands() {
                try_each(command, &[words, &[command.get_name()]].concat(), tried);
            }
        }
        let mut tried = 0;
        try_each(&Arguments::command(), &["anello"], &mut tried);
        assert!(tried > 200, "{tried}");
    }
}
