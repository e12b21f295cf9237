//! `peer.toml`: what a peer is, how it is built and how it is started. `peers/README.md` tells how to write one.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::in_file;
use crate::scenario::describe_toml_error;

/// What a `peer.toml` says.
///
/// In the words of `build` and `program`, `{out}` stands for the folder that everything built goes into, and `{peer}`
/// for the folder of the peer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Short name of letters, digits, `-`, `_` and `.`; names the output folder.
    pub name: String,
    /// One line on what it is, for people.
    pub title: String,
    /// The language it is written in.
    pub language: String,
    /// What it speaks; echo if nothing is said.
    #[serde(default)]
    pub protocol: Protocol,
    /// What an HTTP server has answers for, at least one; nothing for an echo server.
    #[serde(default)]
    pub serves: Vec<Serves>,
    /// Whether an HTTP server takes `--tls-cert FILE` and `--tls-key FILE`, and serves TLS then.
    #[serde(default)]
    pub tls: bool,
    /// What it is.
    pub kind: Kind,
    /// The library it stands for, as its lock file calls it.
    pub library: String,
    /// The library's version, as in its lock file; if none, `version_command` is asked.
    #[serde(default)]
    pub version: Option<String>,
    /// A command that prints the version of a library that comes with the machine.
    #[serde(default)]
    pub version_command: Vec<String>,
    /// Programs that must be on `PATH` to build and to start it.
    pub toolchain: Vec<String>,
    /// A command that prints the compiler's version.
    pub compiler: Vec<String>,
    /// The commands that build it, run one after the other in its folder.
    pub build: Vec<Vec<String>>,
    /// What else must be there to build it, as a clause: told when a build fails.
    #[serde(default)]
    pub hint: Option<String>,
    /// Folders with sources besides its own, relative to that.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The program to start and its first arguments; `--addr`, `--cores`, for one that serves files `--root`, and the
    /// contender's own are put behind them.
    pub program: Vec<String>,
    /// How long to load it before the first measurement, seconds.
    #[serde(default)]
    pub warm_up_s: u64,
    /// The contenders that it gives, at least one.
    #[serde(rename = "contender")]
    pub contenders: Vec<ManifestContender>,
}

/// One way to start a peer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestContender {
    /// Name in the lab, unique among all contenders.
    pub name: String,
    /// How it waits for sockets.
    pub driver: Driver,
    /// Arguments of its own.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Words for the report: what else it makes use of, or what one should know.
    #[serde(default)]
    pub features: Vec<String>,
    /// Most connections that it is made for; cells with more are not for it.
    #[serde(default)]
    pub connections_limit: Option<usize>,
}

/// How a peer waits for sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// io_uring.
    IoUring,
    /// epoll.
    Epoll,
}

/// What a peer speaks, and so what it can be compared with.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// It sends back the bytes that it receives.
    #[default]
    Echo,
    /// HTTP/1.1.
    Http,
}

/// What an HTTP server has answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Serves {
    /// The files of a folder, which it is told with `--root`.
    Files,
    /// The 13 bytes `Hello, SimulationState!` as `text/plain` at `/fixed`, from memory.
    Fixed,
}

/// What a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Runs tasks, coroutines or goroutines that wait for their sockets, or handlers on an executor of its own whose
    /// operations are futures, as Netty does.
    Runtime,
    /// Calls back when something happened. Asio is one, too: it has futures and coroutines, but as one way among others
    /// to be called back, and its peer does without them.
    Library,
    /// A bare loop around the readiness of sockets.
    Loop,
    /// Speaks HTTP and calls what is written for it, on a runtime of its own or another's.
    Framework,
    /// A finished program that is only told what to serve.
    Server,
}

impl Manifest {
    /// Reads and checks a `peer.toml`.
    ///
    /// # Errors
    /// If it cannot be read or is wrong: with its path and, as far as it is known, the line.
    pub fn read(file: &Path) -> io::Result<Manifest> {
        let text = fs::read_to_string(file).map_err(|error| in_file(file, &error.to_string()))?;
        Manifest::parse(&text).map_err(|(line, what)| match line {
            Some(line) => {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}:{line}: {what}", file.display()))
            }
            None => in_file(file, &what),
        })
    }

    /// Reads and checks the text of a `peer.toml`; what is wrong comes with the line, counted from 1, if that is known.
    fn parse(text: &str) -> Result<Manifest, (Option<usize>, String)> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| {
            (
                error.span().map(|span| line_of(text, &span)),
                describe_toml_error(error.message()).replace('\n', " "),
            )
        })?;
        let wrong = |key: &str, what: &str| Err((line_of_key(text, key), what.to_owned()));
        let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        if manifest.name.is_empty() || manifest.name.starts_with('.') || !manifest.name.chars().all(plain) {
            return wrong("name", "a peer's name has only letters, digits, '-', '_' and '.'");
        }
        if manifest.version.is_some() != manifest.version_command.is_empty() {
            return wrong("version", "write either version or version_command");
        }
        match (manifest.protocol, manifest.serves.is_empty()) {
            (Protocol::Http, true) => {
                return wrong("protocol", "write what it serves: \"files\", \"fixed\" or both");
            }
            (Protocol::Echo, false) => {
                return wrong("serves", "only a peer with protocol = \"http\" serves something");
            }
            _ => {}
        }
        if manifest.tls && manifest.protocol != Protocol::Http {
            return wrong("tls", "only a peer with protocol = \"http\" serves TLS");
        }
        if manifest.compiler.is_empty() {
            return wrong("compiler", "write the command that tells the compiler's version");
        }
        if manifest.program.is_empty() {
            return wrong("program", "write what to start");
        }
        if manifest.build.is_empty() || manifest.build.iter().any(Vec::is_empty) {
            return wrong("build", "write the commands that build it, each a list of words");
        }
        if manifest.contenders.is_empty() {
            return wrong("contender", "write at least one [[contender]]");
        }
        if manifest.contenders.iter().any(|contender| contender.name.trim().is_empty()) {
            return wrong("contender", "a contender needs a name");
        }
        Ok(manifest)
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Driver::IoUring => "io_uring",
            Driver::Epoll => "epoll",
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Protocol::Echo => "echo",
            Protocol::Http => "http",
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Kind::Runtime => "runtime",
            Kind::Library => "library",
            Kind::Loop => "loop",
            Kind::Framework => "framework",
            Kind::Server => "server",
        })
    }
}

/// The line, counted from 1, that a place in a text is on.
fn line_of(text: &str, place: &Range<usize>) -> usize {
    let before = text.as_bytes().get(..place.start).unwrap_or(text.as_bytes());
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The first line, counted from 1, that begins with a key or with the table of that name.
fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let begins = |line: &str| line.trim_start_matches(['[', ' ']).starts_with(key);
    text.lines().position(begins).map(|place| place + 1)
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
    fn a_manifest_is_read_with_its_defaults() {
        let manifest = Manifest::parse(TOKIO).unwrap();
        assert_eq!((manifest.kind, manifest.warm_up_s), (Kind::Runtime, 0));
        assert_eq!((manifest.protocol, manifest.serves.as_slice()), (Protocol::Echo, [].as_slice()));
        let contender = &manifest.contenders[0];
        assert_eq!((contender.driver, contender.connections_limit), (Driver::Epoll, None));
        assert!(contender.arguments.is_empty() && contender.features.is_empty());
    }

    #[test]
    fn an_http_server_says_what_it_serves() {
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
        let (line, what) = error(&TOKIO.replace("kind =", "tls = true\nkind ="));
        assert!(line == Some(4) && what.contains("serves TLS"), "{line:?} {what}");
        for (from, to, line, expected) in [
            ("serves = [\"files\", \"fixed\"]", "", 5, "what it serves"),
            ("protocol = \"http\"", "", 6, "http"),
            ("\"http\"", "\"gopher\"", 5, "gopher"),
            ("\"fixed\"", "\"mail\"", 6, "mail"),
            ("serves =", "tls = 1\nserves =", 6, "boolean"),
        ] {
            let (found, what) = error(&http.replacen(from, to, 1));
            assert_eq!(found, Some(line), "{to}: {what}");
            assert!(what.contains(expected), "{to}: {what}");
        }
    }

    #[test]
    fn mistakes_are_found_on_their_line() {
        for (from, to, line, expected) in [
            ("driver = \"epoll\"", "driver = \"kqueue\"", 14, "kqueue"),
            ("kind = \"runtime\"", "kind = 3", 4, "string"),
            ("title = \"tokio\"", "titel = \"tokio\"", 2, "titel"),
            ("title = \"tokio\"", "title = \"tokio", 2, "string"),
            ("name = \"tokio\"", "name = \"../tokio\"", 1, "letters"),
            ("version = \"1.0.0\"", "version = \"1\"\nversion_command = [\"x\"]", 6, "either"),
            ("build = [[\"cargo\", \"build\"]]", "build = [[]]", 9, "commands"),
            ("program = [\"{out}/tokio\"]", "program = []", 10, "start"),
        ] {
            let (found, what) = error(&TOKIO.replacen(from, to, 1));
            assert_eq!(found, Some(line), "{to}: {what}");
            assert!(what.contains(expected), "{to}: {what}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(error("name = \"tokio\"").1.contains("missing field"));
        assert!(error(&TOKIO.replace("version = \"1.0.0\"\n", "")).1.contains("version_command"));
    }
}
