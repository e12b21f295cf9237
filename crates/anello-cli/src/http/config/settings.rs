//! Non-default settings of a command line and its file, in the syntax of the file.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use toml::Value;

use super::key::{HTTP, Key, keys};

/// Returns a line for each `anello http` flag whose value is not the default.
pub fn non_default_settings(http: &Command, matches: &ArgMatches) -> Vec<String> {
    let Some(matches) = matches.subcommand_matches(HTTP) else { return Vec::new() };
    keys(http).filter_map(|key| Some(format!("{} = {}", key.name(), explicit_value(key, matches)?))).collect()
}

fn explicit_value(key: Key<'_>, matches: &ArgMatches) -> Option<String> {
    let id = key.arg.get_id().as_str();
    if matches.value_source(id)? == ValueSource::DefaultValue {
        return None;
    }
    let values: Vec<_> = matches.get_raw(id)?.collect();
    if values == key.arg.get_default_values() {
        return None;
    }
    let value = |text: &std::ffi::OsStr| format_value(key, &text.to_string_lossy());
    let is_switch = !key.arg.get_action().takes_values();
    Some(match values[..] {
        [] => true.to_string(),
        _ if is_switch => true.to_string(),
        _ if key.is_list() => format!("[{}]", values.into_iter().map(value).collect::<Vec<_>>().join(", ")),
        [single, ..] => value(single),
    })
}

/// Formats a value in TOML. [`Value`] is limited to signed 64-bit integers, unlike some flags and the file parser.
fn format_value(key: Key<'_>, text: &str) -> String {
    match text.parse::<i128>() {
        Ok(number) if key.is_number() => number.to_string(),
        _ => Value::from(text).to_string(),
    }
}
