//! What a command line and its file have set, in the words of a file.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use toml::Value;

use super::HTTP;
use super::key::{Key, keys};

/// A line for each flag of `anello http` that is not as by default.
pub fn other_than_defaults(http: &Command, matches: &ArgMatches) -> Vec<String> {
    let Some(matches) = matches.subcommand_matches(HTTP) else { return Vec::new() };
    keys(http).filter_map(|key| Some(format!("{} = {}", key.name(), set_value(key, matches)?))).collect()
}

fn set_value(key: Key<'_>, matches: &ArgMatches) -> Option<Value> {
    let id = key.arg.get_id().as_str();
    if matches.value_source(id)? == ValueSource::DefaultValue {
        return None;
    }
    let given: Vec<_> = matches.get_raw(id)?.collect();
    if given == key.arg.get_default_values() {
        return None;
    }
    let value = |text: &std::ffi::OsStr| {
        let text = text.to_string_lossy();
        let number = key.is_number().then(|| text.parse().ok()).flatten();
        number.map_or_else(|| Value::String(text.clone().into_owned()), Value::Integer)
    };
    let is_switch = !key.arg.get_action().takes_values();
    match given[..] {
        [] => Some(Value::Boolean(true)),
        _ if is_switch => Some(Value::Boolean(true)),
        _ if key.is_list() => Some(Value::Array(given.into_iter().map(value).collect())),
        [one, ..] => Some(value(one)),
    }
}
