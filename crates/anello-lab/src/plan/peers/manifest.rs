//! `peer.toml`: describes a peer and how to build and start it. `peers/README.md` explains how to write one.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plan::contender::{Kind, Serves};
use crate::plan::toml_error::describe_toml_error;

/// Contents of a `peer.toml`. In the commands `build` and `program`, `{out}` is replaced by the output directory, and
/// `{peer}` by the directory of the peer.
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
    /// Resources that an HTTP server can serve. Empty for an echo server.
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
    pub(crate) version_command: Vec<String>,
    /// Programs that must be on `PATH` to build and start the peer.
    pub(crate) toolchain: Vec<String>,
    pub(crate) compiler: Vec<String>,
    pub(crate) build: Vec<Vec<String>>,
    /// Other build requirements, worded as a clause of the message that is shown when a build fails.
    #[serde(default)]
    pub hint: Option<String>,
    /// Directories with additional sources, relative to the peer's directory.
    #[serde(default)]
    pub sources: Vec<String>,
    /// First words of the command that starts a contender. `--addr`, `--cores`, `--root` for a file server, and the
    /// contender's own arguments are appended.
    pub(crate) program: Vec<String>,
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
    /// Maximum number of connections that the contender supports. The contender is skipped in cells with more
    /// connections.
    #[serde(default)]
    pub connections_limit: Option<usize>,
}

/// I/O driver of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
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
#[non_exhaustive]
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
    /// Returns an error if the file cannot be read or is invalid. The error contains the path and, if known, the line.
    pub fn read(file: &Path) -> io::Result<Manifest> {
        let text = fs::read_to_string(file).map_err(|error| in_file(file, None, &error.to_string()))?;
        Manifest::parse(&text).map_err(|(line, problem)| in_file(file, line, &problem))
    }

    /// Parses and validates the text of a `peer.toml`. Errors contain the 1-based line number, if known.
    fn parse(text: &str) -> Result<Manifest, (Option<usize>, String)> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| {
            let line_of = |start: usize| text.bytes().take(start).filter(|&byte| byte == b'\n').count() + 1;
            let line = error.span().map(|span| line_of(span.start));
            (line, describe_toml_error(error.message()).replace('\n', " "))
        })?;
        match manifest.problem() {
            Some((key, problem)) => Err((line_of_key(text, key), problem.to_owned())),
            None => Ok(manifest),
        }
    }

    /// Returns the first invalid key and the description of the problem.
    fn problem(&self) -> Option<(&'static str, &'static str)> {
        let Manifest { name, version, version_command, serves, build, contenders, .. } = self;
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let is_plain_name = !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain);
        let has_commands = !build.is_empty() && !build.iter().any(Vec::is_empty);
        let is_unnamed = contenders.iter().any(|contender| contender.name.trim().is_empty());
        let is_http = self.protocol == Protocol::Http;
        let problems = [
            (!is_plain_name, "name", "name must consist of letters, digits, '-', '_' and '.'"),
            (
                version.is_some() != version_command.is_empty(),
                "version",
                "exactly one of version and version_command is required",
            ),
            (
                is_http && serves.is_empty(),
                "protocol",
                "protocol = \"http\" requires serves (\"files\", \"fixed\", \"routes\")",
            ),
            (!is_http && !serves.is_empty(), "serves", "the key `serves` requires protocol = \"http\""),
            (!is_http && self.tls, "tls", "the key `tls` requires protocol = \"http\""),
            (
                self.compiler.is_empty(),
                "compiler",
                "the key `compiler` must contain the command that prints the compiler's version",
            ),
            (self.program.is_empty(), "program", "program must not be empty"),
            (!has_commands, "build", "build must contain commands, each a list of words"),
            (contenders.is_empty(), "contender", "at least one [[contender]] is required"),
            (is_unnamed, "contender", "name of a contender must not be empty"),
        ];
        problems.into_iter().find(|(is_invalid, ..)| *is_invalid).map(|(_, key, problem)| (key, problem))
    }
}

/// Creates an error whose message starts with the path of a file and, if known, the line.
pub(super) fn in_file(file: &Path, line: Option<usize>, text: &str) -> io::Error {
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    io::Error::new(io::ErrorKind::InvalidData, format!("{}{line}: {text}", file.display()))
}

/// Returns the 1-based number of the first line that starts with the key or table of this name.
fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let starts_with_key = |line: &str| line.trim_start_matches(['[', ' ']).starts_with(key);
    text.lines().position(starts_with_key).map(|index| index + 1)
}
