//! Contenders: the servers that a run compares. A contender is a command that prints a ready line with
//! `addr=IP:PORT` to standard output and then serves clients until it is terminated.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Placeholder in the arguments of a contender for the directory to serve. Replaced when the contender is started.
pub const ROOT: &str = "{root}";

/// Placeholders in the arguments of a TLS server for the paths of its certificate and private key (PEM).
pub(crate) const CERTIFICATE: &str = "{certificate}";
pub(crate) const KEY: &str = "{key}";

/// Length of the file that disk workers use: larger than a disk's own cache, small enough for the page cache.
const DISK_FILE_BYTES: u64 = 1 << 30;

/// Maximum number of connections with `select(2)`, whose highest descriptor is 1023. Some descriptors have other uses.
const SELECT_CONNECTIONS: usize = 1000;

/// Role of a contender in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// The program under test.
    Anello,
    /// A baseline: the smallest possible loop that does the work.
    #[serde(alias = "bare")]
    Baseline,
    /// A server from another project.
    #[default]
    Peer,
}

/// Kind of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// Runs tasks, coroutines or goroutines that wait for sockets, or, like Netty, handlers that use futures.
    Runtime,
    /// Invokes callbacks for events. Asio also has futures and coroutines, but the Asio peer uses callbacks.
    Library,
    /// A minimal event loop that waits for socket readiness.
    Loop,
    /// HTTP framework that calls application handlers, on its own runtime or another one.
    Framework,
    /// Complete server program that only needs configuration.
    Server,
}

/// Resource that an HTTP server can serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Serves {
    /// The files of a directory, which is passed with `--root`.
    Files,
    /// The 13 bytes `Hello, World!` as `text/plain` at `/fixed`, from memory.
    Fixed,
    /// JSON at `/json`, an echo of POST requests at `/echo`, and a streamed body at `/stream`.
    Routes,
}

/// A server under comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contender {
    /// Name, unique within a run, such as "anello io_uring" or "bare epoll".
    pub name: String,
    /// Role in the run.
    pub role: Role,
    /// Program to start.
    pub program: PathBuf,
    /// Arguments of the program. Placeholders are replaced: `{cores}` by the list of server cores, such as `0,1`;
    /// `{root}` by the directory of the site to serve; `{certificate}` and `{key}` by the paths of the TLS files.
    pub arguments: Vec<String>,
    /// I/O interface, such as "io_uring", if it is known before the server prints its ready line.
    pub driver: Option<String>,
    /// Version of the server, or of the library that it demonstrates.
    pub version: Option<String>,
    /// Commit of the server's sources, or of the library that it demonstrates. See [`commit`](crate::plan::commit).
    pub commit: Option<String>,
    /// Checksum of the library that the server demonstrates, from the server's lock file.
    pub library_checksum: Option<String>,
    /// Commit of the server's own sources at build time, if the server demonstrates a library.
    pub server_commit: Option<String>,
    /// Language, toolchain and other details of the build.
    pub built_with: Option<String>,
    /// Other facts for readers of the report.
    pub features: Vec<String>,
    /// Maximum number of connections that the server supports. The server is skipped in cells with more connections.
    pub connections_limit: Option<usize>,
    /// Duration of the unmeasured warm-up after each start, for language runtimes with a JIT compiler.
    pub warm_up: Duration,
    /// If this contender is a twin, the name of the original. A twin is a second instance that measures the noise
    /// floor.
    pub twin_of: Option<String>,
    /// Kind of peer. `None` for other roles, or if the manifest does not state it.
    pub kind: Option<Kind>,
    /// Resources that an HTTP server can serve. Empty for other servers, or if unknown.
    pub serves: Vec<Serves>,
    /// `true` if the command is part of a preset or of a peer, and `false` if the user has written it. A predefined server
    /// that exits instead of starting does not end the run: the machine lacks something, such as io_uring in a container.
    pub is_predefined: bool,
    /// `true` if an HTTP server supports TLS through `--tls-cert FILE` and `--tls-key FILE`.
    pub takes_tls: bool,
    /// Name of the contender that differs from this one only in the property under test.
    pub base: Option<String>,
}

impl Contender {
    /// Creates a peer with this name and command. All other properties are unknown.
    pub fn new(name: &str, program: &Path, arguments: &[&str]) -> Contender {
        Contender {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            ..Contender::default()
        }
    }

    /// Sets `serves` to files if the command of this HTTP server contains [`ROOT`], otherwise to the fixed response.
    pub fn serving_by_command(self) -> Contender {
        Contender { serves: vec![if self.uses(ROOT) { Serves::Files } else { Serves::Fixed }], ..self }
    }

    /// Returns this contender with TLS arguments added if it supports TLS and its command has no certificate yet.
    pub fn under_tls(mut self) -> Contender {
        if self.takes_tls && !self.serves_tls() {
            let flags = ["--tls-cert", CERTIFICATE, "--tls-key", KEY];
            self.arguments.extend(flags.map(str::to_owned));
        }
        self
    }

    /// Returns whether the command contains the paths of a certificate and its key.
    pub fn serves_tls(&self) -> bool {
        self.uses(CERTIFICATE) && self.uses(KEY)
    }

    /// Returns a second instance of this contender, named "… again".
    pub fn twin(&self) -> Contender {
        let twin_of = Some(self.name.clone());
        Contender { name: format!("{} again", self.name), twin_of, base: None, ..self.clone() }
    }

    /// Returns anello on both drivers, the baseline servers, and a second instance of the epoll baseline. `executable`
    /// is the `anello` command.
    pub fn default_contenders(executable: &Path) -> Vec<Contender> {
        let echo = |name: &str, driver: &str, flag: &str| {
            let words = ["echo", "--driver", flag, "--cores", "{cores}"];
            Contender::built_in(executable, name, Role::Anello, driver, &words)
        };
        let bare = |driver: &str, model: &str| {
            let name = format!("bare {driver}");
            Contender::built_in(executable, &name, Role::Baseline, driver, &["bare", model])
        };
        let reference = bare("epoll", "epoll");
        vec![
            echo("anello io_uring", "io_uring", "uring"),
            echo("anello epoll", "epoll", "epoll"),
            bare("io_uring", "uring"),
            reference.clone(),
            reference.twin(),
            bare("threads", "threads"),
            bare("poll", "poll"),
            Contender { connections_limit: Some(SELECT_CONNECTIONS), ..bare("select", "select") },
        ]
    }

    /// Returns anello's HTTP server on both drivers. `executable` is the `anello` command.
    pub fn http_servers(executable: &Path) -> Vec<Contender> {
        let server = |driver: &str, flag: &str| {
            // The peers use the same timeout. Connections are idle during the slices of other contenders.
            let timeout = ["--keep-alive-timeout", "75s"];
            let words = [&["http", ROOT, "--driver", flag, "--cores", "{cores}"][..], &timeout].concat();
            Contender {
                serves: vec![Serves::Files],
                takes_tls: true,
                ..Contender::built_in(executable, &format!("anello {driver}"), Role::Anello, driver, &words)
            }
        };
        vec![server("io_uring", "uring"), server("epoll", "epoll")]
    }

    /// Returns a disk worker for each I/O engine. The workers share `file` and run one at a time.
    pub(crate) fn disk_workers(executable: &Path, file: &Path) -> Vec<Contender> {
        let (file, bytes) = (file.to_string_lossy(), DISK_FILE_BYTES.to_string());
        let engines = [
            ("pread", "pread"),
            ("thread pool", "threads"),
            ("POSIX AIO", "posix-aio"),
            ("Linux AIO", "linux-aio"),
            ("io_uring", "uring"),
        ];
        let worker = |(name, engine): (&str, &str)| {
            let words = ["bare", "disk", "--engine", engine, "--file", &file, "--create-bytes", &bytes];
            Contender::built_in(executable, name, Role::Baseline, engine, &words)
        };
        engines.into_iter().map(worker).collect()
    }

    fn built_in(executable: &Path, name: &str, role: Role, driver: &str, words: &[&str]) -> Contender {
        Contender {
            role,
            driver: Some(driver.to_owned()),
            is_predefined: true,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            built_with: Some("Rust".to_owned()),
            ..Contender::new(name, executable, &[words, &["--addr", "127.0.0.1:0"]].concat())
        }
    }

    /// Returns whether the server can use several cores, that is, whether its command has a placeholder for them.
    pub fn takes_cores(&self) -> bool {
        self.uses("{cores}")
    }

    /// Returns whether an argument contains a placeholder.
    pub(crate) fn uses(&self, placeholder: &str) -> bool {
        self.arguments.iter().any(|argument| argument.contains(placeholder))
    }

    /// Replaces a placeholder in the arguments.
    pub(crate) fn replacing(mut self, placeholder: &str, value: &str) -> Contender {
        self.arguments.iter_mut().for_each(|argument| *argument = argument.replace(placeholder, value));
        self
    }

    /// Returns the command line with absolute paths reduced to their file names, so that a report does not reveal the
    /// directory layout of the machine.
    pub fn command_line(&self) -> String {
        let program = self
            .program
            .file_name()
            .map_or_else(|| self.program.to_string_lossy(), |name| name.to_string_lossy());
        let arguments = self.arguments.iter().map(|word| match Path::new(word) {
            path if path.is_absolute() => path.file_name().and_then(OsStr::to_str).unwrap_or(word),
            _ => word,
        });
        let words = std::iter::once(program.as_ref()).chain(arguments);
        words.map(shell_quote).collect::<Vec<_>>().join(" ")
    }
}

/// Returns a word of a command line, quoted if a shell requires it.
#[must_use]
pub fn shell_quote(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+{}".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
