//! Tests for the `Cache-Control` rules.

use anello_http::files::cache_control::{CacheRule, CacheRules};
use anello_http::files::options::InvalidOption;

fn rules(rules: &[(&str, &str)]) -> Result<CacheRules, InvalidOption> {
    let owned = |&(pattern, value): &(&str, &str)| CacheRule { pattern: pattern.into(), value: value.into() };
    CacheRules::new(&rules.iter().map(owned).collect::<Vec<_>>())
}

fn matches(pattern: &str, path: &str) -> bool {
    rules(&[(pattern, "x")]).unwrap().value_for(path).is_some()
}

#[test]
fn pattern_without_slash_matches_file_name() {
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
    for (pattern, path) in [("*.css", "a.css.map"), ("*.css", "a.css/b"), ("a", "a/b"), ("A.txt", "a.txt")] {
        assert!(!matches(pattern, path), "{pattern} {path}");
    }
}

#[test]
fn pattern_with_slash_matches_path_from_root() {
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
fn first_matching_rule_applies() {
    let rules = rules(&[("a.css", "first"), ("*.css", " second "), ("docs/**", "third")]).unwrap();
    assert_eq!(rules.value_for("docs/a.css"), Some("first"));
    assert_eq!(rules.value_for("docs/b.css"), Some("second"));
    assert_eq!(rules.value_for("docs/b.html"), Some("third"));
    assert_eq!(rules.value_for("b.html"), None);
    assert_eq!(CacheRules::default().value_for("a"), None);
}

#[test]
fn malformed_rule_is_rejected_with_reason() {
    let error = |pattern, value| rules(&[(pattern, value)]).unwrap_err().to_string();
    assert!(error("[a", "x").starts_with("cache-control: \"[a\": invalid pattern: "));
    assert!(error("", "x").contains("\"*\" matches every file"));
    for value in ["", "  ", "no-cache\r\nSet-Cookie: a=b", "max-age=\u{661}", "a\0"] {
        assert!(error("*", value).contains("printable ASCII"), "{value:?}");
    }
}
