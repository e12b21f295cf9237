//! `anello completions`: shell completion scripts, generated from the command-line definition.

mod flags;
mod run;

pub use self::flags::Arguments;
pub use self::run::run;
