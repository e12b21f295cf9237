//! File serving on every available driver: response contents and fields.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use anello_http::files::cache_control::CacheRule;
use anello_http::files::headers::HeaderRule;
use anello_http::files::negotiate::Codings;
use anello_http::files::options::FileOptions;
use anello_http::files::path::{Dotfiles, MAX_NAME_BYTES, resolve};
use anello_http::files::range::{COALESCE_GAP_BYTES, MAX_EXCESS_BYTES};

use crate::common::site::{for_each_driver_with_site, pattern};
use crate::common::{Client, ClientResponse};

#[test]
fn serves_files_with_type_and_validators() {
    for_each_driver_with_site(FileOptions::default(), async |address, _| {
        let mut client = Client::connect(address).await;
        for (path, media_type, body) in [
            ("/hello.txt", "text/plain; charset=utf-8", "Hello, world!"),
            ("/", "text/html; charset=utf-8", "<title>top</title>"),
            ("/docs/", "text/html; charset=utf-8", "<title>docs</title>"),
            ("/docs/a%20b%2520.txt", "text/plain; charset=utf-8", "blanks"),
            ("/app.js", "text/javascript; charset=utf-8", "let plain = 1;"),
        ] {
            // The first response is read from disk, the second one is served from the cache.
            for _ in 0..2 {
                let response = client.get(path).await;
                assert_eq!((response.status, response.text()), (200, body), "{path}");
                assert_eq!(response.field("Content-Type"), Some(media_type), "{path}");
                assert!(response.field("ETag").is_some() && response.field("Accept-Ranges") == Some("bytes"));
            }
            client.send(format!("HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            let response = client.response_to("HEAD").await.expect("response");
            assert_eq!(response.field("Content-Length"), Some(&*body.len().to_string()));
        }
        let large = client.get("/large.bin").await;
        assert!(large.body == pattern(3 << 20), "{}", large.body.len());
        let redirect = client.get("/docs?a=b").await;
        assert_eq!((redirect.status, redirect.field("Location")), (301, Some("/docs/?a=b")));
        for path in ["/nothing", "/hello.txt/", "/docs/empty/", "/.git/config", "/docs/nothing/at/all"] {
            assert_eq!(client.get(path).await.status, 404, "{path}");
        }
        client.send("POST /hello.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        let rejection = client.response().await.expect("response");
        assert_eq!((rejection.status, rejection.field("Allow")), (405, Some("GET, HEAD, OPTIONS")));
        client.send("BREW /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.response().await.expect("response").status, 501);
    });
}

#[test]
fn evaluates_conditions_and_ranges() {
    for_each_driver_with_site(FileOptions::default(), async |address, directory| {
        let file = fs::File::options().write(true).open(directory.join("hello.txt")).expect("open file");
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("set mtime");
        // The validator is strong only if the file has not changed for a while.
        thread::sleep(Duration::from_millis(1100));
        let mut client = Client::connect(address).await;
        let send_request = async |client: &mut Client, fields: &str, path: &str| {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            client.response().await.expect("response")
        };
        let plain = send_request(&mut client, "", "/hello.txt").await;
        let (tag, date) =
            (plain.field("ETag").expect("ETag"), plain.field("Last-Modified").expect("Last-Modified"));
        for (fields, status, body) in [
            (format!("If-None-Match: {tag}\r\n"), 304, ""),
            ("If-None-Match: \"other\"\r\n".to_owned(), 200, "Hello, world!"),
            (format!("If-Modified-Since: {date}\r\n"), 304, ""),
            ("If-Match: \"other\"\r\n".to_owned(), 412, "412"),
            ("Range: bytes=0-4\r\n".to_owned(), 206, "Hello"),
            (format!("Range: bytes=-6\r\nIf-Range: {tag}\r\n"), 206, "world!"),
            ("Range: bytes=0-4\r\nIf-Range: \"other\"\r\n".to_owned(), 200, "Hello, world!"),
            ("Range: bytes=100-\r\n".to_owned(), 416, "416"),
        ] {
            let response = send_request(&mut client, &fields, "/hello.txt").await;
            assert_eq!(response.status, status, "{fields}");
            assert!(response.text().starts_with(body), "{fields}: {response:?}");
            match status {
                206 => assert!(response.field("Content-Range").is_some_and(|range| range.ends_with("/13"))),
                416 => assert_eq!(response.field("Content-Range"), Some("bytes */13")),
                304 => {
                    assert_eq!((response.field("ETag"), response.field("Content-Type")), (Some(tag), None))
                }
                _ => {}
            }
        }
        let large = pattern(3 << 20);
        let part = send_request(&mut client, "Range: bytes=1000000-2999999\r\n", "/large.bin").await;
        assert!(part.status == 206 && part.body == large[1_000_000..3_000_000]);
        let multipart =
            send_request(&mut client, "Range: bytes=0-9,500000-500009,-5\r\n", "/large.bin").await;
        assert_eq!(multipart.status, 206);
        let content_type = multipart.field("Content-Type").expect("Content-Type");
        let boundary = content_type.split_once("boundary=").expect("boundary").1.as_bytes();
        let delimiters = multipart.body.windows(boundary.len()).filter(|window| *window == boundary).count();
        assert_eq!(delimiters, 4, "{content_type}");
        let contains = |bytes: &[u8]| multipart.body.windows(bytes.len()).any(|window| window == bytes);
        assert!(
            contains(&large[..10]) && contains(&large[500_000..500_010]) && contains(&large[(3 << 20) - 5..])
        );
        assert_eq!(
            client.get("/hello.txt").await.text(),
            "Hello, world!",
            "the previous response had the announced length"
        );
    });
}

#[test]
fn range_of_encoded_variant_has_content_encoding() {
    let options = FileOptions::default().precompressed(Codings::ALL);
    for_each_driver_with_site(options, async |address, directory| {
        let (plain, encoded) = (pattern(20_000), pattern(1000));
        fs::write(directory.join("style.css"), &plain).expect("write file");
        fs::write(directory.join("style.css.gz"), &encoded).expect("write file");
        let mut client = Client::connect(address).await;
        for (accepted, range, status, coding, body) in [
            ("gzip", "0-9", 206, Some("gzip"), &encoded[..10]),
            // Ranges that are close to each other are coalesced.
            ("gzip", "0-9,20-29", 206, Some("gzip"), &encoded[..30]),
            ("gzip", "0-9,500-509", 200, Some("gzip"), &encoded[..]),
            ("gzip", "0-9,5000-5009", 206, Some("gzip"), &encoded[..10]),
            ("identity", "0-9", 206, None, &plain[..10]),
        ] {
            let fields = format!("Accept-Encoding: {accepted}\r\nRange: bytes={range}\r\n");
            client.send(format!("GET /style.css HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            let response = client.response().await.expect("response");
            assert_eq!((response.status, response.field("Content-Encoding")), (status, coding), "{fields}");
            assert_eq!(response.field("Content-Type"), Some("text/css; charset=utf-8"), "{fields}");
            assert!(response.body == body, "{fields}");
        }
    });
}

#[test]
fn variants_are_negotiated() {
    let options = FileOptions::default().precompressed(Codings::ALL);
    for_each_driver_with_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        let mut tags = Vec::new();
        for (accepted, coding, body) in [
            ("br, gzip", Some("br"), "brotli"),
            ("gzip", Some("gzip"), "gzipped"),
            ("identity", None, "let plain = 1;"),
        ] {
            client
                .send(format!("GET /app.js HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {accepted}\r\n\r\n"))
                .await;
            let response = client.response().await.expect("response");
            assert_eq!((response.field("Content-Encoding"), response.text()), (coding, body), "{accepted}");
            assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
            assert_eq!(response.field("Content-Type"), Some("text/javascript; charset=utf-8"));
            tags.push(response.field("ETag").expect("ETag").to_owned());
        }
        tags.dedup();
        assert_eq!(tags.len(), 3, "{tags:?}");
        assert_eq!(client.get("/hello.txt").await.field("Vary"), None);
    });
}

#[test]
fn every_response_for_file_with_variants_has_vary() {
    let options = FileOptions::default().precompressed(Codings::ALL);
    for_each_driver_with_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        for (fields, status) in [
            ("", 200),
            ("Accept-Encoding: gzip\r\n", 200),
            ("Range: bytes=0-4\r\n", 206),
            ("If-None-Match: *\r\n", 304),
            ("If-Match: \"other\"\r\n", 412),
            ("Accept-Encoding: gzip\r\nIf-Match: \"other\"\r\n", 412),
            ("Range: bytes=100-\r\n", 416),
            ("Accept-Encoding: gzip\r\nRange: bytes=100-\r\n", 416),
        ] {
            for (path, varies) in [("/app.js", Some("Accept-Encoding")), ("/hello.txt", None)] {
                client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
                let response = client.response().await.expect("response");
                assert_eq!((response.status, response.field("Vary")), (status, varies), "{path}: {fields}");
                assert_eq!(
                    response.field("Content-Range").is_some(),
                    matches!(status, 206 | 416),
                    "{fields}"
                );
            }
        }
        client.send("GET /app.js HTTP/1.1\r\nHost: h\r\nAccept-Encoding: *;q=0\r\n\r\n").await;
        let response = client.response().await.expect("response");
        assert_eq!((response.status, response.field("Vary")), (406, Some("Accept-Encoding")));
    });
}

#[test]
fn serves_listings_fallback_pages_and_cors_fields() {
    let options = FileOptions::default()
        .listing(true)
        .index_files(vec![])
        .not_found_file(Some("404.html".into()))
        .spa_fallback_file(Some("docs/index.html".into()))
        .cors_origins(vec!["https://example.org".into()]);
    for_each_driver_with_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        let page = client.get("/").await;
        assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
        assert!(page.text().contains("hello.txt") && !page.text().contains(".git"), "{}", page.text());
        let object: serde_json::Value =
            serde_json::from_slice(&client.get("/docs/?format=json").await.body).expect("JSON");
        assert_eq!(object["path"], "/docs/");
        assert_eq!(client.get("/app/made/up").await.text(), "<title>docs</title>");
        let missing = client.get("/missing.js").await;
        assert_eq!((missing.status, missing.text()), (404, "<title>lost</title>"));
        client.send("GET /hello.txt HTTP/1.1\r\nHost: h\r\nOrigin: https://example.org\r\n\r\n").await;
        let response = client.response().await.expect("response");
        assert_eq!(response.field("Access-Control-Allow-Origin"), Some("https://example.org"));
    });
}

#[test]
fn listings_support_conditional_requests() {
    let options =
        FileOptions::default().listing(true).index_files(vec![]).revalidate_interval(Duration::ZERO);
    for_each_driver_with_site(options, async |address, directory| {
        let mut client = Client::connect(address).await;
        let send_request = async |client: &mut Client, fields: &str| {
            client.send(format!("GET /docs/ HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            client.response().await.expect("response")
        };
        let page = send_request(&mut client, "").await;
        let tag = page.field("ETag").expect("ETag").to_owned();
        let json = send_request(&mut client, "Accept: application/json\r\n").await;
        assert_ne!(json.field("ETag"), Some(&*tag));
        for (fields, status) in [
            (format!("If-None-Match: {tag}\r\n"), 304),
            ("If-None-Match: *\r\n".to_owned(), 304),
            ("If-None-Match: \"other\"\r\n".to_owned(), 200),
            (format!("If-None-Match: {tag}\r\nAccept: application/json\r\n"), 200),
            (format!("If-Match: {tag}\r\n"), 200),
            ("If-Match: *\r\n".to_owned(), 200),
            ("If-Match: \"other\"\r\n".to_owned(), 412),
        ] {
            let response = send_request(&mut client, &fields).await;
            assert_eq!((response.status, response.field("Vary")), (status, Some("Accept")), "{fields}");
            if status == 304 {
                assert_eq!((response.field("ETag"), response.body.len()), (Some(&*tag), 0), "{fields}");
            }
        }
        fs::write(directory.join("docs/new.txt"), "new").expect("write file");
        assert_eq!(send_request(&mut client, &format!("If-None-Match: {tag}\r\n")).await.status, 200);
        assert_eq!(send_request(&mut client, &format!("If-Match: {tag}\r\n")).await.status, 412);
    });
}

#[test]
fn spa_fallback_is_served_for_paths_without_file() {
    let long = "a".repeat(MAX_NAME_BYTES + 1);
    let long_path = "/a".repeat(2048);
    let routes = [
        "/app/AC%2FDC",
        "/app/AC%2fDC/",
        "/app/a%5Cb/",
        "/app/a%5Cb?q=.",
        "/app/a\\b",
        "/v1.2/a%2Fb",
        "/v1.2%2Fb/c",
        "/.well-known/a%2Fb",
        "http://host/app/a%2Fb",
        &format!("/app/{long}"),
        &format!("/app/{long}/b"),
        &long_path,
    ];
    let assets_and_attacks = [
        "/app/a%2Fb.js",
        "/app/a.b%2Fc",
        "/app/a%2Fb%2ejs",
        "/app/a%5Cb.js/",
        "/..%2fetc/passwd",
        "/..%2Fetc/passwd",
        "/app/%2e%2e%2f/etc",
        "/app/..%5Cetc",
        "/a%2f../etc",
        "/a%5c..%5cetc",
        "/a%2f./etc",
        "/a%2f%00/b",
        "/a%2f%ff/b",
        "/a%2f%zz/b",
        &format!("/app/{long}.js"),
    ];
    let hidden = [
        "/.hidden/page",
        "/.hidden/a%2Fb",
        "/app%5C.hidden/page",
        "/.git/a%2Fb",
        "/a%2F.git%2Fb/c",
        "/.git%5Ca/b",
        "/a%5C%2egit/b",
        &format!("/app/.{long}/b"),
    ];
    let [routes, assets_and_attacks, hidden] = [&routes[..], &assets_and_attacks, &hidden]
        .map(|paths| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
    for path in routes.iter().chain(&assets_and_attacks) {
        assert_eq!(resolve(path, Dotfiles::Hide).expect_err(path).status(), 404, "{path}");
    }
    for dotfiles in [Dotfiles::Hide, Dotfiles::Serve] {
        let paths = [&routes, &assets_and_attacks, &hidden].map(Vec::clone);
        let page = Some("docs/index.html".to_owned());
        let options = FileOptions::default().dotfiles(dotfiles).spa_fallback_file(page);
        for_each_driver_with_site(options, async move |address, _| {
            let mut client = Client::connect(address).await;
            let [routes, assets_and_attacks, hidden] = &paths;
            let statuses = [
                (routes, 200),
                (assets_and_attacks, 404),
                (hidden, if dotfiles == Dotfiles::Hide { 404 } else { 200 }),
            ];
            for (path, status) in
                statuses.iter().flat_map(|(paths, status)| paths.iter().map(move |path| (path, *status)))
            {
                let response = client.get(path).await;
                assert_eq!(response.status, status, "{path} with {dotfiles:?}");
                if status == 200 {
                    assert_eq!(response.text(), "<title>docs</title>", "{path}");
                    assert!(response.field("ETag").is_some(), "{path}");
                }
            }
            assert_eq!(client.get("/app/../etc").await.status, 400);
        });
    }
}

#[test]
fn cors_allows_range_requests_from_listed_origins() {
    const FIELDS: [&str; 5] = [
        "Access-Control-Allow-Origin",
        "Access-Control-Allow-Methods",
        "Access-Control-Allow-Headers",
        "Access-Control-Max-Age",
        "Access-Control-Expose-Headers",
    ];
    let cors_fields = |response: &ClientResponse| FIELDS.map(|name| response.field(name).map(str::to_owned));
    let exposed = "Accept-Ranges, Content-Encoding, Content-Range, ETag";
    let preflight_fields =
        "Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: range, if-range\r\n";
    let options = FileOptions::default().cors_origins(vec!["https://example.org:443".into()]);
    for_each_driver_with_site(options, async move |address, _| {
        let mut client = Client::connect(address).await;
        for (origin, is_listed) in [("https://example.org", true), ("https://example.net", false)] {
            let mut send_request = async |method: &str, fields: &str| {
                let fields = format!("Host: h\r\nOrigin: {origin}\r\n{fields}");
                client.send(format!("{method} /hello.txt HTTP/1.1\r\n{fields}\r\n")).await;
                client.response_to(method).await.expect("response")
            };
            let if_listed = |fields: [Option<&str>; 5]| {
                fields.map(|value| value.filter(|_| is_listed).map(str::to_owned))
            };
            let part = send_request("GET", "Range: bytes=0-4\r\n").await;
            assert_eq!((part.status, part.text(), part.field("Vary")), (206, "Hello", Some("Origin")));
            assert_eq!(cors_fields(&part), if_listed([Some(origin), None, None, None, Some(exposed)]));
            let preflight = send_request("OPTIONS", preflight_fields).await;
            assert_eq!((preflight.status, preflight.field("Vary")), (204, Some("Origin")));
            let methods = Some("GET, HEAD, OPTIONS");
            assert_eq!(preflight.field("Allow"), methods);
            let [allowed @ .., _] = cors_fields(&preflight);
            let [expected @ .., _] =
                if_listed([Some(origin), methods, Some("range, if-range"), Some("86400"), None]);
            assert_eq!(allowed, expected);
            // An OPTIONS request that is not a preflight request.
            let [_, plain @ .., _] = cors_fields(&send_request("OPTIONS", "").await);
            assert_eq!(plain, [const { None }; 3]);
        }
    });
}

#[test]
fn not_found_page_has_no_validators() {
    let options = FileOptions::default()
        .not_found_file(Some("app.js".into()))
        .precompressed(Codings::ALL)
        .cache_control(vec![CacheRule { pattern: "**".into(), value: "max-age=31536000, immutable".into() }]);
    for_each_driver_with_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        for (fields, coding, body) in [
            ("If-None-Match: *\r\nRange: bytes=0-1\r\n", None, "let plain = 1;"),
            ("Accept-Encoding: gzip\r\n", Some("gzip"), "gzipped"),
            ("Accept-Encoding: identity;q=0\r\n", None, "let plain = 1;"),
        ] {
            client.send(format!("GET /missing.css HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            let response = client.response().await.expect("response");
            assert_eq!((response.status, response.text()), (404, body), "{fields}");
            let names = ["ETag", "Last-Modified", "Accept-Ranges", "Cache-Control", "Content-Range"];
            assert_eq!(names.map(|name| response.field(name)), [None; 5], "{fields}");
            assert_eq!(response.field("Content-Encoding"), coding, "{fields}");
            assert_eq!(response.field("Content-Type"), Some("text/javascript; charset=utf-8"));
            assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
        }
    });
}

/// Requests as many small ranges as possible, so that the part headers would be larger than the file.
#[test]
fn fault_36_multipart_response_is_bounded_by_file_size() {
    let options = FileOptions::default()
        .media_types(BTreeMap::from([("long".to_owned(), format!("application/{}", "x".repeat(100)))]));
    for_each_driver_with_site(options, async |address, root| {
        let mut client = Client::connect(address).await;
        // Around the limit for copies and that of the cache.
        for size in [300, 1000, 4000, 10_000, 20_000, 70_000] {
            let path = format!("{size}.long");
            std::fs::write(root.join(&path), pattern(size)).expect("write file");
            for count in [2, 8, 32] {
                let step = (size / count).max(COALESCE_GAP_BYTES as usize + 2);
                let ranges: Vec<_> = (0..count).map(|index| format!("{0}-{0}", index * step)).collect();
                let range = ranges.join(",");
                client.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\nRange: bytes={range}\r\n\r\n")).await;
                let response = client.response().await.expect("response");
                let is_whole = response.status == 200 && response.body == pattern(size);
                assert!(is_whole || response.status == 206, "{size} {range}: {}", response.status);
                let max_bytes = size as u64 + MAX_EXCESS_BYTES;
                assert!(response.body.len() as u64 <= max_bytes, "{size} {range}: {}", response.body.len());
                let is_small = size <= 4000 && count == 32;
                assert!(is_whole || !is_small, "{size} {range}");
                assert!(!is_whole || size < 70_000, "{size} {range}");
            }
        }
    });
}

#[test]
fn fields_of_the_operator_are_added() {
    let rule = |pattern: Option<&str>, name: &str, value: &str| HeaderRule {
        pattern: pattern.map(str::to_owned),
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let options = FileOptions::default()
        .headers(vec![
            rule(None, "Strict-Transport-Security", "max-age=60"),
            rule(Some("*.html"), "Content-Security-Policy", "default-src 'self'"),
            rule(Some("docs/**"), "Cross-Origin-Opener-Policy", "same-origin"),
            rule(Some("docs/*"), "Cross-Origin-Embedder-Policy", "require-corp"),
        ])
        .not_found_file(Some("404.html".to_owned()));
    for_each_driver_with_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        let names = [
            "Strict-Transport-Security",
            "Content-Security-Policy",
            "Cross-Origin-Opener-Policy",
            "Cross-Origin-Embedder-Policy",
        ];
        for (path, status, is_sent) in [
            ("/hello.txt", 200, [true, false, false, false]),
            ("/", 200, [true, true, false, false]),
            ("/docs/", 200, [true, true, true, true]),
            ("/docs", 301, [true, false, false, false]),
            ("/large.bin", 200, [true, false, false, false]),
            ("/missing", 404, [true, false, false, false]),
        ] {
            let response = client.get(path).await;
            assert_eq!(response.status, status, "{path}");
            assert_eq!(names.map(|name| response.field(name).is_some()), is_sent, "{path}");
            if let Some(tag) = response.field("ETag") {
                let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nIf-None-Match: {tag}\r\n\r\n");
                client.send(request).await;
                let unmodified = client.response().await.expect("response");
                assert_eq!(unmodified.status, 304, "{path}");
                assert_eq!(names.map(|name| unmodified.field(name).is_some()), is_sent, "{path}");
            }
        }
    });
}
