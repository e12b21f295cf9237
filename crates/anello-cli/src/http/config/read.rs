//! Merges the file into the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use super::configuration::Configuration;
use super::file::error_text;
use super::key::{CONFIG, DIRECTORY, HTTP};
use super::{file, key, settings};
use crate::common::value_errors::with_remedy;
use crate::common::{driver_flags, output};

/// Reason why a command line cannot be executed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is invalid or requests help.
    CommandLine(clap::Error),
    /// The file is invalid.
    File(Vec<String>),
}

/// Parses a command line and the configuration file that it names, if any.
pub fn read<A: CommandFactory + FromArgMatches>(
    arguments: impl Iterator<Item = OsString>,
) -> Result<(A, Configuration), Failure> {
    let command = A::command();
    let (mut matches, configuration) = read_matches(&command, &arguments.collect::<Vec<_>>())?;
    let arguments = A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut A::command()))?;
    Ok((arguments, configuration))
}

pub fn read_matches(
    command: &Command,
    arguments: &[OsString],
) -> Result<(ArgMatches, Configuration), Failure> {
    let parse = |arguments: &[OsString]| {
        let matches = command.clone().try_get_matches_from(arguments).map_err(with_remedy)?;
        driver_flags::check(&matches)?;
        Ok::<_, clap::Error>(matches)
    };
    let http = command.find_subcommand(HTTP).filter(|_| arguments.get(1).is_some_and(|name| name == HTTP));
    let Some(http) = http else { return Ok((parse(arguments)?, Configuration::default())) };
    let Some((path, is_given)) = config_file_argument(http, &arguments[1..]) else {
        let matches = parse(arguments)?;
        let settings = settings::non_default_settings(http, &matches);
        return Ok((matches, Configuration { settings, ..Configuration::default() }));
    };
    let file::Contents { mut entries, problems } = file::read(&path, http);
    entries.retain(|entry| !is_given.contains(&entry.name));
    let from_file = entries.iter().flat_map(|entry| entry.arguments.iter().cloned());
    let merged: Vec<OsString> =
        arguments[..2].iter().cloned().chain(from_file).chain(arguments[2..].iter().cloned()).collect();
    let matches = match parse(&merged) {
        Ok(matches) => matches,
        Err(error) if is_flag_conflict(&error) => {
            // If flags on the command line conflict even without the file, report that conflict.
            let own_conflict = parse(arguments)
                .err()
                .filter(|own_conflict| own_conflict.kind() == ErrorKind::ArgumentConflict);
            if let Some(own_conflict) = own_conflict {
                return Err(Failure::CommandLine(own_conflict));
            }
            let problem = format!("{}, with the command line: {}", path.display(), error_text(&error));
            return Err(Failure::file(problems, problem));
        }
        Err(error) => return Err(Failure::CommandLine(error)),
    };
    let source = matches.subcommand_matches(HTTP).and_then(|http| http.value_source(DIRECTORY));
    if source.is_none() {
        let remedy = "set it in the file, e.g. directory = \"public\", or on the command line";
        let problem = format!("{}: {DIRECTORY}: missing ({remedy})", path.display());
        return Err(Failure::file(problems, problem));
    }
    let locations = entries.into_iter().map(|entry| (entry.name, entry.location)).collect();
    let settings = settings::non_default_settings(http, &matches);
    Ok((matches, Configuration { problems, settings, locations }))
}

/// Returns the path of the configuration file and the names of the flags on the command line. Ignores errors, which
/// are reported when the merged command line is parsed.
fn config_file_argument(http: &Command, arguments: &[OsString]) -> Option<(PathBuf, Vec<String>)> {
    let matches = http.clone().ignore_errors(true).try_get_matches_from(arguments).ok()?;
    let path = matches.get_one::<PathBuf>(CONFIG)?.clone();
    let is_given =
        |arg: &clap::Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let names = http.get_arguments().filter(|arg| is_given(arg)).map(|arg| key::name(arg).to_owned());
    Some((path, names.collect()))
}

/// Returns `true` if the error is a conflict between flags or a missing flag.
fn is_flag_conflict(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict)
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::CommandLine(error)
    }
}

impl Failure {
    /// Creates the failure for a file. A problem in the merged command line can be a consequence of problems in the
    /// file, so it is reported only if the file has none.
    fn file(problems: Vec<String>, command_line_problem: String) -> Self {
        Self::File(if problems.is_empty() { vec![command_line_problem] } else { problems })
    }

    /// Prints the failure and returns the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::CommandLine(error) => {
                // If standard error is closed, there is no way to report it.
                error.print().ok();
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
            }
            Self::File(problems) => {
                problems.iter().for_each(|problem| output::print_stderr(format_args!("anello: {problem}")));
                ExitCode::from(1)
            }
        }
    }
}
