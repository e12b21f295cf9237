//! Errors with a cause and a remedy.

use std::io;

pub(crate) fn invalid_input(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.into())
}

pub(crate) fn unsupported(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

/// Returns an error with the kind of `cause` and a new message.
pub(crate) fn with_message(cause: &io::Error, message: String) -> io::Error {
    io::Error::new(cause.kind(), message)
}

/// Returns an error with the reason for the first rule that is violated.
pub(crate) fn check_rules(rules: impl IntoIterator<Item = (bool, impl Into<String>)>) -> io::Result<()> {
    match rules.into_iter().find(|(is_violated, _)| *is_violated) {
        Some((_, reason)) => Err(invalid_input(reason)),
        None => Ok(()),
    }
}
