//! Error texts for invalid values on the command line and in files: they replace the parse errors of std.

use std::error::Error;
use std::net::AddrParseError;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Returns an error text with a remedy for a parse error of std; `None` for other errors, which have their own texts.
pub fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "number too large (use a smaller one)",
            IntErrorKind::Zero => "must not be zero (expected a whole number of at least 1)",
            _ => "not a whole number (expected digits only, such as 1000)",
        });
    }
    if error.is::<ParseFloatError>() {
        return Some("not a number (expected digits, such as 0.5)");
    }
    error
        .is::<AddrParseError>()
        .then_some("not an address (expected IP:PORT, such as 127.0.0.1:9090 or [::1]:9090)")
}

/// Replaces the parse error of std in a command-line error by a text with a remedy. Returns other errors unchanged.
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

    /// Tries invalid values for each flag of each command.
    #[test]
    fn flags_do_not_expose_std_parse_errors() {
        fn try_each(command: &clap::Command, words: &[&str], tried: &mut usize) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                let Some(long) = arg.get_long() else { continue };
                for value in ["x", "-1", "99999999999999999999999", "0", ""] {
                    let flag = format!("--{long}={value}");
                    let line = words.iter().copied().chain([&*flag]).map(OsStr::new);
                    let Err(error) = Arguments::command().try_get_matches_from(line) else { continue };
                    let message = with_remedy(error).to_string();
                    for raw in [
                        "invalid digit",
                        "target type",
                        "zero for non-zero",
                        "empty string",
                        "address syntax",
                        "invalid float",
                    ] {
                        assert!(!message.contains(raw), "{words:?} {flag}: {message}");
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
