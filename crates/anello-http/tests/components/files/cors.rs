//! Tests for cross-origin access.

use anello_http::files::cors::{CorsHeaders, CorsOrigins};
use anello_http::files::options::InvalidOption;

fn origins(origins: &[&str]) -> Result<CorsOrigins, InvalidOption> {
    CorsOrigins::new(&origins.iter().map(|&origin| origin.to_owned()).collect::<Vec<_>>())
}

#[test]
fn no_origins_yields_no_headers() {
    let none = origins(&[]).unwrap();
    assert_eq!(none.headers(Some(b"https://a.example")), CorsHeaders::default());
    assert_eq!(none, CorsOrigins::default());
}

#[test]
fn wildcard_yields_same_headers_for_all_origins() {
    let all = origins(&["https://a.example", "*"]).unwrap();
    for origin in [None, Some(&b"https://a.example"[..]), Some(b"null")] {
        assert_eq!(all.headers(origin), CorsHeaders { allow_origin: Some("*"), varies: false });
    }
}

#[test]
fn only_listed_origins_are_allowed_and_response_varies() {
    let some = origins(&["HTTPS://A.example", "http://[::1]:8080", "chrome-extension://abc"]).unwrap();
    for origin in ["https://a.example", "http://[::1]:8080", "chrome-extension://abc"] {
        let headers = some.headers(Some(origin.as_bytes()));
        assert_eq!(headers, CorsHeaders { allow_origin: Some(origin), varies: true });
    }
    for origin in ["https://a.example.net", "https://a.exampl", "http://a.example", "null", "", "*"] {
        let headers = some.headers(Some(origin.as_bytes()));
        assert_eq!(headers, CorsHeaders { allow_origin: None, varies: true }, "{origin}");
    }
    assert_eq!(some.headers(None), CorsHeaders { allow_origin: None, varies: true });
}

#[test]
fn default_port_is_removed() {
    for (listed, sent) in [
        ("https://a.example:443", "https://a.example"),
        ("HTTP://A.example:80", "http://a.example"),
        ("http://[::1]:80", "http://[::1]"),
        ("https://[::1:443]", "https://[::1:443]"),
        ("https://a.example:80", "https://a.example:80"),
        ("http://a.example:443", "http://a.example:443"),
        ("https://a.example:8443", "https://a.example:8443"),
        ("https://a.example:1443", "https://a.example:1443"),
        ("chrome-extension://abc:443", "chrome-extension://abc:443"),
    ] {
        let origins = origins(&[listed]).unwrap();
        assert_eq!(origins.headers(Some(sent.as_bytes())).allow_origin, Some(sent), "{listed}");
        assert_eq!(origins.headers(Some(listed.as_bytes())).allow_origin.is_some(), listed == sent);
    }
}

#[test]
fn malformed_origins_are_rejected() {
    let paths = ["https://a.example/", "https://a/b"];
    let others = ["", "null", "a.example", "https://", "https://:443", "https://a\r\nb", "://a", "https://ü"];
    for origin in paths.into_iter().chain(others) {
        let error = origins(&[origin]).expect_err(origin).to_string();
        assert!(error.contains("an origin is a scheme and a host"), "{error}");
    }
}
