//! Tests for media types.

use std::collections::BTreeMap;

use anello_http::files::media_type::MediaTypes;
use anello_http::files::options::InvalidOption;

const UNKNOWN: &str = "application/octet-stream";

fn types(overrides: &[(&str, &str)]) -> Result<MediaTypes, InvalidOption> {
    let owned = |&(extension, media_type): &(&str, &str)| (extension.to_owned(), media_type.to_owned());
    MediaTypes::new(&overrides.iter().map(owned).collect(), UNKNOWN)
}

#[test]
fn common_extensions_have_expected_types() {
    let types = types(&[]).unwrap();
    let cases = [
        ("index.html", "text/html; charset=utf-8"),
        ("a/b.c/INDEX.HTM", "text/html; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("app.MJS", "text/javascript; charset=utf-8"),
        ("app.min.js", "text/javascript; charset=utf-8"),
        ("app.js.map", "application/json; charset=utf-8"),
        ("data.json", "application/json; charset=utf-8"),
        ("site.webmanifest", "application/manifest+json; charset=utf-8"),
        ("readme.txt", "text/plain; charset=utf-8"),
        ("readme.md", "text/markdown; charset=utf-8"),
        ("subtitles.vtt", "text/vtt; charset=utf-8"),
        ("table.csv", "text/csv; charset=utf-8"),
        ("a.yaml", "application/yaml; charset=utf-8"),
        ("logo.svg", "image/svg+xml"),
        ("feed.atom", "application/atom+xml"),
        ("sitemap.xml", "text/xml"),
        ("app.wasm", "application/wasm"),
        ("a.png", "image/png"),
        ("a.jpg", "image/jpeg"),
        ("a.webp", "image/webp"),
        ("a.avif", "image/avif"),
        ("favicon.ico", "image/x-icon"),
        ("a.woff", "font/woff"),
        ("a.woff2", "font/woff2"),
        ("a.ttf", "font/ttf"),
        ("a.mp4", "video/mp4"),
        ("a.webm", "video/webm"),
        ("0001.ts", "video/mp2t"),
        ("a.pdf", "application/pdf"),
        ("a.tar.gz", "application/gzip"),
        ("a.zip", "application/zip"),
        ("a.tar.zst", "application/zstd"),
        ("log.ndjson", "application/x-ndjson"),
        ("part.STL", "model/stl"),
    ];
    for (path, media_type) in cases {
        assert_eq!(types.of(path), media_type, "{path}");
    }
}

#[test]
fn unknown_extension_has_default_type() {
    let types = types(&[]).unwrap();
    for path in
        ["", "LICENSE", "a.html/LICENSE", ".html", "a/.html", "a.", "a.html.", "a.no-such-extension", "a.ü"]
    {
        assert_eq!(types.of(path), UNKNOWN, "{path}");
    }
}

#[test]
fn configured_types_take_precedence_unchanged() {
    let overrides = [
        ("html", "text/html; charset=windows-1252"),
        (".MJS", "text/x"),
        ("gmi", "text/gemini"),
        ("js", "a/b"),
    ];
    let types = types(&overrides).unwrap();
    assert_eq!(types.of("a.HTML"), "text/html; charset=windows-1252");
    assert_eq!(types.of("a.mjs"), "text/x");
    assert_eq!(types.of("a.gmi"), "text/gemini");
    assert_eq!(types.of("a.js"), "a/b");
    assert_eq!(types.of("a.css"), "text/css; charset=utf-8");
}

#[test]
fn malformed_types_are_rejected() {
    let quoted = ["text/html; a=\"\u{e9}\"", "text/html; a=\"\r\""];
    for media_type in ["", "html", "text/html\r\nSet-Cookie: a=b", "text/"].into_iter().chain(quoted) {
        let error = types(&[("html", media_type)]).expect_err(media_type).to_string();
        assert!(error.starts_with("media-type: "), "{error}");
        assert!(MediaTypes::new(&BTreeMap::new(), media_type).is_err(), "{media_type}");
    }
    for extension in ["", ".", "tar.gz", "a/b"] {
        assert!(types(&[(extension, "text/plain")]).is_err(), "{extension}");
    }
}
