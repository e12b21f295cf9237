//! The file: keys and values to arguments, with the line of each.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::Key;
use super::{CHECK, CONFIG, error_text};
use crate::value_errors::remedy;

/// What a file says, as far as it is right, and what is wrong in it, in order.
#[derive(Debug, Default)]
pub struct Contents {
    pub entries: Vec<Entry>,
    pub problems: Vec<String>,
}

/// A key that is right.
#[derive(Debug)]
pub struct Entry {
    pub name: String,
    /// File and line.
    pub location: String,
    /// None for `false`.
    pub arguments: Vec<OsString>,
}

/// Reads a file.
pub fn read(path: &Path, http: &Command) -> Contents {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text, path, http),
        Err(error) => {
            let remedy = "--config names a file in TOML that this user may read";
            Contents {
                problems: vec![format!("{}: {error}: {remedy}", path.display())],
                ..Contents::default()
            }
        }
    }
}

/// Reads a text. `path` is what it is called in errors.
pub fn parse(text: &str, path: &Path, http: &Command) -> Contents {
    let location = |span: Range<usize>| {
        let before = text.as_bytes().get(..span.start).unwrap_or_default();
        format!("{}:{}", path.display(), 1 + before.iter().filter(|byte| **byte == b'\n').count())
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut contents = Contents::default();
    if !errors.is_empty() {
        let reported = errors.iter().map(|error| {
            format!("{}: not TOML: {}", location(error.span().unwrap_or_default()), error.message())
        });
        contents.problems.extend(reported);
        return contents;
    }
    let mut pairs: Vec<_> = table.get_ref().iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in pairs {
        let location = location(key.span());
        match arguments(key.get_ref(), value, http) {
            Ok(arguments) => {
                contents.entries.push(Entry { name: key.get_ref().to_string(), location, arguments });
            }
            Err(problems) => {
                let reported = problems.iter().map(|why| format!("{location}: {}: {why}", key.get_ref()));
                contents.problems.extend(reported);
            }
        }
    }
    contents
}

/// The arguments that a key stands for; each has been parsed once, so that all that is wrong is told with its line.
fn arguments(name: &str, value: &Spanned<DeValue<'_>>, http: &Command) -> Result<Vec<OsString>, Vec<String>> {
    let Some(key) = Key::find(http, name) else { return Err(vec![unknown_key_error(name, value, http)]) };
    let arguments = key.arguments(value.get_ref())?;
    let problem = |argument: &OsString| {
        let error = http.clone().try_get_matches_from([&OsString::from("http"), argument]).err()?;
        // That something else is missing is not this key's fault.
        (error.kind() != ErrorKind::MissingRequiredArgument).then(|| rejection_reason(&error))
    };
    let problems: Vec<String> = arguments.iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(arguments) } else { Err(problems) }
}

/// Why the command line refuses a value.
fn rejection_reason(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let value = text(ContextKind::InvalidValue);
    if let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue)
        && !choices.is_empty()
    {
        return format!("{value:?} is none of its values: choose from {}", choices.join(", "));
    }
    let reported = |source: &(dyn std::error::Error + 'static)| {
        remedy(source).map_or_else(|| source.to_string(), str::to_owned)
    };
    let why = std::error::Error::source(error).map_or_else(|| error_text(error), reported);
    if why.contains(value) { why } else { format!("{value:?}: {why}") }
}

/// What to say of a key that is no flag.
fn unknown_key_error(name: &str, value: &Spanned<DeValue<'_>>, http: &Command) -> String {
    if [CONFIG, CHECK].contains(&name) {
        return "it is for the command line alone: leave it out here".to_owned();
    }
    if let DeValue::Table(_) = value.get_ref() {
        return "there are no sections: write all flags at the top, as in addr = \"127.0.0.1:8080\""
            .to_owned();
    }
    let hyphened = name.replace('_', "-");
    let similar = Key::find(http, &hyphened).map(|key| key.name().to_owned()).or_else(|| {
        let error = http.clone().try_get_matches_from(["http", &format!("--{hyphened}")]).err()?;
        match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_owned()),
            _ => None,
        }
    });
    match similar {
        Some(similar) => format!("there is no such flag: is {similar} meant?"),
        None => "there is no such flag: keys are the long flags that anello http --help shows".to_owned(),
    }
}
