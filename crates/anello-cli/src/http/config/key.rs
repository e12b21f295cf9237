//! Keys in the configuration file, derived from the flag definitions.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::NonZero;

use clap::{Arg, ArgAction, Command};
use toml::Spanned;
use toml::de::{DeInteger, DeValue};

/// The subcommand that supports a configuration file.
pub const HTTP: &str = "http";

/// Flags that are not keys.
pub const CONFIG: &str = "config";
pub const CHECK: &str = "check";

/// Positional argument with the document root.
pub const DIRECTORY: &str = "directory";

/// A flag, or the document root, as a key in the file.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub arg: &'a Arg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    /// Boolean: `true` sets the flag, `false` omits it.
    Switch,
    Number,
    /// String in the syntax of the flag, such as an address, a duration or a file name.
    Text,
}

/// Returns the long name of a flag without dashes, or the ID of a positional argument.
pub fn name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_else(|| arg.get_id().as_str())
}

pub fn keys(http: &Command) -> impl Iterator<Item = Key<'_>> {
    let prints_and_exits = |arg: &Arg| {
        use ArgAction::{Help, HelpLong, HelpShort, Version};
        matches!(arg.get_action(), Help | HelpLong | HelpShort | Version)
    };
    let is_key = move |arg: &&Arg| !prints_and_exits(arg) && ![CONFIG, CHECK].contains(&name(arg));
    http.get_arguments().filter(is_key).map(|arg| Key { arg })
}

impl<'a> Key<'a> {
    pub fn find(http: &'a Command, name: &str) -> Option<Self> {
        keys(http).find(|key| key.name() == name)
    }

    pub fn name(&self) -> &'a str {
        name(self.arg)
    }

    /// Converts a value to command-line arguments (none for `false`), or returns all problems with it or its items.
    pub fn arguments(&self, value: &DeValue<'_>) -> Result<Vec<OsString>, Vec<String>> {
        let accepts_none = self.arg.get_num_args().is_some_and(|values| values.min_values() == 0);
        let items = match value {
            DeValue::Boolean(is_on) if accepts_none || self.value_kind() == ValueKind::Switch => {
                return Ok(is_on.then(|| format!("--{}", self.name()).into()).into_iter().collect());
            }
            DeValue::Array(items) if self.is_list() && items.is_empty() => {
                return Err(vec!["empty list (remove the key to use the default)".to_owned()]);
            }
            DeValue::Array(items) if self.is_list() => items.iter().map(Spanned::get_ref).collect(),
            value => vec![value],
        };
        let (mut arguments, mut problems) = (Vec::new(), Vec::new());
        for item in items {
            match self.argument(item) {
                Ok(argument) => arguments.push(argument),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(arguments) } else { Err(problems) }
    }

    fn argument(&self, value: &DeValue<'_>) -> Result<OsString, String> {
        let text = match (value, self.value_kind()) {
            (DeValue::String(text), ValueKind::Text) => text.to_string(),
            (DeValue::Integer(number), ValueKind::Number) => decimal(number)?,
            _ => return Err(self.wrong_type(value)),
        };
        Ok(match self.arg.get_long() {
            Some(long) => format!("--{long}={text}").into(),
            // A path that starts with a dash would be parsed as a flag.
            None if text.starts_with('-') => format!("./{text}").into(),
            None => text.into(),
        })
    }

    fn value_kind(&self) -> ValueKind {
        if matches!(self.arg.get_action(), ArgAction::SetTrue) {
            return ValueKind::Switch;
        }
        let value_type = self.arg.get_value_parser().type_id();
        let is_number = INTEGER_TYPES.iter().any(|number| value_type == number());
        if is_number { ValueKind::Number } else { ValueKind::Text }
    }

    pub fn is_number(&self) -> bool {
        self.value_kind() == ValueKind::Number
    }

    pub fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    fn wrong_type(&self, value: &DeValue<'_>) -> String {
        let actual = match value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a section",
        };
        let expected = match (self.value_kind(), self.is_list()) {
            (ValueKind::Switch, _) => "a boolean",
            (ValueKind::Number, false) => "an integer",
            (ValueKind::Number, true) => "a list of integers",
            (ValueKind::Text, false) => "a string",
            (ValueKind::Text, true) => "a list of strings",
        };
        format!("expected {expected}, not {actual} (for example {} = {})", self.name(), self.example())
    }

    /// Returns `true` for a switch; otherwise the default value or, if there is none, a placeholder of the right type.
    fn example(&self) -> String {
        let default = self.arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let value_name = self.arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        let single = match self.value_kind() {
            ValueKind::Switch => return "true".to_owned(),
            ValueKind::Number => default.unwrap_or_else(|| "1".to_owned()),
            ValueKind::Text => {
                format!("{:?}", default.or(value_name).unwrap_or_else(|| self.name().to_owned()))
            }
        };
        if self.is_list() { format!("[{single}]") } else { single }
    }
}

const INTEGER_TYPES: [fn() -> TypeId; 5] = [
    TypeId::of::<u32>,
    TypeId::of::<u64>,
    TypeId::of::<usize>,
    TypeId::of::<NonZero<u64>>,
    TypeId::of::<NonZero<usize>>,
];

/// Converts a TOML integer, which can be hexadecimal, octal or binary, to decimal.
fn decimal(number: &DeInteger<'_>) -> Result<String, String> {
    let parsed = i128::from_str_radix(number.as_str(), number.radix());
    parsed.map(|number| number.to_string()).map_err(|_| format!("invalid number {number}: too large"))
}
