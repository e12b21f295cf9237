//! The settings from a command line and a configuration file, with the locations of the file's settings.

use std::collections::BTreeMap;
use std::io;

use anello_http::files::options::InvalidOption;

use super::key::DIRECTORY;
use crate::common::cores::Cores;
use crate::common::error::invalid_input;

/// Information about a command line apart from the values of its flags.
#[derive(Debug, Default)]
pub struct Configuration {
    /// Problems in the file. The valid keys are still applied, so that everything else can be checked.
    pub problems: Vec<String>,
    /// Non-default settings in the syntax of the file.
    pub settings: Vec<String>,
    /// Location in the file of each key that is in effect.
    pub locations: BTreeMap<String, String>,
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

    /// Returns the location of an invalid option and the problem with it.
    pub fn describe_invalid(&self, invalid: &InvalidOption) -> String {
        let text = invalid.to_string();
        let reason = text.strip_prefix(invalid.option()).and_then(|rest| rest.strip_prefix(": "));
        format!("{}: {}", self.location(invalid.option()), reason.unwrap_or(&text))
    }

    /// Returns an error that lists all problems with the file, the options and the cores, if there are any.
    pub fn reject_if_invalid(&self, invalid: &[InvalidOption], cores: Option<&Cores>) -> io::Result<()> {
        let invalid = invalid.iter().map(|option| self.describe_invalid(option));
        let cores = cores
            .and_then(Cores::local_problem)
            .map(|reason| format!("{}: {reason}", self.location("cores")));
        let problems: Vec<_> = self.problems.iter().cloned().chain(invalid).chain(cores).collect();
        if problems.is_empty() { Ok(()) } else { Err(invalid_input(problems.join("\nanello: "))) }
    }
}
