//! The error for an invalid option.

/// Error for an invalid option. The message names the option, the value and the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {value:?}: {reason}")]
pub struct InvalidOption {
    option: &'static str,
    value: String,
    reason: String,
}

impl InvalidOption {
    pub(super) fn new(option: &'static str, value: &str, reason: impl Into<String>) -> Self {
        Self { option, value: value.to_owned(), reason: reason.into() }
    }

    /// Returns the name of the option as used in flags and configuration files.
    pub fn option(&self) -> &'static str {
        self.option
    }
}
