//! Peers: echo and HTTP servers based on other libraries and runtimes, each a small project, for comparison with
//! anello.
//!
//! The peers' directory has a subdirectory for each peer. Its `peer.toml` ([`Manifest`]) describes the peer and
//! how it is built and started. Build results are written to a separate output directory per peer:
//!
//! ```text
//! peers/                     sources, read only          OUT/               build results
//!   flags/  shared by some                                 tokio/
//!   tokio-echo/                                              build.log   output of the build
//!     peer.toml  ── Peers::open ── Peer::build ───────►      built.json  versions, commands, time
//!     Cargo.toml, Cargo.lock, src/                           target/…    the program
//! ```
//!
//! A peer counts as built only if its program and `built.json` exist and no source is newer than `built.json`, which is
//! removed before a build starts and written after all steps have succeeded.

mod build;
mod manifest;
mod origin;
mod toolchains;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use build::{Built, Outcome, Peer, State};
pub use manifest::{Driver, Manifest, ManifestContender, Protocol};
pub use origin::Origin;
pub use toolchains::Toolchains;

use build::in_context;
use manifest::in_file;

use crate::plan::contender::{Contender, ROOT};
pub use crate::plan::contender::{Kind, Serves};

/// The peers in a directory, ordered by name.
#[derive(Debug, Clone)]
pub struct Peers {
    directory: PathBuf,
    peers: Vec<Peer>,
}

impl Peers {
    /// Reads the peers in `directory`. They are built in subdirectories of `out`.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist or contains no peers, or if a manifest is invalid.
    pub fn open(directory: &Path, out: &Path) -> io::Result<Peers> {
        let (directory, out) = (absolute(directory)?, absolute(out)?);
        let mut peers = Vec::new();
        let entries =
            in_context(directory.display(), in_context("cannot list peers", fs::read_dir(&directory)))?;
        for entry in entries {
            let peer_directory = entry?.path();
            let file = peer_directory.join("peer.toml");
            if file.is_file() {
                let manifest = Manifest::read(&file)?;
                let out = out.join(&manifest.name);
                peers.push(Peer { manifest, folder: peer_directory, out });
            }
        }
        if peers.is_empty() {
            let problem = "no subdirectory contains a peer.toml (is this the peers directory?)";
            return Err(in_file(&directory, None, problem));
        }
        peers.sort_by(|a, b| a.manifest.name.cmp(&b.manifest.name));
        let peers = Peers { directory, peers };
        peers.check_names()?;
        Ok(peers)
    }

    /// Finds the peers in `directory`. By default, looks for `peers` in the current directory and its parents, then in
    /// the parents of this program, which is usually in a target directory in their repository. They are built in the
    /// target directory of this program, or next to the peers if the program is installed.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), and an error if the path of this program or of the current directory
    /// is unknown.
    pub fn find(directory: Option<&Path>) -> io::Result<Peers> {
        let (current, executable) = (std::env::current_dir()?, std::env::current_exe()?);
        let parents = current.ancestors().chain(executable.ancestors());
        let found = || parents.map(|parent| parent.join("peers")).find(|peers| has_peers(peers));
        let directory = directory.map(Path::to_owned).or_else(found);
        let directory = directory.unwrap_or_else(|| executable.with_file_name("peers"));
        // Cargo marks its target directories with this file.
        let target = executable.ancestors().find(|ancestor| ancestor.join("CACHEDIR.TAG").is_file());
        let out = target.map_or_else(|| directory.join("../target/peers"), |target| target.join("peers"));
        Peers::open(&directory, &out)
    }

    /// Returns all peers, ordered by name.
    pub fn all(&self) -> &[Peer] {
        &self.peers
    }

    /// Returns the peers with this protocol, ordered by name.
    pub fn speaking(&self, protocol: Protocol) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(move |peer| peer.manifest.protocol == protocol)
    }

    /// Returns the peers with these names. Each name can refer to a peer, its directory or one of its contenders.
    ///
    /// # Errors
    /// Returns an error that contains the first unknown name.
    pub fn named(&self, names: &[String]) -> io::Result<Vec<&Peer>> {
        for name in names {
            if !self.peers.iter().any(|peer| peer.has_name(name)) {
                let known: Vec<&str> = self.peers.iter().map(|peer| peer.manifest.name.as_str()).collect();
                let (directory, known) = (self.directory.display(), known.join(", "));
                let problem = format!("{directory} has no peer {name:?} (known peers: {known})");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
        }
        Ok(self.peers.iter().filter(|peer| names.iter().any(|name| peer.has_name(name))).collect())
    }

    /// Returns the contenders of all built peers with this protocol. `cores` is a list of cores such as `0,1`, or a
    /// placeholder for it. Contenders that serve files have [`ROOT`] among their arguments.
    pub fn contenders(&self, protocol: Protocol, cores: &str) -> Vec<Contender> {
        let built = self.speaking(protocol).filter_map(|peer| match peer.state() {
            State::Built(built) => Some((peer, built)),
            State::Outdated(_) | State::NotBuilt => None,
        });
        built.flat_map(|(peer, built)| peer.contenders(&built, cores)).collect()
    }

    /// Checks that names are unique, because results are stored by name.
    fn check_names(&self) -> io::Result<()> {
        let (mut peers, mut contenders) = (HashSet::new(), HashSet::new());
        for peer in &self.peers {
            let file = peer.folder.join("peer.toml");
            if !peers.insert(&peer.manifest.name) {
                return Err(in_file(&file, None, &format!("duplicate peer name {:?}", peer.manifest.name)));
            }
            for contender in &peer.manifest.contenders {
                if !contenders.insert(&contender.name) {
                    return Err(in_file(
                        &file,
                        None,
                        &format!("duplicate contender name {:?}", contender.name),
                    ));
                }
            }
        }
        Ok(())
    }
}

fn has_peers(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().join("peer.toml").is_file())
}

/// Makes a path absolute so that it is also valid in builds, which run in the peers' directories.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path).or_else(|_| std::path::absolute(path))
}

impl Peer {
    fn has_name(&self, name: &str) -> bool {
        self.manifest.name == name
            || self.folder.file_name() == Some(OsStr::new(name))
            || self.manifest.contenders.iter().any(|contender| contender.name == name)
    }

    fn contenders(&self, built: &Built, cores: &str) -> Vec<Contender> {
        let manifest = &self.manifest;
        let program: Vec<String> = manifest.program.iter().map(|word| self.expand(word)).collect();
        let is_unrecorded = built.origin == Origin::default();
        let origin = if is_unrecorded {
            Origin::pinned(&self.folder, &manifest.library, &built.version)
        } else {
            built.origin.clone()
        };
        let contender = |contender: &ManifestContender| {
            let mut arguments: Vec<&str> = program[1..].iter().map(String::as_str).collect();
            arguments.extend(["--addr", "127.0.0.1:0", "--cores", cores]);
            if manifest.serves.contains(&Serves::Files) {
                arguments.extend(["--root", ROOT]);
            }
            arguments.extend(contender.arguments.iter().map(String::as_str));
            Contender {
                driver: Some(contender.driver.to_string()),
                is_predefined: true,
                version: Some(built.version.clone()),
                commit: origin.library_commit.clone(),
                library_checksum: origin.library_checksum.clone(),
                server_commit: origin.server_commit.clone(),
                built_with: Some(format!("{} ({})", manifest.language, built.compiler)),
                features: contender.features.clone(),
                connections_limit: contender.connections_limit,
                warm_up: Duration::from_secs(manifest.warm_up_s),
                kind: Some(manifest.kind),
                serves: manifest.serves.clone(),
                takes_tls: manifest.tls,
                ..Contender::new(&contender.name, Path::new(&program[0]), &arguments)
            }
        };
        manifest.contenders.iter().map(contender).collect()
    }
}
