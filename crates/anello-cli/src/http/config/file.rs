//! Parsing of the configuration file: converts keys and values to arguments and records their lines.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::{CHECK, CONFIG, Key};
use crate::common::values::{context_text, remedy};

/// Contents of a configuration file: the valid entries, and the problems in file order.
#[derive(Default)]
pub struct Contents {
    pub entries: Vec<Entry>,
    pub problems: Vec<String>,
}

pub struct Entry {
    pub name: String,
    /// File name and line.
    pub location: String,
    /// Command-line arguments for the value; empty for `false`.
    pub arguments: Vec<OsString>,
}

pub fn read(path: &Path, http: &Command) -> Contents {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text, path, http),
        Err(error) => {
            let remedy = "--config takes a TOML file readable by this user";
            let problem = format!("{}: {error} ({remedy})", path.display());
            Contents { entries: Vec::new(), problems: vec![problem] }
        }
    }
}

/// Parses the text of a configuration file. `path` is used in messages.
fn parse(text: &str, path: &Path, http: &Command) -> Contents {
    let location = |span: Range<usize>| {
        let before = text.as_bytes().get(..span.start).unwrap_or_default();
        format!("{}:{}", path.display(), 1 + before.iter().filter(|byte| **byte == b'\n').count())
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut contents = Contents::default();
    contents.problems.extend(errors.iter().map(|error| {
        format!("{}: invalid TOML: {}", location(error.span().unwrap_or_default()), error.message())
    }));
    if !errors.is_empty() {
        return contents;
    }
    let mut pairs: Vec<_> = table.get_ref().iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in pairs {
        let location = location(key.span());
        let name = key.get_ref().to_string();
        match arguments(&name, value, http) {
            Ok(arguments) => contents.entries.push(Entry { name, location, arguments }),
            Err(problems) => {
                contents.problems.extend(problems.iter().map(|cause| format!("{location}: {name}: {cause}")));
            }
        }
    }
    contents
}

/// Converts a key and its value to arguments. Parses each argument separately, so that every problem is reported.
fn arguments(name: &str, value: &Spanned<DeValue<'_>>, http: &Command) -> Result<Vec<OsString>, Vec<String>> {
    let Some(key) = Key::find(http, name) else { return Err(vec![unknown_key_error(name, value, http)]) };
    let arguments = key.arguments(value.get_ref())?;
    let problem = |argument: &OsString| {
        let error = http.clone().try_get_matches_from([&OsString::from("http"), argument]).err()?;
        // A missing argument is not a problem with this key.
        (error.kind() != ErrorKind::MissingRequiredArgument).then(|| rejection_reason(&error))
    };
    let problems: Vec<String> = arguments.iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(arguments) } else { Err(problems) }
}

fn rejection_reason(error: &clap::Error) -> String {
    let value = context_text(error, ContextKind::InvalidValue);
    if let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue)
        && !choices.is_empty()
    {
        return format!("invalid value {value:?} (expected one of {})", choices.join(", "));
    }
    let reason = match std::error::Error::source(error) {
        Some(source) => remedy(source).map_or_else(|| source.to_string(), str::to_owned),
        None => error_text(error),
    };
    if reason.contains(value) { reason } else { format!("invalid value {value:?}: {reason}") }
}

fn unknown_key_error(name: &str, value: &Spanned<DeValue<'_>>, http: &Command) -> String {
    if [CONFIG, CHECK].contains(&name) {
        return "only valid on the command line (remove this key)".to_owned();
    }
    if let DeValue::Table(_) = value.get_ref() {
        return "sections are not supported (put all keys at the top level, e.g. addr = \"127.0.0.1:8080\")"
            .to_owned();
    }
    let hyphened = name.replace('_', "-");
    let similar = Key::find(http, &hyphened).map(|key| key.name().to_owned()).or_else(|| {
        let error = http.clone().try_get_matches_from(["http", &format!("--{hyphened}")]).err()?;
        let flag = context_text(&error, ContextKind::SuggestedArg).trim_start_matches('-');
        (!flag.is_empty()).then(|| flag.to_owned())
    });
    match similar {
        Some(similar) => format!("unknown key (did you mean {similar}?)"),
        None => "unknown key (keys are the long flags listed by anello http --help)".to_owned(),
    }
}

/// Returns an error message as a single line without the usage text.
pub fn error_text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first_paragraph = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    first_paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}
