//! Names of values, as on the command line.

use std::fmt;

use clap::ValueEnum;
use clap::builder::PossibleValue;

/// Writes the name that the command line accepts for a value.
pub(crate) fn write_name(value: &impl ValueEnum, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    formatter.pad(value.to_possible_value().as_ref().map_or("", PossibleValue::get_name))
}
