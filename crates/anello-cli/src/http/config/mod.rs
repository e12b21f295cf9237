//! `--config`: flags of `anello http` from a TOML file.
//!
//! The command-line definition is the only list of flags. Each key of the file is converted to the corresponding
//! argument and inserted before the given arguments, unless its flag is among them. The merged command line is then
//! parsed as usual. A new flag is thus available as a key, with the same values and error messages:
//!
//! ```text
//!   anello http --config site.toml --addr 127.0.0.1:0
//!                         │ addr = "0.0.0.0:80"                overridden: omitted
//!                         │ index = ["a.html", "b.html"]       --index=a.html --index=b.html
//!                         ▼
//!   anello http --index=a.html --index=b.html --config site.toml --addr 127.0.0.1:0
//! ```

mod file;
mod key;
mod settings;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anello_http::files::options::InvalidOption;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::cores::Cores;
use crate::value_errors::with_remedy;
use crate::{driver_flags, output};

/// The subcommand that supports a configuration file.
const HTTP: &str = "http";

/// Flag for the path of the configuration file.
const CONFIG: &str = "config";

/// Flag that validates the configuration without serving.
const CHECK: &str = "check";

/// Positional argument with the document root.
const DIRECTORY: &str = "directory";

/// Information about a command line apart from the values of its flags.
#[derive(Debug, Default)]
pub struct Configuration {
    /// Problems in the file. The valid keys are applied nevertheless, so that everything else can be checked.
    pub problems: Vec<String>,
    /// Non-default settings in the syntax of the file.
    pub settings: Vec<String>,
    /// Location in the file of each key that is in effect.
    locations: BTreeMap<String, String>,
}

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

fn read_matches(command: &Command, arguments: &[OsString]) -> Result<(ArgMatches, Configuration), Failure> {
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
            // If the command line conflicts even without the file, report that conflict.
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
        let remedy = "set it in the file, as in directory = \"public\", or on the command line";
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

/// Returns the message of an error as a single line without the usage text.
fn error_text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first_paragraph = text.split("\n\n").next().unwrap_or_default();
    let tokens: Vec<&str> = first_paragraph.trim_start_matches("error: ").split_whitespace().collect();
    tokens.join(" ")
}

impl Configuration {
    /// Returns the location of a setting: file and line with the key, or the flag with its dashes.
    pub fn location(&self, name: &str) -> String {
        match self.locations.get(name) {
            Some(location) => format!("{location}: {name}"),
            None if name == DIRECTORY => name.to_owned(),
            None => format!("--{name}"),
        }
    }

    /// Returns the location and the problem of an invalid option.
    pub fn describe_invalid(&self, invalid: &InvalidOption) -> String {
        let text = invalid.to_string();
        let reason = text.strip_prefix(invalid.option()).and_then(|rest| rest.strip_prefix(": "));
        format!("{}: {}", self.location(invalid.option()), reason.unwrap_or(&text))
    }

    /// Returns an error listing all problems of the file, the options and the cores, if there are any.
    pub fn reject_if_invalid(&self, invalid: &[InvalidOption], cores: Option<&Cores>) -> io::Result<()> {
        let invalid = invalid.iter().map(|option| self.describe_invalid(option));
        let cores = cores
            .and_then(Cores::local_problem)
            .map(|reason| format!("{}: {reason}", self.location("cores")));
        let problems: Vec<_> = self.problems.iter().cloned().chain(invalid).chain(cores).collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, problems.join("\nanello: "))),
        }
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::CommandLine(error)
    }
}

impl Failure {
    /// Creates the failure of a file. A problem of the merged command line can be a consequence of problems in the
    /// file, so it is reported only if there are none.
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
