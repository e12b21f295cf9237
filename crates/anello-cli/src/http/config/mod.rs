//! `--config`: flags of `anello http` from a TOML file.
//!
//! The definition of the command line stays the only list of flags. Each key of the file becomes the argument that it
//! stands for, and goes before those that were given, unless its flag is among them; then the command line is parsed as
//! ever. So a new flag is a key at once, with the same values and the same errors:
//!
//! ```text
//!   anello http --config site.toml --addr 127.0.0.1:0
//!                         │ addr = "0.0.0.0:80"                given: left out
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

/// The command whose flags a file may have.
const HTTP: &str = "http";

/// The flag that names the file.
const CONFIG: &str = "config";

/// The flag that has everything looked at.
const CHECK: &str = "check";

/// What is served.
const FOLDER: &str = "folder";

/// What is known of a command line besides its values.
#[derive(Debug, Default)]
pub struct Configuration {
    /// What is wrong in the file. What is right counts, so that all else can be looked at.
    pub problems: Vec<String>,
    /// The flags that are not as by default, in the words of a file.
    pub settings: Vec<String>,
    /// Where in the file the flags stand that count.
    locations: BTreeMap<String, String>,
}

/// Why a command line does not count.
#[derive(Debug)]
pub enum Failure {
    /// It is wrong, or asks for help.
    CommandLine(clap::Error),
    /// The file is.
    File(Vec<String>),
}

/// Reads a command line, and the file that it names, if it does.
pub fn read<A: CommandFactory + FromArgMatches>(
    given: impl Iterator<Item = OsString>,
) -> Result<(A, Configuration), Failure> {
    let command = A::command();
    let (mut matches, configuration) = read_matches(&command, &given.collect::<Vec<_>>())?;
    let arguments = A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut A::command()))?;
    Ok((arguments, configuration))
}

fn read_matches(command: &Command, given: &[OsString]) -> Result<(ArgMatches, Configuration), Failure> {
    let parse = |arguments: &[OsString]| {
        let matches = command.clone().try_get_matches_from(arguments).map_err(with_remedy)?;
        driver_flags::check(&matches)?;
        Ok::<_, clap::Error>(matches)
    };
    let http = command.find_subcommand(HTTP).filter(|_| given.get(1).is_some_and(|word| word == HTTP));
    let Some(http) = http else { return Ok((parse(given)?, Configuration::default())) };
    let Some((path, is_given)) = config_file_argument(http, &given[1..]) else {
        let matches = parse(given)?;
        let settings = settings::non_default_settings(http, &matches);
        return Ok((matches, Configuration { settings, ..Configuration::default() }));
    };
    let file::Contents { mut entries, problems } = file::read(&path, http);
    entries.retain(|entry| !is_given.contains(&entry.name));
    let from_file = entries.iter().flat_map(|entry| entry.arguments.iter().cloned());
    let merged: Vec<OsString> =
        given[..2].iter().cloned().chain(from_file).chain(given[2..].iter().cloned()).collect();
    let matches = match parse(&merged) {
        Ok(matches) => matches,
        Err(error) if is_flag_conflict(&error) => {
            // What contradicts itself without the file is not the file's doing.
            let alone = parse(given).err().filter(|alone| alone.kind() == ErrorKind::ArgumentConflict);
            if let Some(alone) = alone {
                return Err(Failure::CommandLine(alone));
            }
            let problem = format!("{}, with the command line: {}", path.display(), error_text(&error));
            return Err(Failure::file(problems, problem));
        }
        Err(error) => return Err(Failure::CommandLine(error)),
    };
    let served = matches.subcommand_matches(HTTP).and_then(|http| http.value_source(FOLDER));
    if served.is_none() {
        let remedy = "name it there, as in folder = \"public\", or on the command line";
        let problem = format!("{}: {FOLDER}: nothing says what to serve: {remedy}", path.display());
        return Err(Failure::file(problems, problem));
    }
    let locations = entries.into_iter().map(|entry| (entry.name, entry.location)).collect();
    let settings = settings::non_default_settings(http, &matches);
    Ok((matches, Configuration { problems, settings, locations }))
}

/// The file that the command line names, and the flags that are given on it. A command line that is wrong may hide some:
/// that is told when the whole is parsed.
fn config_file_argument(http: &Command, given: &[OsString]) -> Option<(PathBuf, Vec<String>)> {
    let matches = http.clone().ignore_errors(true).try_get_matches_from(given).ok()?;
    let path = matches.get_one::<PathBuf>(CONFIG)?.clone();
    let is_given =
        |arg: &clap::Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let names = http.get_arguments().filter(|arg| is_given(arg)).map(|arg| key::name(arg).to_owned());
    Some((path, names.collect()))
}

/// Whether flags do not go together, or one lacks another.
fn is_flag_conflict(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict)
}

/// What an error says, in one line, without how the command is used.
fn error_text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let reported_text = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = reported_text.trim_start_matches("error: ").split_whitespace().collect();
    words.join(" ")
}

impl Configuration {
    /// A flag, as whoever set it knows it: where it stands in the file, or with its dashes.
    pub fn location(&self, name: &str) -> String {
        match self.locations.get(name) {
            Some(location) => format!("{location}: {name}"),
            None if name == FOLDER => name.to_owned(),
            None => format!("--{name}"),
        }
    }

    /// What is wrong with an option, and where that was set.
    pub fn describe_invalid(&self, invalid: &InvalidOption) -> String {
        let text = invalid.to_string();
        let why = text.strip_prefix(invalid.option()).and_then(|rest| rest.strip_prefix(": "));
        format!("{}: {}", self.location(invalid.option()), why.unwrap_or(&text))
    }

    /// Fails if something is wrong in the file, with these options or with the cores, and tells all of it.
    pub fn reject_if_invalid(&self, invalid: &[InvalidOption], cores: Option<&Cores>) -> io::Result<()> {
        let invalid = invalid.iter().map(|one| self.describe_invalid(one));
        let cores =
            cores.and_then(Cores::local_problem).map(|why| format!("{}: {why}", self.location("cores")));
        let reported: Vec<_> = self.problems.iter().cloned().chain(invalid).chain(cores).collect();
        match reported.is_empty() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, reported.join("\nanello: "))),
        }
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::CommandLine(error)
    }
}

impl Failure {
    /// What is wrong in a file; only if nothing is, what is wrong with the whole, which may come of it.
    fn file(problems: Vec<String>, command_line_problem: String) -> Self {
        Self::File(if problems.is_empty() { vec![command_line_problem] } else { problems })
    }

    /// Tells it, and says what the process is to exit with.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::CommandLine(error) => {
                // Nobody is left to be told that it could not be told.
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
