//! `peer.toml`: describes a peer and how to build and start it. `peers/README.md` explains how to write one.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plan::contender::{Kind, Serves};
use crate::plan::toml_error::describe_toml_error;

/// Contents of a `peer.toml`.
///
/// In the words of `build` and `program`, `{out}` is replaced by the output directory, and `{peer}` by the
/// directory of the peer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name, consisting of letters, digits, `-`, `_` and `.`. Also the name of the output directory.
    pub name: String,
    /// One-line description.
    pub title: String,
    /// Programming language.
    pub language: String,
    /// Protocol that the server speaks. Default: echo.
    #[serde(default)]
    pub protocol: Protocol,
    /// Resources that an HTTP server can serve. Not empty for an HTTP server, empty for an echo server.
    #[serde(default)]
    pub serves: Vec<Serves>,
    /// `true` if an HTTP server supports TLS through `--tls-cert FILE` and `--tls-key FILE`.
    #[serde(default)]
    pub tls: bool,
    /// Kind of the peer.
    pub kind: Kind,
    /// Library that the peer demonstrates, as named in its lock file.
    pub library: String,
    /// Version of the library, as in the lock file. If `None`, `version_command` determines it.
    #[serde(default)]
    pub version: Option<String>,
    /// Command that prints the version of a library that is installed on the machine.
    #[serde(default)]
    pub version_command: Vec<String>,
    /// Programs that must be on `PATH` to build and start the peer.
    pub toolchain: Vec<String>,
    /// Command that prints the version of the compiler.
    pub compiler: Vec<String>,
    /// Build commands, run in order in the peer's directory.
    pub build: Vec<Vec<String>>,
    /// Other build requirements, as a clause. Shown when a build fails.
    #[serde(default)]
    pub hint: Option<String>,
    /// Directories with additional sources, relative to the peer's directory.
    #[serde(default)]
    pub sources: Vec<String>,
    /// Program and its first arguments. `--addr`, `--cores`, `--root` for a file server, and the contender's own
    /// arguments are appended.
    pub program: Vec<String>,
    /// Duration of the warm-up before the first measurement, in seconds.
    #[serde(default)]
    pub warm_up_s: u64,
    /// Contenders of the peer. Not empty.
    #[serde(rename = "contender")]
    pub contenders: Vec<ManifestContender>,
}

/// A variant of a peer with its own arguments.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestContender {
    /// Name in the lab, unique among all contenders.
    pub name: String,
    /// I/O driver.
    pub driver: Driver,
    /// Additional arguments.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Other facts for the report.
    #[serde(default)]
    pub features: Vec<String>,
    /// Maximum number of connections that it supports. It is skipped in cells with more connections.
    #[serde(default)]
    pub connections_limit: Option<usize>,
}

/// I/O driver of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Driver {
    /// io_uring.
    IoUring,
    /// epoll.
    Epoll,
}

/// Protocol of a peer. Only peers with the same protocol are compared.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Protocol {
    /// Echoes all received bytes.
    #[default]
    Echo,
    /// HTTP/1.1.
    Http,
}

impl Manifest {
    /// Reads and validates a `peer.toml`.
    ///
    /// # Errors
    /// Returns an error with the path and, if known, the line if the file cannot be read or is invalid.
    pub fn read(file: &Path) -> io::Result<Manifest> {
        let text = fs::read_to_string(file).map_err(|error| in_file(file, &error.to_string()))?;
        Manifest::parse(&text).map_err(|(line, problem)| match line {
            Some(line) => {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}:{line}: {problem}", file.display()))
            }
            None => in_file(file, &problem),
        })
    }

    /// Parses and validates the text of a `peer.toml`. Errors contain the 1-based line number, if known.
    fn parse(text: &str) -> Result<Manifest, (Option<usize>, String)> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| {
            (
                error.span().map(|span| line_of(text, &span)),
                describe_toml_error(error.message()).replace('\n', " "),
            )
        })?;
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let is_http = manifest.protocol == Protocol::Http;
        let problems = [
            (
                manifest.name.is_empty()
                    || manifest.name.starts_with('.')
                    || !manifest.name.chars().all(is_plain),
                "name",
                "name must consist of letters, digits, '-', '_' and '.'",
            ),
            (
                manifest.version.is_some() != manifest.version_command.is_empty(),
                "version",
                "either version or version_command is required",
            ),
            (
                is_http && manifest.serves.is_empty(),
                "protocol",
                "protocol = \"http\" requires serves (\"files\", \"fixed\" or both)",
            ),
            (!is_http && !manifest.serves.is_empty(), "serves", "serves requires protocol = \"http\""),
            (!is_http && manifest.tls, "tls", "tls requires protocol = \"http\""),
            (
                manifest.compiler.is_empty(),
                "compiler",
                "compiler must be the command that prints the compiler's version",
            ),
            (manifest.program.is_empty(), "program", "program must not be empty"),
            (
                manifest.build.is_empty() || manifest.build.iter().any(Vec::is_empty),
                "build",
                "build must contain commands, each a list of words",
            ),
            (manifest.contenders.is_empty(), "contender", "at least one [[contender]] is required"),
            (
                manifest.contenders.iter().any(|contender| contender.name.trim().is_empty()),
                "contender",
                "name of a contender must not be empty",
            ),
        ];
        if let Some((_, key, problem)) = problems.into_iter().find(|(is_invalid, ..)| *is_invalid) {
            return Err((line_of_key(text, key), problem.to_owned()));
        }
        Ok(manifest)
    }
}

/// Creates an error whose message starts with the path of a file.
pub(super) fn in_file(file: &Path, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", file.display()))
}

/// Returns the 1-based line number of a position in a text.
fn line_of(text: &str, span: &Range<usize>) -> usize {
    let before = text.as_bytes().get(..span.start).unwrap_or(text.as_bytes());
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Returns the 1-based number of the first line that starts with the key or table of this name.
fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let starts_with_key = |line: &str| line.trim_start_matches(['[', ' ']).starts_with(key);
    text.lines().position(starts_with_key).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn error(text: &str) -> (Option<usize>, String) {
        Manifest::parse(text).unwrap_err()
    }

    #[test]
    fn manifest_has_defaults() {
        let manifest = Manifest::parse(TOKIO).unwrap();
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
        let manifest = Manifest::parse(&http).unwrap();
        assert_eq!((manifest.protocol, manifest.kind), (Protocol::Http, Kind::Server));
        assert_eq!(manifest.serves, [Serves::Files, Serves::Fixed]);
        assert!(
            !manifest.tls && Manifest::parse(&http.replace("serves =", "tls = true\nserves =")).unwrap().tls
        );
        let (line, problem) = error(&TOKIO.replace("kind =", "tls = true\nkind ="));
        assert!(line == Some(4) && problem.contains("tls requires"), "{line:?} {problem}");
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
            ("version = \"1.0.0\"", "version = \"1\"\nversion_command = [\"x\"]", 6, "either"),
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
}
