//! Error texts for invalid values on the command line and in files: they replace the parse errors of the standard
//! library.

use std::error::Error;
use std::net::AddrParseError;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Returns an error text with a remedy for a standard-library parse error; `None` for other errors, which have their
/// own texts.
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

/// Replaces a standard-library parse error in a command-line error with a text that names a remedy. Returns other
/// errors unchanged.
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
