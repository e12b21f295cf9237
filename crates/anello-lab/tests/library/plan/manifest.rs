//! Tests for `peer.toml`.

use anello_lab::peers::{Driver, Kind, Manifest, Protocol, Serves};

const TOKIO: &str = r#"name = "tokio"
title = "tokio"
language = "Rust"
kind = "runtime"
library = "tokio"
version = "1.0.0"
toolchain = ["cargo"]
compiler = ["rustc", "-V"]
build = [["cargo", "build"]]
program = ["{out}/tokio"]

[[contender]]
name = "tokio"
driver = "epoll"
"#;

fn parse(text: &str) -> std::io::Result<Manifest> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("peer.toml");
    std::fs::write(&file, text).unwrap();
    Manifest::read(&file)
}

/// Returns the line number, if any, and the description of an error.
fn error(text: &str) -> (Option<usize>, String) {
    let error = parse(text).unwrap_err().to_string();
    let (_, rest) = error.split_once("/peer.toml:").unwrap();
    let (line, problem) = rest.split_once(": ").unwrap_or(("", rest));
    (line.parse().ok(), problem.to_owned())
}

#[test]
fn manifest_has_defaults() {
    let manifest = parse(TOKIO).unwrap();
    assert_eq!((manifest.kind, manifest.warm_up_s), (Kind::Runtime, 0));
    assert_eq!((manifest.protocol, manifest.serves.as_slice()), (Protocol::Echo, [].as_slice()));
    let contender = &manifest.contenders[0];
    assert_eq!((contender.driver, contender.connections_limit), (Driver::Epoll, None));
    assert!(contender.arguments.is_empty() && contender.features.is_empty());
}

#[test]
fn http_server_requires_serves() {
    let http = TOKIO.replace(
        "kind = \"runtime\"",
        "kind = \"server\"\nprotocol = \"http\"\nserves = [\"files\", \"fixed\"]",
    );
    let manifest = parse(&http).unwrap();
    assert_eq!((manifest.protocol, manifest.kind), (Protocol::Http, Kind::Server));
    assert_eq!(manifest.serves, [Serves::Files, Serves::Fixed]);
    assert!(!manifest.tls && parse(&http.replace("serves =", "tls = true\nserves =")).unwrap().tls);
    let (line, problem) = error(&TOKIO.replace("kind =", "tls = true\nkind ="));
    assert!(line == Some(4) && problem.contains("`tls` requires"), "{line:?} {problem}");
    for (from, to, line, expected) in [
        ("serves = [\"files\", \"fixed\"]", "", 5, "requires serves"),
        ("protocol = \"http\"", "", 6, "http"),
        ("\"http\"", "\"gopher\"", 5, "gopher"),
        ("\"fixed\"", "\"mail\"", 6, "mail"),
        ("serves =", "tls = 1\nserves =", 6, "boolean"),
    ] {
        let (actual, problem) = error(&http.replacen(from, to, 1));
        assert_eq!(actual, Some(line), "{to}: {problem}");
        assert!(problem.contains(expected), "{to}: {problem}");
    }
}

#[test]
fn errors_have_line_numbers() {
    for (from, to, line, expected) in [
        ("driver = \"epoll\"", "driver = \"kqueue\"", 14, "kqueue"),
        ("kind = \"runtime\"", "kind = 3", 4, "string"),
        ("title = \"tokio\"", "titel = \"tokio\"", 2, "titel"),
        ("title = \"tokio\"", "title = \"tokio", 2, "string"),
        ("name = \"tokio\"", "name = \"../tokio\"", 1, "letters"),
        ("version = \"1.0.0\"", "version = \"1\"\nversion_command = [\"x\"]", 6, "exactly one"),
        ("build = [[\"cargo\", \"build\"]]", "build = [[]]", 9, "commands"),
        ("program = [\"{out}/tokio\"]", "program = []", 10, "program must not"),
    ] {
        let (actual, problem) = error(&TOKIO.replacen(from, to, 1));
        assert_eq!(actual, Some(line), "{to}: {problem}");
        assert!(problem.contains(expected), "{to}: {problem}");
    }
}

#[test]
fn errors_name_missing_fields() {
    assert!(error("name = \"tokio\"").1.contains("missing field"));
    assert!(error(&TOKIO.replace("version = \"1.0.0\"\n", "")).1.contains("version_command"));
}
