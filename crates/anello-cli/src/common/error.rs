//! I/O errors with context: `cannot X: cause (remedy)`.

use std::error::Error;
use std::fmt::Display;
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
    io::Error::new(error.kind(), text(&error))
}

/// Creates an error for an invalid command line or configuration.
pub fn invalid_input(cause: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, cause)
}
