//! `Cache-Control` values, selected by glob patterns for paths.

use globset::{GlobBuilder, GlobMatcher};

use super::invalid_option::InvalidOption;

/// A `Cache-Control` value for the files that match a pattern.
///
/// ```
/// use anello_http::files::FileOptions;
/// use anello_http::files::cache_control::CacheRule;
///
/// let rule = CacheRule { pattern: "assets/**".to_owned(), value: "max-age=31536000, immutable".to_owned() };
/// let options = FileOptions::default().cache_control(vec![rule]);
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// Glob pattern. `*` matches any characters within a name, `?` one character, `**` any number of directories,
    /// `[ab]` one of the listed characters, and `{a,b}` one of the alternatives. A pattern without a slash applies
    /// to the file name in any directory (`*.css`). A pattern with a slash applies to the path relative to the
    /// document root (`assets/**`, `/robots.txt`).
    pub pattern: String,
    /// Field value, for example `public, max-age=31536000, immutable`.
    pub value: String,
}

impl CacheRule {
    pub(super) fn errors(&self) -> impl Iterator<Item = InvalidOption> + use<> {
        compile(OPTION, &self.pattern).err().into_iter().chain(check_value(&self.value).err())
    }
}

/// Compiled cache rules, in order. The first matching rule applies.
///
/// ```
/// use anello_http::files::cache_control::{CacheRule, CacheRules};
///
/// let rule = CacheRule { pattern: "*.css".to_owned(), value: "max-age=3600".to_owned() };
/// let rules = CacheRules::new(&[rule])?;
/// assert_eq!(rules.value_for("styles/main.css"), Some("max-age=3600"));
/// assert_eq!(rules.value_for("index.html"), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CacheRules {
    rules: Vec<(GlobMatcher, String)>,
}

impl CacheRules {
    /// Compiles rules.
    ///
    /// ```
    /// use anello_http::files::cache_control::{CacheRule, CacheRules};
    ///
    /// let invalid = CacheRule { pattern: "[".to_owned(), value: "no-cache".to_owned() };
    /// assert_eq!(CacheRules::new(&[invalid]).unwrap_err().option(), "cache-control");
    /// ```
    ///
    /// # Errors
    /// Returns an error if a pattern is malformed, or if a value is empty or contains characters other than
    /// printable ASCII.
    pub fn new(rules: &[CacheRule]) -> Result<Self, InvalidOption> {
        let compiled =
            rules.iter().map(|rule| Ok((compile(OPTION, &rule.pattern)?, check_value(&rule.value)?)));
        Ok(Self { rules: compiled.collect::<Result<_, InvalidOption>>()? })
    }

    /// Returns the value for the file at `path`, which is relative to the document root. For a precompressed
    /// variant, pass the path of the uncompressed file; for a directory, the path of its index file. Returns `None`
    /// if no rule matches; the field is then not sent.
    ///
    /// The cost is linear in the number of rules, so look up the value once per file and store it.
    ///
    /// ```
    /// use anello_http::files::cache_control::{CacheRule, CacheRules};
    /// let rule = |pattern: &str, value: &str| CacheRule { pattern: pattern.into(), value: value.into() };
    /// let rules = CacheRules::new(&[rule("assets/**", "max-age=31536000, immutable"), rule("*", "no-cache")])?;
    /// assert_eq!(rules.value_for("assets/js/app.1a2b.js"), Some("max-age=31536000, immutable"));
    /// assert_eq!(rules.value_for("docs/index.html"), Some("no-cache"));
    /// # Ok::<(), anello_http::files::options::InvalidOption>(())
    /// ```
    pub fn value_for(&self, path: &str) -> Option<&str> {
        self.rules.iter().find(|(pattern, _)| pattern.is_match(path)).map(|(_, value)| value.as_str())
    }
}

const OPTION: &str = "cache-control";

/// Compiles the pattern of a rule in this option.
pub(super) fn compile(option: &'static str, pattern: &str) -> Result<GlobMatcher, InvalidOption> {
    let invalid = |reason: String| InvalidOption::new(option, pattern, reason);
    if pattern.is_empty() {
        return Err(invalid("the pattern is empty (\"*\" matches every file)".to_owned()));
    }
    let anchored = if pattern.contains('/') {
        pattern.strip_prefix('/').unwrap_or(pattern).to_owned()
    } else {
        format!("**/{pattern}")
    };
    let glob = GlobBuilder::new(&anchored).literal_separator(true).backslash_escape(true).build();
    match glob {
        Ok(glob) => Ok(glob.compile_matcher()),
        Err(error) => Err(invalid(format!(
            "invalid pattern: {} (escape literal special characters with \\)",
            error.kind()
        ))),
    }
}

fn check_value(value: &str) -> Result<String, InvalidOption> {
    let is_field = |byte: u8| (b' '..=b'~').contains(&byte);
    if value.trim().is_empty() || !value.bytes().all(is_field) {
        let reason = "the value must be printable ASCII and not empty, for example \"public, max-age=3600\"";
        return Err(InvalidOption::new(OPTION, value, reason));
    }
    Ok(value.trim().to_owned())
}
