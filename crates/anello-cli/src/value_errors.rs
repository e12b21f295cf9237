//! Errors of values on the command line and in files: what std says of a number or an address, as a remedy.

use std::error::Error;
use std::net::AddrParseError;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Returns what to write instead of a value that `error` refuses, if the parser of the value says nothing of it.
pub fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "the number is too large: write a smaller one",
            IntErrorKind::Zero => "zero is not possible here: write a whole number of at least 1",
            _ => "not a whole number: write digits alone, as in 1000",
        });
    }
    if error.is::<ParseFloatError>() {
        return Some("not a number: write digits, as in 0.5");
    }
    error
        .is::<AddrParseError>()
        .then_some("not an address: write IP:PORT, as in 127.0.0.1:9090 or [::1]:9090")
}

/// Puts the remedy into an error of the command line that has none.
pub fn with_remedy(error: clap::Error) -> clap::Error {
    let remedy = error.source().and_then(remedy).filter(|_| error.kind() == ErrorKind::ValueValidation);
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let Some(remedy) = remedy else { return error };
    let (value, flag) = (text(ContextKind::InvalidValue), text(ContextKind::InvalidArg));
    let message =
        format!("invalid value '{value}' for '{flag}': {remedy}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(ErrorKind::ValueValidation, message)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::CommandFactory;

    use super::*;
    use crate::Arguments;

    /// Every flag of every command whose value std parses.
    #[test]
    fn no_flag_gives_the_raw_message_of_a_parser() {
        fn try_each(command: &clap::Command, words: &[&str], tried: &mut usize) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                let Some(long) = arg.get_long() else { continue };
                for value in ["x", "-1", "99999999999999999999999", "0", ""] {
                    let flag = format!("--{long}={value}");
                    let line = words.iter().copied().chain([&*flag]).map(OsStr::new);
                    let Err(error) = Arguments::command().try_get_matches_from(line) else { continue };
                    let said = with_remedy(error).to_string();
                    for raw in [
                        "invalid digit",
                        "target type",
                        "zero for non-zero",
                        "empty string",
                        "address syntax",
                        "invalid float",
                    ] {
                        assert!(!said.contains(raw), "{words:?} {flag}: {said}");
                    }
                    *tried += 1;
                }
            }
            for command in command.get_subcommands() {
                try_each(command, &[words, &[command.get_name()]].concat(), tried);
            }
        }
        let mut tried = 0;
        try_each(&Arguments::command(), &["anello"], &mut tried);
        assert!(tried > 200, "{tried}");
    }
}
