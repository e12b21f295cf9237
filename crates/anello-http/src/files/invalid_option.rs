//! The error for an invalid option.

/// Error for an invalid option. The message names the option, the value and the expected form.
///
/// ```
/// use anello_http::files::FileOptions;
/// use anello_http::files::options::InvalidOption;
///
/// let options = FileOptions::default().default_media_type("text".to_owned());
/// let error: InvalidOption = options.validate().unwrap_err();
/// assert!(error.to_string().starts_with("default-media-type: \"text\": "));
/// ```
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
    ///
    /// ```
    /// use anello_http::files::FileOptions;
    ///
    /// let options = FileOptions::default().index_files(vec!["a/b.html".to_owned()]);
    /// assert_eq!(options.validate().unwrap_err().option(), "index");
    /// ```
    pub fn option(&self) -> &'static str {
        self.option
    }
}
