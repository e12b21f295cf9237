//! Who competes. A contender is a command that prints one ready line with `addr=IP:PORT` on its standard output and then
//! serves until it is told to stop.

mod process;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use process::ServerProcess;

use crate::peers::{Kind, ROOT, Serves};
use crate::tls::{CERTIFICATE, KEY};

/// Length of the file that disk workers use: more than a disk's own cache, and little enough for the page cache.
const DISK_FILE_BYTES: u64 = 1 << 30;

/// Most connections of a server on `select(2)`: it knows descriptors up to 1023, and some are taken.
const SELECT_CONNECTIONS: usize = 1000;

/// What a contender is in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The program under test.
    Anello,
    /// A yardstick: the smallest loop that does the work.
    #[serde(rename = "bare")]
    Baseline,
    /// Somebody else's.
    Peer,
}

/// One competitor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contender {
    /// Short name, unique in a run: "anello io_uring", "bare epoll".
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Program to start.
    pub program: PathBuf,
    /// Its arguments. In each, `{cores}` becomes the list of cores that it is to use, as in `0,1`, `{root}` the folder of the
    /// site that it is to serve, and `{certificate}` and `{key}` the files that it is to serve TLS with.
    pub arguments: Vec<String>,
    /// How it does I/O, as far as that is known before it is ready: "io_uring", "epoll".
    pub driver: Option<String>,
    /// Version of it, or of the library it stands for.
    pub version: Option<String>,
    /// The commit of its sources, or of the library it stands for; see [`commit`](crate::commit).
    pub commit: Option<String>,
    /// The checksum of the library it stands for, as its lock file has it.
    pub library_checksum: Option<String>,
    /// Of a server around a library: the commit of its own sources when it was built.
    pub server_commit: Option<String>,
    /// What it was built with: language, toolchain, and what else was said about the build.
    pub built_with: Option<String>,
    /// What else the reader of a report should know about it.
    pub features: Vec<String>,
    /// Most connections that it is made for; cells with more are not for it.
    pub connections_limit: Option<usize>,
    /// Load that is not counted, after each start: for virtual machines that compile while they run.
    pub warm_up: Duration,
    /// Set if this is the same server as the named one a second time, to learn what the machine can resolve.
    pub twin_of: Option<String>,
    /// What kind of peer it is; none for others, and for those that do not say.
    pub kind: Option<Kind>,
    /// What an HTTP server has answers for; empty for others, and where nobody says.
    #[serde(default)]
    pub serves: Vec<Serves>,
    /// Whether an HTTP server takes `--tls-cert FILE` and `--tls-key FILE`, and serves TLS then.
    #[serde(default)]
    pub takes_tls: bool,
    /// Name of another contender, which differs from this one in nothing but what this one is named for: the two are
    /// compared by themselves.
    #[serde(default)]
    pub base: Option<String>,
}

impl Contender {
    /// A peer of the given name and command, of which nothing else is known.
    #[must_use]
    pub fn new(name: &str, program: &Path, arguments: &[&str]) -> Contender {
        Contender {
            name: name.to_owned(),
            role: Role::Peer,
            program: program.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            driver: None,
            version: None,
            commit: None,
            library_checksum: None,
            server_commit: None,
            built_with: None,
            features: Vec::new(),
            connections_limit: None,
            warm_up: Duration::ZERO,
            twin_of: None,
            kind: None,
            serves: Vec::new(),
            takes_tls: false,
            base: None,
        }
    }

    /// The same contender, an HTTP server that serves what its command lets one expect: files if it is told where they are
    /// ([`ROOT`]), else the fixed answer alone.
    #[must_use]
    pub fn serving_by_command(self) -> Contender {
        let is_told = self.arguments.iter().any(|argument| argument.contains(ROOT));
        Contender { serves: vec![if is_told { Serves::Files } else { Serves::Fixed }], ..self }
    }

    /// The same contender, told to serve TLS if it can be; one whose command has a certificate already stays as it is.
    #[must_use]
    pub fn under_tls(mut self) -> Contender {
        if self.takes_tls && !self.serves_tls() {
            let flags = ["--tls-cert", CERTIFICATE, "--tls-key", KEY];
            self.arguments.extend(flags.map(str::to_owned));
        }
        self
    }

    /// Whether it is told where a certificate and its key are.
    #[must_use]
    pub fn serves_tls(&self) -> bool {
        let is_told = |what| self.arguments.iter().any(|argument| argument.contains(what));
        is_told(CERTIFICATE) && is_told(KEY)
    }

    /// The same command under the name "… again".
    #[must_use]
    pub fn twin(&self) -> Contender {
        let twin_of = Some(self.name.clone());
        Contender { name: format!("{} again", self.name), twin_of, base: None, ..self.clone() }
    }

    /// Anello on both drivers, the bare servers, and bare epoll a second time. `executable` is the `anello` command.
    #[must_use]
    pub fn default_contenders(executable: &Path) -> Vec<Contender> {
        let version = env!("CARGO_PKG_VERSION");
        let made = |name: &str, role: Role, driver: &str, arguments: &[&str]| Contender {
            role,
            driver: Some(driver.to_owned()),
            version: Some(version.to_owned()),
            built_with: Some("Rust".to_owned()),
            ..Contender::new(name, executable, &[arguments, &["--addr", "127.0.0.1:0"]].concat())
        };
        let echo = |name: &str, driver: &str, flag: &str| {
            made(name, Role::Anello, driver, &["echo", "--driver", flag, "--cores", "{cores}"])
        };
        let bare =
            |name: &str, driver: &str, model: &str| made(name, Role::Baseline, driver, &["bare", model]);
        let reference = bare("bare epoll", "epoll", "epoll");
        let select = bare("bare select", "select", "select");
        vec![
            echo("anello io_uring", "io_uring", "uring"),
            echo("anello epoll", "epoll", "epoll"),
            bare("bare io_uring", "io_uring", "uring"),
            reference.clone(),
            reference.twin(),
            bare("bare threads", "threads", "threads"),
            bare("bare poll", "poll", "poll"),
            Contender { connections_limit: Some(SELECT_CONNECTIONS), ..select },
        ]
    }

    /// Anello's HTTP server on both drivers. `executable` is the `anello` command.
    #[must_use]
    pub fn http_servers(executable: &Path) -> Vec<Contender> {
        let server = |name: &str, driver: &str, flag: &str| {
            // As long as the peers keep idle connections: those wait while others have their turns.
            let flags = [
                "--driver",
                flag,
                "--cores",
                "{cores}",
                "--keep-alive-timeout",
                "75s",
                "--addr",
                "127.0.0.1:0",
            ];
            Contender {
                role: Role::Anello,
                driver: Some(driver.to_owned()),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                built_with: Some("Rust".to_owned()),
                serves: vec![Serves::Files],
                takes_tls: true,
                ..Contender::new(name, executable, &[&["http", ROOT][..], &flags].concat())
            }
        };
        vec![server("anello io_uring", "io_uring", "uring"), server("anello epoll", "epoll", "epoll")]
    }

    /// The disk workers on each engine; they share `file`, one at a time. `executable` is the `anello` command.
    #[must_use]
    pub fn disk_workers(executable: &Path, file: &Path) -> Vec<Contender> {
        let engines = [
            ("pread", "pread"),
            ("thread pool", "threads"),
            ("POSIX AIO", "posix-aio"),
            ("Linux AIO", "linux-aio"),
            ("io_uring", "uring"),
        ];
        let file = file.to_string_lossy();
        let bytes = DISK_FILE_BYTES.to_string();
        let worker = |(name, engine): (&str, &str)| {
            let arguments = [
                "bare",
                "disk",
                "--engine",
                engine,
                "--file",
                &file,
                "--create-bytes",
                &bytes,
                "--addr",
                "127.0.0.1:0",
            ];
            Contender {
                role: Role::Baseline,
                driver: Some(engine.to_owned()),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                built_with: Some("Rust".to_owned()),
                ..Contender::new(name, executable, &arguments)
            }
        };
        engines.into_iter().map(worker).collect()
    }

    /// Whether it can be told which cores to use, and so use several.
    #[must_use]
    pub fn takes_cores(&self) -> bool {
        self.arguments.iter().any(|argument| argument.contains("{cores}"))
    }

    /// The command as one would type it beside its files: absolute paths by their last name, so that a report does not
    /// tell where somebody keeps programs.
    #[must_use]
    pub fn command_line(&self) -> String {
        let program = self
            .program
            .file_name()
            .map_or_else(|| self.program.to_string_lossy(), |name| name.to_string_lossy());
        let arguments = self.arguments.iter().map(|word| without_directory(word));
        let words = std::iter::once(program.as_ref()).chain(arguments);
        words.map(quoted).collect::<Vec<_>>().join(" ")
    }
}

/// The last name of an absolute path; any other word as it is.
fn without_directory(word: &str) -> &str {
    let path = Path::new(word);
    let name = path.file_name().and_then(OsStr::to_str);
    name.filter(|_| path.is_absolute()).unwrap_or(word)
}

fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+{}".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_one_would_type_them() {
        assert_eq!(
            Contender::new("a", Path::new("/usr/bin/x"), &["--a", "b c", "it's"]).command_line(),
            r"x --a 'b c' 'it'\''s'"
        );
    }

    #[test]
    fn the_field_has_one_reference_and_one_twin_of_it() {
        let all = Contender::default_contenders(Path::new("anello"));
        assert_eq!(
            all.iter().filter(|contender| contender.twin_of.as_deref() == Some("bare epoll")).count(),
            1
        );
        assert_eq!(all[0].command_line(), "anello echo --driver uring --cores {cores} --addr 127.0.0.1:0");
        assert_eq!(all.len(), 8);
        let http = Contender::http_servers(Path::new("anello"));
        let command =
            "anello http {root} --driver epoll --cores {cores} --keep-alive-timeout 75s --addr 127.0.0.1:0";
        assert_eq!((http[1].command_line().as_str(), http.len()), (command, 2));
        let secure = http[1].clone().under_tls();
        let flags = "--tls-cert {certificate} --tls-key {key}";
        assert_eq!(secure.command_line(), format!("{command} {flags}"));
        assert!(secure.serves_tls() && !http[1].serves_tls());
        assert_eq!(secure.clone().under_tls(), secure, "it is told once");
        let unable = Contender { takes_tls: false, ..http[1].clone() };
        assert_eq!(unable.clone().under_tls(), unable);
    }

    #[test]
    fn what_a_command_serves_follows_from_where_it_is_told_to_look() {
        let serves =
            |argument: &str| Contender::new("a", Path::new("x"), &[argument]).serving_by_command().serves;
        assert_eq!(serves("--folder={root}"), [Serves::Files]);
        assert_eq!(serves("--cores={cores}"), [Serves::Fixed]);
    }
}
