//! Tests for option validation.

use std::collections::BTreeMap;
use std::time::Duration;

use anello_http::files::cache_control::CacheRule;
use anello_http::files::headers::HeaderRule;
use anello_http::files::options::{FileOptions, InvalidOption};

fn error(change: impl FnOnce(&mut FileOptions)) -> String {
    let mut options = FileOptions::default();
    change(&mut options);
    let error = options.validate().unwrap_err();
    assert!(error.to_string().starts_with(error.option()));
    error.to_string()
}

#[test]
fn defaults_are_valid() {
    FileOptions::default().validate().unwrap();
}

#[test]
fn valid_options_are_accepted() {
    let options = FileOptions::default()
        .index_files(vec!["index.html".into(), ".index".into(), "index page.htm".into()])
        .not_found_file(Some("errors/404.html".into()))
        .spa_fallback_file(Some(".app/ünïcode 100%.html".into()))
        .max_cache_bytes(0)
        .revalidate_interval(Duration::ZERO)
        .listing(true);
    options.validate().unwrap();
    options.index_files(Vec::new()).validate().unwrap();
}

#[test]
fn index_file_with_path_is_rejected() {
    for name in ["", ".", "..", "a/b", "/index.html", "a\0"] {
        assert!(
            error(|options| options.index_files.push(name.into())).contains("a name without a path"),
            "{name}"
        );
    }
}

#[test]
fn file_outside_document_root_is_rejected() {
    for path in ["", "/404.html", "../404.html", "a/../404.html", "a//b", "a/", "./a", "a\0", "a\\b"] {
        assert!(error(|options| options.not_found_file = Some(path.into())).starts_with("not-found-file"));
        assert!(error(|options| options.spa_fallback_file = Some(path.into())).starts_with("spa-fallback"));
    }
}

#[test]
fn every_other_option_is_validated() {
    let rule = CacheRule { pattern: "[".into(), value: "no-cache".into() };
    assert!(error(|options| options.cache_control.push(rule)).starts_with("cache-control"));
    for (pattern, name, value) in [
        (Some("["), "X-A", "b"),
        (Some(""), "X-A", "b"),
        (None, "X A", "b"),
        (None, "", "b"),
        (None, "Date", "b"),
        (None, "content-type", "b"),
        (None, "X-A", "b\r\nX-B: c"),
    ] {
        let rule = HeaderRule { pattern: pattern.map(Into::into), name: name.into(), value: value.into() };
        assert!(error(|options| options.headers.push(rule)).starts_with("header: "), "{name}");
    }
    assert!(error(|options| options.default_media_type.clear()).starts_with("default-media-type"));
    assert!(error(|options| options.cors_origins.push("a".into())).starts_with("cors-origin:"));
    assert!(error(|options| options.revalidate_interval *= 100_000).starts_with("revalidate-interval"));
    let media_type_error = error(|options| {
        options.media_types.insert("html".into(), "html".into());
    });
    assert!(media_type_error.starts_with("media-type:"));
    let cache_error = error(|options| options.max_cached_file_bytes = options.max_cache_bytes + 1);
    assert!(cache_error.contains("cache size of 67108864 bytes"));
    let listing_error = error(|options| {
        options.listing = true;
        options.max_listing_entries = 0;
    });
    assert!(listing_error.contains("leave `listing` unset"));
}

#[test]
fn all_errors_are_reported() {
    assert_eq!(FileOptions::default().validation_errors(), []);
    let rule = |pattern: &str| CacheRule { pattern: pattern.into(), value: "no-cache".into() };
    let options = FileOptions::default()
        .index_files(vec!["a/b".into(), "index.html".into(), "..".into()])
        .cache_control(vec![
            rule("["),
            rule("*.css"),
            CacheRule { pattern: String::new(), value: String::new() },
        ])
        .media_types(BTreeMap::from([("a".into(), "b".into()), ("html".into(), "html".into())]))
        .default_media_type(String::new())
        .cors_origins(vec!["https://example.org".into(), "a".into()])
        .spa_fallback_file(Some("/".into()))
        .revalidate_interval(Duration::from_secs(48 * 3600));
    let invalid_options: Vec<&str> = options.validation_errors().iter().map(InvalidOption::option).collect();
    assert_eq!(
        invalid_options,
        [
            "index",
            "index",
            "spa-fallback",
            "cache-control",
            "cache-control",
            "cache-control",
            "media-type",
            "media-type",
            "default-media-type",
            "cors-origin",
            "revalidate-interval"
        ]
    );
    assert_eq!(options.validate().unwrap_err(), options.validation_errors()[0]);
}
