//! Files that are compressed while they are sent.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use anello_http::files::FileOptions;
use anello_http::files::negotiate::Codings;

use crate::common::site::for_each_driver_with_site;
use crate::common::{Client, ClientResponse};

fn options() -> FileOptions {
    FileOptions::default().compress(Codings::ALL).precompressed(Codings::ALL)
}

async fn get(address: SocketAddr, line: &str, fields: &str) -> ClientResponse {
    let mut client = Client::connect(address).await;
    let (method, _) = line.split_once(' ').expect("method");
    client.send(format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
    client.response_to(method).await.expect("response")
}

fn decode(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let result = match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut decoded),
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut decoded),
        _ => zstd::stream::read::Decoder::new(bytes).expect("decoder").read_to_end(&mut decoded),
    };
    result.expect("complete compressed data");
    decoded
}

/// Writes compressible files of several sizes: in a cached response, in memory, and open.
fn write_files(root: &Path) -> Vec<(&'static str, String)> {
    let files = [("1k.txt", 1024), ("40k.txt", 40_000), ("200k.txt", 200_000)];
    files
        .map(|(name, bytes)| {
            let text: String =
                (0..).map(|index| format!("line {index} of {name}\n")).take(bytes / 10).collect();
            fs::write(root.join(name), &text[..bytes]).expect("write file");
            (name, text[..bytes].to_owned())
        })
        .into()
}

#[test]
fn files_are_compressed_with_the_best_accepted_coding() {
    for_each_driver_with_site(options(), async |address, root| {
        for (name, text) in write_files(root) {
            for (accepted, coding) in [
                ("gzip", "gzip"),
                ("br", "br"),
                ("zstd", "zstd"),
                ("gzip, deflate, br, zstd", "br"),
                ("gzip;q=1, br;q=0.5", "gzip"),
                ("identity;q=0, zstd", "zstd"),
            ] {
                let fields = format!("Accept-Encoding: {accepted}\r\n");
                let response = get(address, &format!("GET /{name}"), &fields).await;
                assert_eq!((response.status, response.field("Content-Encoding")), (200, Some(coding)));
                assert!(decode(coding, &response.body) == text.as_bytes(), "{name}: {coding}");
                assert!(response.body.len() < text.len() / 2, "{name}: {coding}: {}", response.body.len());
                assert!(response.field("ETag").is_some_and(|tag| tag.starts_with("W/\"")));
                assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
                assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
                assert_eq!((response.field("Accept-Ranges"), response.field("Content-Length")), (None, None));
                let head = get(address, &format!("HEAD /{name}"), &fields).await;
                let compared = ["ETag", "Vary", "Content-Encoding", "Content-Length", "Accept-Ranges"];
                assert_eq!(compared.map(|name| head.field(name)), compared.map(|name| response.field(name)));
            }
        }
    });
}

#[test]
fn file_itself_is_sent_if_it_is_preferred_or_not_compressible() {
    for_each_driver_with_site(options(), async |address, root| {
        write_files(root);
        for (path, fields, coding, varies) in [
            ("/40k.txt", "", None, true),
            ("/40k.txt", "Accept-Encoding: identity, gzip;q=0.5\r\n", None, true),
            ("/40k.txt", "Accept-Encoding: gzip;q=0\r\n", None, true),
            // Too small, or not compressible.
            ("/hello.txt", "Accept-Encoding: gzip\r\n", None, false),
            ("/large.bin", "Accept-Encoding: gzip\r\n", None, false),
            // A precompressed variant exists.
            ("/app.js", "Accept-Encoding: gzip, zstd\r\n", Some("gzip"), true),
        ] {
            let response = get(address, &format!("GET {path}"), fields).await;
            assert_eq!(
                (response.status, response.field("Content-Encoding")),
                (200, coding),
                "{path}: {fields}"
            );
            assert_eq!(response.field("Vary").is_some(), varies, "{path}: {fields}");
            assert!(response.field("Content-Length").is_some() && response.field("Accept-Ranges").is_some());
        }
        let refused = get(address, "GET /40k.txt", "Accept-Encoding: identity;q=0\r\n").await;
        assert_eq!((refused.status, refused.field("Vary")), (406, Some("Accept-Encoding")));
        let range = get(address, "GET /40k.txt", "Accept-Encoding: gzip\r\nRange: bytes=0-9\r\n").await;
        assert_eq!((range.status, range.text(), range.field("Content-Encoding")), (206, "line 0 of ", None));
    });
}

#[test]
fn compressed_response_can_be_revalidated() {
    for_each_driver_with_site(options(), async |address, root| {
        write_files(root);
        let gzip = "Accept-Encoding: gzip\r\n";
        let response = get(address, "GET /40k.txt", gzip).await;
        let tag = response.field("ETag").expect("tag");
        let unmodified = get(address, "GET /40k.txt", &format!("{gzip}If-None-Match: {tag}\r\n")).await;
        assert_eq!((unmodified.status, unmodified.field("ETag")), (304, Some(tag)));
        assert_eq!(unmodified.field("Vary"), Some("Accept-Encoding"));
        // The tag identifies neither another coding nor the file itself.
        for other in ["Accept-Encoding: br\r\n", ""] {
            let modified = get(address, "GET /40k.txt", &format!("{other}If-None-Match: {tag}\r\n")).await;
            assert_eq!(modified.status, 200, "{other}");
        }
        // A weak tag is not sufficient for a precondition or for the rest of an interrupted download.
        let failed = get(address, "GET /40k.txt", &format!("{gzip}If-Match: {tag}\r\n")).await;
        assert_eq!(failed.status, 412);
        let fields = format!("{gzip}Range: bytes=0-9\r\nIf-Range: {tag}\r\n");
        assert_eq!(get(address, "GET /40k.txt", &fields).await.status, 200);
    });
}
