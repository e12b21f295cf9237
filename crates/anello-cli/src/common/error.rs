//! I/O errors with context: `cannot X: cause (remedy)`.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;

/// Adds context to an error and keeps its kind.
pub trait Context<T>: Sized {
    /// Prepends `what` to the error message.
    fn context(self, what: impl Display) -> io::Result<T>;

    /// Appends a remedy to the error message, in parentheses.
    fn remedy(self, remedy: impl Display) -> io::Result<T>;

    fn context_and_remedy(self, what: impl Display, remedy: impl Display) -> io::Result<T> {
        self.remedy(remedy).context(what)
    }
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> io::Result<T> {
        self.map_err(|error| with_text(error.into(), |error| format!("{what}: {error}")))
    }

    fn remedy(self, remedy: impl Display) -> io::Result<T> {
        self.map_err(|error| with_text(error.into(), |error| format!("{error} ({remedy})")))
    }
}

fn with_text(error: io::Error, text: impl FnOnce(&io::Error) -> String) -> io::Error {
    let text = text(&error);
    if is_usage_error(&error) { usage_error(text) } else { io::Error::new(error.kind(), text) }
}

/// Cause of an error that the command line contains.
#[derive(Debug)]
struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Error for UsageError {}

/// Creates an error for an invalid command line, with which the command exits with 2.
pub fn usage_error(cause: impl Into<String>) -> io::Error {
    invalid_input(UsageError(cause.into()))
}

/// Returns whether [`usage_error`] has created this error. Added context does not change the result.
pub fn is_usage_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<UsageError>())
}

/// Creates an error for an invalid configuration or environment.
pub fn invalid_input(cause: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, cause)
}
