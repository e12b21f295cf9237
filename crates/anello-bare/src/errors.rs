//! Errors with a cause and a remedy.

use std::io;

pub(crate) fn invalid_input(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.into())
}

pub(crate) fn unsupported(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

pub(crate) fn with_message(cause: &io::Error, message: String) -> io::Error {
    io::Error::new(cause.kind(), message)
}
