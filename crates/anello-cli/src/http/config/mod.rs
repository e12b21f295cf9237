//! `--config`: flags of `anello http` from a TOML file.
//!
//! The command-line definition is the only list of flags. Each key of the file is converted to the corresponding
//! argument and inserted before the given arguments, unless they contain the same flag. The merged command line is then
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

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anello_http::files::options::InvalidOption;
use clap::error::ErrorKind::{ArgumentConflict, MissingRequiredArgument};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use self::file::error_text;
use self::key::{CONFIG, DIRECTORY, HTTP, Key, keys};
use crate::common::error::{invalid_input, usage_error};
use crate::common::values::with_remedy;
use crate::common::{driver_flags, output};

/// Information about a command line apart from the values of its flags.
#[derive(Debug, Default)]
pub struct Configuration {
    /// Problems in the file. The valid keys are still applied, so that everything else can be checked.
    pub problems: Vec<String>,
    /// Non-default settings in the syntax of the file.
    pub settings: Vec<String>,
    /// Location in the file of each key that is in effect.
    locations: BTreeMap<String, String>,
}

impl Configuration {
    /// Returns the location of a setting: the file and line of the key, or the flag with its dashes.
    pub fn location(&self, name: &str) -> String {
        match self.locations.get(name) {
            Some(location) => format!("{location}: {name}"),
            None if name == DIRECTORY => name.to_owned(),
            None => format!("--{name}"),
        }
    }

    /// Returns the location of an invalid option and the problem with it.
    pub fn describe_invalid(&self, invalid: &InvalidOption) -> String {
        let text = invalid.to_string();
        let reason = text.strip_prefix(invalid.option()).and_then(|rest| rest.strip_prefix(": "));
        format!("{}: {}", self.location(invalid.option()), reason.unwrap_or(&text))
    }

    /// Returns an error that lists all problems with the file, the options and the flags, if there are any.
    pub fn reject_if_invalid(&self, invalid: &[InvalidOption], flags: &[FlagProblem]) -> io::Result<()> {
        let mut names = invalid.iter().map(InvalidOption::option).chain(flags.iter().map(|flag| flag.name));
        let is_file_valid = self.problems.is_empty() && !names.any(|name| self.locations.contains_key(name));
        let invalid = invalid.iter().map(|option| self.describe_invalid(option));
        let flags = flags.iter().map(|flag| format!("{}: {}", self.location(flag.name), flag.reason));
        let problems: Vec<_> = self.problems.iter().cloned().chain(invalid).chain(flags).collect();
        match (problems.is_empty(), problems.join("\nanello: ")) {
            (true, _) => Ok(()),
            (_, problems) if is_file_valid => Err(usage_error(problems)),
            (_, problems) => Err(invalid_input(problems)),
        }
    }
}

/// A problem of a flag with other flags or with this machine.
pub struct FlagProblem {
    /// Name of the flag without dashes.
    pub name: &'static str,
    pub reason: String,
}

pub enum Failure {
    /// The command line is invalid or requests help.
    CommandLine(clap::Error),
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
        let settings = non_default_settings(http, &matches);
        return Ok((matches, Configuration { settings, ..Configuration::default() }));
    };
    let file::Contents { mut entries, problems } = file::read(&path, http);
    entries.retain(|entry| !is_given.contains(&entry.name));
    let from_file = entries.iter().flat_map(|entry| entry.arguments.iter().cloned());
    let merged: Vec<OsString> =
        arguments[..2].iter().cloned().chain(from_file).chain(arguments[2..].iter().cloned()).collect();
    let matches = match parse(&merged) {
        Ok(matches) => matches,
        Err(error) if [MissingRequiredArgument, ArgumentConflict].contains(&error.kind()) => {
            // If flags on the command line conflict even without the file, report that conflict.
            if let Err(own) = parse(arguments)
                && own.kind() == ArgumentConflict
            {
                return Err(own.into());
            }
            let problem =
                format!("{}, combined with the command line: {}", path.display(), error_text(&error));
            return Err(Failure::file(problems, problem));
        }
        Err(error) => return Err(error.into()),
    };
    let source = matches.subcommand_matches(HTTP).and_then(|http| http.value_source(DIRECTORY));
    // A service must not serve its working directory by mistake.
    if source == Some(ValueSource::DefaultValue) {
        let remedy = "set it in the file, e.g. directory = \"public\", or on the command line";
        let problem = format!("{}: {DIRECTORY}: missing ({remedy})", path.display());
        return Err(Failure::file(problems, problem));
    }
    let locations = entries.into_iter().map(|entry| (entry.name, entry.location)).collect();
    let settings = non_default_settings(http, &matches);
    Ok((matches, Configuration { problems, settings, locations }))
}

/// Returns the path of the configuration file and the names of the flags on the command line. Ignores errors, which are
/// reported when the merged command line is parsed.
fn config_file_argument(http: &Command, arguments: &[OsString]) -> Option<(PathBuf, Vec<String>)> {
    let matches = http.clone().ignore_errors(true).try_get_matches_from(arguments).ok()?;
    let path = matches.get_one::<PathBuf>(CONFIG)?.clone();
    let is_given = |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let names = http.get_arguments().filter(|arg| is_given(arg)).map(|arg| key::name(arg).to_owned());
    Some((path, names.collect()))
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::CommandLine(error)
    }
}

impl Failure {
    /// If the file has problems, report them instead of the error that they may have caused.
    fn file(problems: Vec<String>, command_line_problem: String) -> Self {
        Self::File(if problems.is_empty() { vec![command_line_problem] } else { problems })
    }

    /// Prints the failure and returns the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::CommandLine(error) => {
                // If standard error is closed, the error cannot be reported.
                error.print().ok();
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
            }
            Self::File(problems) => {
                problems.iter().for_each(|problem| output::print_stderr(format_args!("anello: {problem}")));
                ExitCode::FAILURE
            }
        }
    }
}

/// Returns a line for each `anello http` flag whose value is not the default.
fn non_default_settings(http: &Command, matches: &ArgMatches) -> Vec<String> {
    let Some(matches) = matches.subcommand_matches(HTTP) else { return Vec::new() };
    keys(http).filter_map(|key| Some(format!("{} = {}", key.name(), explicit_value(key, matches)?))).collect()
}

fn explicit_value(key: Key<'_>, matches: &ArgMatches) -> Option<String> {
    let id = key.arg.get_id().as_str();
    let values: Vec<_> = matches.get_raw(id)?.collect();
    if matches.value_source(id)? == ValueSource::DefaultValue || values == key.arg.get_default_values() {
        return None;
    }
    // `toml::Value` is limited to signed 64-bit integers, unlike some flags and the file parser.
    let format_value = |text: &&OsStr| match text.to_string_lossy().parse::<i128>() {
        Ok(number) if key.is_number() => number.to_string(),
        _ => toml::Value::from(&*text.to_string_lossy()).to_string(),
    };
    let is_switch = !key.arg.get_action().takes_values();
    Some(match &values[..] {
        [single, ..] if !is_switch && !key.is_list() => format_value(single),
        [_, ..] if !is_switch => {
            format!("[{}]", values.iter().map(format_value).collect::<Vec<_>>().join(", "))
        }
        _ => "true".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::http::Arguments;

    #[test]
    fn largest_number_of_every_flag_round_trips() {
        let command = Command::new("anello").subcommand(Arguments::augment_args(Command::new(HTTP)));
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("site.toml");
        // Merges a file with an argument and returns the non-default settings.
        let settings = |file: &str, argument: &str| {
            std::fs::write(&path, file).expect("write file");
            let words = ["anello", HTTP, "--config", path.to_str().expect("UTF-8 path"), argument];
            let (_, configuration) = read_matches(&command, &words.map(OsString::from)).ok()?;
            configuration.problems.is_empty().then_some(configuration.settings)
        };
        let mut beyond_signed = 0;
        for key in keys(command.find_subcommand(HTTP).expect("http subcommand")).filter(Key::is_number) {
            let largest = [u64::MAX, i64::MAX as u64, u32::MAX.into(), i32::MAX as u64, u16::MAX.into()];
            let accepted = largest.iter().find_map(|number| {
                // Some flags require sqpoll.
                let file = "directory = \"public\"\nsqpoll = 1";
                let settings = settings(file, &format!("--{}=+0{number}", key.name()))?;
                beyond_signed += usize::from(*number == u64::MAX);
                assert!(settings.contains(&format!("{} = {number}", key.name())), "{settings:?}");
                Some(settings)
            });
            let accepted = accepted.unwrap_or_else(|| panic!("{} accepts none of {largest:?}", key.name()));
            assert_eq!(settings(&accepted.join("\n"), "--check"), Some(accepted));
        }
        assert!(beyond_signed > 5, "{beyond_signed}");
    }
}
