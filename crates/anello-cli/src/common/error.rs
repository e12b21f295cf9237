//! I/O errors with context: `cannot X: cause (remedy)`.

use std::error::Error;
use std::fmt::Display;
use std::io;

/// Adds context to an error and keeps its kind.
pub trait Context<T> {
    /// Puts `what` before the text of the error.
    fn context(self, what: impl Display) -> io::Result<T>;

    /// Puts `what` before the text of the error, and the remedy after it.
    fn context_and_remedy(self, what: impl Display, remedy: impl Display) -> io::Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> io::Result<T> {
        self.map_err(|error| {
            let error = error.into();
            io::Error::new(error.kind(), format!("{what}: {error}"))
        })
    }

    fn context_and_remedy(self, what: impl Display, remedy: impl Display) -> io::Result<T> {
        self.map_err(|error| {
            let error = error.into();
            io::Error::new(error.kind(), format!("{what}: {error} ({remedy})"))
        })
    }
}

/// Creates an error for an invalid command line or configuration.
pub fn invalid_input(cause: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, cause)
}
