//! The peers: echo and HTTP servers on other systems, each a small project of its own, that anello is measured against.
//!
//! A folder of peers has one folder for each, and in it a `peer.toml` ([`Manifest`]) that says what it is, how it is
//! built and how it is started. What is built goes elsewhere, into one output folder for each:
//!
//! ```text
//! peers/                     sources, read only          OUT/               what is built from them
//!   flags/  shared by some                                 tokio/
//!   tokio-echo/                                              build.log   what the build said
//!     peer.toml  ── Peers::open ── Peer::build ───────►      built.json  from and with what, when
//!     Cargo.toml, Cargo.lock, src/                           target/…    the program
//! ```
//!
//! Invariants:
//! - a peer counts as built only if its program is there, `built.json` says so and no source is newer than that file,
//!   which is removed before a build begins and written when all of it has succeeded;
//! - one peer that cannot be built, for whatever reason, costs no other;
//! - nothing here prints.

mod build;
mod manifest;
mod origin;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use build::{Built, Outcome, State, Toolchains};
pub use manifest::{Driver, Kind, Manifest, ManifestContender, Protocol, Serves};
pub use origin::Origin;

use crate::contender::Contender;

/// In the arguments of a contender that serves files: the folder to serve, to be filled in by whoever starts it.
pub const ROOT: &str = "{root}";

/// All peers of a folder, in the order of their names.
#[derive(Debug, Clone)]
pub struct Peers {
    directory: PathBuf,
    peers: Vec<Peer>,
}

/// One peer: where its sources are, what its manifest says, where it is built.
#[derive(Debug, Clone)]
pub struct Peer {
    /// What its `peer.toml` says.
    pub manifest: Manifest,
    /// The folder that it and its sources are in, absolute.
    pub folder: PathBuf,
    /// The folder that everything built from it goes into, absolute; need not exist.
    pub out: PathBuf,
}

/// A peer that is built, as a contender, and what a report should say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerContender {
    /// How to start it.
    pub contender: Contender,
    /// Its library's version, as in its lock file or as the library said when it was built.
    pub version: String,
    /// Where its library and its server come from.
    pub origin: Origin,
    /// The language it is written in, and what it was built with: "Rust (rustc 1.95.0)".
    pub built_with: String,
    /// How it waits for sockets.
    pub driver: Driver,
    /// What it is.
    pub kind: Kind,
    /// What an HTTP server has answers for; nothing for an echo server.
    pub serves: Vec<Serves>,
    /// Whether it takes `--tls-cert FILE` and `--tls-key FILE`, and serves TLS then.
    pub takes_tls: bool,
    /// Words for the report.
    pub features: Vec<String>,
    /// Most connections that it is made for.
    pub connections_limit: Option<usize>,
    /// How long to load it before the first measurement, for virtual machines that compile as they run; zero for most.
    pub warm_up: Duration,
}

impl Peers {
    /// The peers in `directory`, built below the folder `out`.
    ///
    /// # Errors
    /// If there is no such folder or no peer in it, and for a manifest that is wrong: with its file and line.
    pub fn open(directory: &Path, out: &Path) -> io::Result<Peers> {
        let (directory, out) = (absolute(directory)?, absolute(out)?);
        let mut peers = Vec::new();
        let entries = fs::read_dir(&directory)
            .map_err(|error| in_file(&directory, &format!("cannot look for peers here: {error}")))?;
        for entry in entries {
            let folder = entry?.path();
            let file = folder.join("peer.toml");
            if file.is_file() {
                let manifest = Manifest::read(&file)?;
                let out = out.join(&manifest.name);
                peers.push(Peer { manifest, folder, out });
            }
        }
        if peers.is_empty() {
            return Err(in_file(&directory, "no folder in here has a peer.toml: is it the folder of peers?"));
        }
        peers.sort_by(|a, b| a.manifest.name.cmp(&b.manifest.name));
        let peers = Peers { directory, peers };
        peers.check_names()?;
        Ok(peers)
    }

    /// The peers in `directory` or, if none is given, in `peers` in the current directory or else beside the workspace
    /// that this program was built from; built in the program's own target directory or else (a program that was
    /// installed) in the one beside the peers.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and if the program's own file is not known.
    pub fn find(directory: Option<&Path>) -> io::Result<Peers> {
        let beside_workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers");
        let directory = match directory {
            Some(given) => given.to_owned(),
            None if has_peers(Path::new("peers")) => PathBuf::from("peers"),
            None => beside_workspace,
        };
        // Cargo marks the target directories it makes.
        let executable = std::env::current_exe()?;
        let target = executable.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
        let out = target.map_or_else(|| directory.join("../target/peers"), |target| target.join("peers"));
        Peers::open(&directory, &out)
    }

    /// All of them, in the order of their names.
    #[must_use]
    pub fn all(&self) -> &[Peer] {
        &self.peers
    }

    /// Those of a protocol, in the order of their names.
    pub fn speaking(&self, protocol: Protocol) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(move |peer| peer.manifest.protocol == protocol)
    }

    /// Those of the given names, in the order of all; a peer answers to its name, to that of its folder and to those
    /// of its contenders.
    ///
    /// # Errors
    /// A sentence about a name that none answers to.
    pub fn named(&self, names: &[String]) -> Result<Vec<&Peer>, String> {
        for name in names {
            if !self.peers.iter().any(|peer| peer.answers_to(name)) {
                let known: Vec<&str> = self.peers.iter().map(|peer| peer.manifest.name.as_str()).collect();
                let directory = self.directory.display();
                return Err(format!(
                    "no peer in {directory} is called {name:?}; there are {}",
                    known.join(", ")
                ));
            }
        }
        Ok(self.peers.iter().filter(|peer| names.iter().any(|name| peer.answers_to(name))).collect())
    }

    /// The contenders of all peers of a protocol that are built, to run on `cores`: a list such as `0,1`, handed on as it
    /// is, so that a placeholder of the caller's own may stand there, too. Those that serve files have [`ROOT`] among
    /// their arguments.
    #[must_use]
    pub fn contenders(&self, protocol: Protocol, cores: &str) -> Vec<PeerContender> {
        let built = self.speaking(protocol).filter_map(|peer| match peer.state() {
            State::Built(built) => Some((peer, built)),
            State::Outdated(_) | State::NotBuilt => None,
        });
        built.flat_map(|(peer, built)| peer.contenders(&built, cores)).collect()
    }

    /// Names are what results are filed under, so no two may be alike.
    fn check_names(&self) -> io::Result<()> {
        let (mut peers, mut contenders) = (HashSet::new(), HashSet::new());
        for peer in &self.peers {
            let file = peer.folder.join("peer.toml");
            if !peers.insert(&peer.manifest.name) {
                return Err(in_file(&file, &format!("another peer is called {:?}, too", peer.manifest.name)));
            }
            for contender in &peer.manifest.contenders {
                if !contenders.insert(&contender.name) {
                    return Err(in_file(
                        &file,
                        &format!("another contender is called {:?}, too", contender.name),
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Peer {
    fn answers_to(&self, name: &str) -> bool {
        self.manifest.name == name
            || self.folder.file_name() == Some(OsStr::new(name))
            || self.manifest.contenders.iter().any(|contender| contender.name == name)
    }

    /// A word of the manifest with `{out}` and `{peer}` filled in.
    fn expand(&self, word: &str) -> String {
        word.replace("{out}", &self.out.to_string_lossy()).replace("{peer}", &self.folder.to_string_lossy())
    }

    /// Its contenders, as it was built.
    fn contenders(&self, built: &Built, cores: &str) -> Vec<PeerContender> {
        let manifest = &self.manifest;
        let program: Vec<String> = manifest.program.iter().map(|word| self.expand(word)).collect();
        let unrecorded = built.origin == Origin::default();
        let origin = if unrecorded { self.pinned_origin(&built.version) } else { built.origin.clone() };
        let contender = |contender: &ManifestContender| {
            let mut arguments: Vec<&str> = program[1..].iter().map(String::as_str).collect();
            arguments.extend(["--addr", "127.0.0.1:0", "--cores", cores]);
            if manifest.serves.contains(&Serves::Files) {
                arguments.extend(["--root", ROOT]);
            }
            arguments.extend(contender.arguments.iter().map(String::as_str));
            PeerContender {
                contender: Contender::new(&contender.name, Path::new(&program[0]), &arguments),
                version: built.version.clone(),
                origin: origin.clone(),
                built_with: format!("{} ({})", manifest.language, built.compiler),
                driver: contender.driver,
                kind: manifest.kind,
                serves: manifest.serves.clone(),
                takes_tls: manifest.tls,
                features: contender.features.clone(),
                connections_limit: contender.connections_limit,
                warm_up: Duration::from_secs(manifest.warm_up_s),
            }
        };
        manifest.contenders.iter().map(contender).collect()
    }
}

fn has_peers(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().join("peer.toml").is_file())
}

/// Builds run in the peers' folders, so that no path may depend on where this process runs. Without `..` if the path
/// exists.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path).or_else(|_| std::path::absolute(path))
}

/// An error about a file, which its text begins with.
fn in_file(file: &Path, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", file.display()))
}
