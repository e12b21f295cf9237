//! How long others may keep a file: `Cache-Control`, by patterns for its path.

use globset::{GlobBuilder, GlobMatcher};

use super::options::InvalidOption;

/// Files that match a pattern have a value of `Cache-Control`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// The pattern. `*` stands for anything within a name, `?` for one character, `**` for any folders, `[ab]` for one
    /// of these, `{a,b}` for either. Without a slash it is for the name of the file, in whichever folder (`*.css`);
    /// with one, for its path from the served folder on (`assets/**`, `/robots.txt`).
    pub pattern: String,
    /// The value, as in `public, max-age=31536000, immutable`.
    pub value: String,
}

impl CacheRule {
    pub(super) fn errors(&self) -> impl Iterator<Item = InvalidOption> + use<> {
        compile(&self.pattern).err().into_iter().chain(checked(&self.value).err())
    }
}

/// The rules of a server, in order: the first that matches counts.
#[derive(Clone, Debug, Default)]
pub struct CacheRules {
    rules: Vec<(GlobMatcher, String)>,
}

impl CacheRules {
    /// Compiles them.
    ///
    /// # Errors
    /// When a pattern is malformed, or a value cannot stand in a field.
    pub fn new(rules: &[CacheRule]) -> Result<Self, InvalidOption> {
        let compiled = rules.iter().map(|rule| Ok((compile(&rule.pattern)?, checked(&rule.value)?)));
        Ok(Self { rules: compiled.collect::<Result<_, InvalidOption>>()? })
    }

    /// The value for a file of this path, relative to the served folder: of the file itself, not of its precompressed
    /// variant, and of an index file, not of its folder. None if no rule matches: the field is not sent.
    ///
    /// The time grows with the rules: look it up once for a file and keep it.
    ///
    /// ```
    /// use anello_http::files::cache_control::{CacheRule, CacheRules};
    /// let rule = |pattern: &str, value: &str| CacheRule { pattern: pattern.into(), value: value.into() };
    /// let rules = CacheRules::new(&[rule("assets/**", "max-age=31536000, immutable"), rule("*", "no-cache")])?;
    /// assert_eq!(rules.value_for("assets/js/app.1a2b.js"), Some("max-age=31536000, immutable"));
    /// assert_eq!(rules.value_for("docs/index.html"), Some("no-cache"));
    /// # Ok::<(), anello_http::files::options::InvalidOption>(())
    /// ```
    #[must_use]
    pub fn value_for(&self, path: &str) -> Option<&str> {
        self.rules.iter().find(|(pattern, _)| pattern.is_match(path)).map(|(_, value)| value.as_str())
    }
}

const OPTION: &str = "cache-control";

fn compile(pattern: &str) -> Result<GlobMatcher, InvalidOption> {
    let invalid = |why: String| InvalidOption::new(OPTION, pattern, why);
    if pattern.is_empty() {
        return Err(invalid("the pattern is empty; \"*\" is for every file".to_owned()));
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
            "the pattern is malformed: {}: write \\ before a character that is meant itself",
            error.kind()
        ))),
    }
}

fn checked(value: &str) -> Result<String, InvalidOption> {
    let is_field = |byte: u8| (b' '..=b'~').contains(&byte);
    if value.trim().is_empty() || !value.bytes().all(is_field) {
        let why = "the value must be printable ASCII, as in \"public, max-age=3600\"";
        return Err(InvalidOption::new(OPTION, value, why));
    }
    Ok(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: &[(&str, &str)]) -> Result<CacheRules, InvalidOption> {
        let owned =
            |&(pattern, value): &(&str, &str)| CacheRule { pattern: pattern.into(), value: value.into() };
        CacheRules::new(&rules.iter().map(owned).collect::<Vec<_>>())
    }

    fn matches(pattern: &str, path: &str) -> bool {
        rules(&[(pattern, "x")]).unwrap().value_for(path).is_some()
    }

    #[test]
    fn patterns_without_a_slash_are_for_names() {
        for (pattern, path) in [
            ("*", "a"),
            ("*", "a/b.c"),
            ("*.css", "style.css"),
            ("*.css", "a/b/style.css"),
            ("*.{js,css}", "a/app.js"),
            ("index.htm?", "a/index.html"),
            ("[ab].txt", "x/b.txt"),
            ("favicon.ico", "favicon.ico"),
            ("a\\*b", "x/a*b"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*.css", "a.css.map"), ("*.css", "a.css/b"), ("a", "a/b"), ("A.txt", "a.txt")]
        {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_with_a_slash_are_for_paths_from_the_top() {
        for (pattern, path) in [
            ("/robots.txt", "robots.txt"),
            ("assets/**", "assets/a"),
            ("assets/**", "assets/a/b/c.js"),
            ("/assets/*.js", "assets/a.js"),
            ("**/img/*", "img/a.png"),
            ("**/img/*", "a/b/img/a.png"),
            ("a/**/z", "a/z"),
            ("a/**/z", "a/b/c/z"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("/robots.txt", "a/robots.txt"),
            ("assets/**", "x/assets/a"),
            ("assets/*", "assets/a/b"),
            ("/assets/*.js", "assets/a/b.js"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_counts() {
        let rules = rules(&[("a.css", "first"), ("*.css", " second "), ("docs/**", "third")]).unwrap();
        assert_eq!(rules.value_for("docs/a.css"), Some("first"));
        assert_eq!(rules.value_for("docs/b.css"), Some("second"));
        assert_eq!(rules.value_for("docs/b.html"), Some("third"));
        assert_eq!(rules.value_for("b.html"), None);
        assert_eq!(CacheRules::default().value_for("a"), None);
    }

    #[test]
    fn what_is_malformed_is_refused_with_the_reason() {
        let error = |pattern, value| rules(&[(pattern, value)]).unwrap_err().to_string();
        assert!(error("[a", "x").starts_with("cache-control: \"[a\": the pattern is malformed: "));
        assert!(error("", "x").contains("\"*\" is for every file"));
        for value in ["", "  ", "no-cache\r\nSet-Cookie: a=b", "max-age=\u{661}", "a\0"] {
            assert!(error("*", value).contains("printable ASCII"), "{value:?}");
        }
    }
}
