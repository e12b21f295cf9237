//! A key of the file: what the flag of that name takes, as its definition says.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::NonZero;

use clap::{Arg, ArgAction, Command};
use toml::de::{DeInteger, DeValue};

use super::{CHECK, CONFIG};

/// A flag, or the folder, as a key.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub arg: &'a Arg,
}

/// What the value of a flag is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    /// True or false: the flag is there or not.
    Switch,
    /// A whole number.
    Number,
    /// Text that the flag's own parser reads: addresses, durations, names of files.
    Text,
}

/// The name of a flag without its dashes, or of what stands without one.
pub fn name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_else(|| arg.get_id().as_str())
}

/// All keys, in the order of their definition.
pub fn keys(http: &Command) -> impl Iterator<Item = Key<'_>> {
    let asks = |arg: &Arg| {
        use ArgAction::{Help, HelpLong, HelpShort, Version};
        matches!(arg.get_action(), Help | HelpLong | HelpShort | Version)
    };
    let is_key = move |arg: &&Arg| !asks(arg) && ![CONFIG, CHECK].contains(&name(arg));
    http.get_arguments().filter(is_key).map(|arg| Key { arg })
}

impl<'a> Key<'a> {
    pub fn find(http: &'a Command, name: &str) -> Option<Self> {
        keys(http).find(|key| key.name() == name)
    }

    pub fn name(&self) -> &'a str {
        name(self.arg)
    }

    /// The arguments that a value stands for; none for `false`.
    ///
    /// # Errors
    /// All that is wrong with it, or with what is in it if it is a list.
    pub fn arguments(&self, value: &DeValue<'_>) -> Result<Vec<OsString>, Vec<String>> {
        match value {
            DeValue::Boolean(is_on) if self.accepts_no_value() => {
                Ok(is_on.then(|| format!("--{}", self.name()).into()).into_iter().collect())
            }
            DeValue::Array(items) if self.is_list() && !items.is_empty() => {
                let (mut arguments, mut problems) = (Vec::new(), Vec::new());
                for item in items {
                    match self.argument(item.get_ref()) {
                        Ok(argument) => arguments.push(argument),
                        Err(problem) => problems.push(problem),
                    }
                }
                if problems.is_empty() { Ok(arguments) } else { Err(problems) }
            }
            DeValue::Array(_) if self.is_list() => {
                Err(vec!["an empty list says nothing: leave the key out to have the default".to_owned()])
            }
            value => self.argument(value).map(|argument| vec![argument]).map_err(|problem| vec![problem]),
        }
    }

    fn argument(&self, value: &DeValue<'_>) -> Result<OsString, String> {
        let text = match (value, self.value_kind()) {
            (DeValue::String(text), ValueKind::Text) => text.to_string(),
            (DeValue::Integer(number), ValueKind::Number) => decimal(number)?,
            _ => return Err(self.wrong_type(value)),
        };
        Ok(match self.arg.get_long() {
            Some(long) => format!("--{long}={text}").into(),
            // A path of this name must not look like a flag.
            None if text.starts_with('-') => format!("./{text}").into(),
            None => text.into(),
        })
    }

    fn value_kind(&self) -> ValueKind {
        if matches!(self.arg.get_action(), ArgAction::SetTrue) {
            return ValueKind::Switch;
        }
        let parsed = self.arg.get_value_parser().type_id();
        let is_number = INTEGER_TYPES.iter().any(|number| parsed == number());
        if is_number { ValueKind::Number } else { ValueKind::Text }
    }

    pub fn is_number(&self) -> bool {
        self.value_kind() == ValueKind::Number
    }

    pub fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    /// Whether the flag may be given without a value.
    fn accepts_no_value(&self) -> bool {
        let takes_none = self.arg.get_num_args().is_some_and(|values| values.min_values() == 0);
        self.value_kind() == ValueKind::Switch || takes_none
    }

    fn wrong_type(&self, value: &DeValue<'_>) -> String {
        let actual = match value {
            DeValue::String(_) => "text",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a section",
        };
        let expected = match (self.value_kind(), self.is_list()) {
            (ValueKind::Switch, _) => "true or false",
            (ValueKind::Number, false) => "a whole number",
            (ValueKind::Number, true) => "whole numbers",
            (ValueKind::Text, false) => "text",
            (ValueKind::Text, true) => "a list of texts",
        };
        format!("it takes {expected}, not {actual}: write it as in {} = {}", self.name(), self.example())
    }

    /// The default, or else something of the right type.
    fn example(&self) -> String {
        let default = self.arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let word = self.arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        let one = match self.value_kind() {
            ValueKind::Switch => return "true".to_owned(),
            ValueKind::Number => default.unwrap_or_else(|| "1".to_owned()),
            ValueKind::Text => format!("{:?}", default.or(word).unwrap_or_else(|| self.name().to_owned())),
        };
        if self.is_list() { format!("[{one}]") } else { one }
    }
}

/// The types of whole numbers that flags may have.
const INTEGER_TYPES: [fn() -> TypeId; 11] = [
    TypeId::of::<u8>,
    TypeId::of::<u16>,
    TypeId::of::<u32>,
    TypeId::of::<u64>,
    TypeId::of::<usize>,
    TypeId::of::<i32>,
    TypeId::of::<i64>,
    TypeId::of::<NonZero<u16>>,
    TypeId::of::<NonZero<u32>>,
    TypeId::of::<NonZero<u64>>,
    TypeId::of::<NonZero<usize>>,
];

/// TOML has hexadecimal, octal and binary numbers, too.
fn decimal(number: &DeInteger<'_>) -> Result<String, String> {
    let parsed = i128::from_str_radix(number.as_str(), number.radix());
    parsed
        .map(|number| number.to_string())
        .map_err(|_| format!("{number}: the number is too large: write a smaller one"))
}
