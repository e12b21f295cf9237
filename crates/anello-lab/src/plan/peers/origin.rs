//! Origin of a peer: the library version pinned by the lock file, and the commit of the server's sources.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::commit::{self, CHANGED};

/// Origin of a peer, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Checksum of the library in the lock file: "sha256:…" for a crate's archive, "h1:…" for a Go module.
    #[serde(default)]
    pub library_checksum: Option<String>,
    /// Commit of the library, from its version or from the published crate.
    #[serde(default)]
    pub library_commit: Option<String>,
    /// Commit of the peer's own sources, followed by "+changes" if they were modified.
    #[serde(default)]
    pub server_commit: Option<String>,
}

/// A library whose version is pinned by the project in a directory.
#[derive(Clone, Copy)]
pub(super) struct PinnedLibrary<'a> {
    pub(super) name: &'a str,
    /// Directory of the lock file.
    pub(super) directory: &'a Path,
}

impl Origin {
    /// Determines the current origin. Must be called after a build, when the library has been downloaded. `sources` are
    /// the directories of the peer's sources. Runs `git` and reads Cargo's directory of unpacked crates.
    pub(super) fn current(library: PinnedLibrary<'_>, version: &str, sources: &[&Path]) -> Origin {
        Origin { server_commit: commit::of_sources(sources), ..Origin::pinned(library, version) }
    }

    /// Determines the origin of the library, which depends only on the lock file and the version. Also works for a peer
    /// whose build record does not contain its origin.
    pub(super) fn pinned(library: PinnedLibrary<'_>, version: &str) -> Origin {
        let PinnedLibrary { name, directory } = library;
        let version_commit = || commit::of_version(version).map(str::to_owned);
        Origin {
            library_checksum: locked_checksum(directory, name, version),
            library_commit: version_commit().or_else(|| published_commit(&cargo_home()?, name, version)),
            server_commit: None,
        }
    }
}

/// Returns the library's checksum in the lock file of the project in `directory`.
pub(super) fn locked_checksum(directory: &Path, library: &str, version: &str) -> Option<String> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    if let Some(lock) = read("Cargo.lock") {
        return checksum_of_crate(&lock, library, version).map(|checksum| format!("sha256:{checksum}"));
    }
    let sums = read("go.sum")?;
    let start = format!("{library} {version} ");
    sums.lines().find_map(|line| Some(line.strip_prefix(&start)?.to_owned()))
}

fn checksum_of_crate(lock: &str, library: &str, version: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(lock).ok()?;
    let mut packages = lock.package.into_iter();
    packages.find(|package| package.name == library && package.version == version)?.checksum
}

/// Returns the commit from which a crate was published. `cargo publish` adds it to the crate. Cargo verified the
/// crate's checksum when it unpacked the crate, but the commit itself is only claimed by the publisher. Cargo has a
/// directory for each registry; the first one that contains the crate is used.
fn published_commit(cargo_home: &Path, library: &str, version: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Published {
        git: Git,
    }
    #[derive(Deserialize)]
    struct Git {
        sha1: String,
        #[serde(default)]
        dirty: bool,
    }
    let registries = fs::read_dir(cargo_home.join("registry/src")).ok()?;
    let file = |registry: &Path| registry.join(format!("{library}-{version}/.cargo_vcs_info.json"));
    let mut texts = registries.filter_map(|registry| fs::read(file(&registry.ok()?.path())).ok());
    let Published { git } = serde_json::from_slice(&texts.next()?).ok()?;
    Some(format!("{}{}", git.sha1, if git.dirty { CHANGED } else { "" }))
}

/// Returns the directory in which Cargo stores downloads.
fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty());
    set.map(PathBuf::from).or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_matches_name_and_version() {
        let lock = "[[package]]\nname = \"x\"\nversion = \"1.0.0\"\nchecksum = \"aa\"\n\
                    [[package]]\nname = \"x\"\nversion = \"2.0.0\"\nchecksum = \"bb\"\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        assert_eq!(checksum_of_crate(lock, "x", "2.0.0").as_deref(), Some("bb"));
        assert_eq!(checksum_of_crate(lock, "x", "3.0.0"), None);
        assert_eq!(checksum_of_crate(lock, "own", "0.1.0"), None, "a path dependency has no checksum");
        assert_eq!(checksum_of_crate("no lock file", "x", "1.0.0"), None);
    }

    #[test]
    fn published_commit_reads_crate_metadata() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(published_commit(home.path(), "x", "1.0.0"), None, "nothing was downloaded");
        let write = |version: &str, text: &str| {
            let directory = home.path().join(format!("registry/src/index-1/x-{version}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(".cargo_vcs_info.json"), text).unwrap();
        };
        write("1.0.0", r#"{"git": {"sha1": "b53b2001"}, "path_in_vcs": "x"}"#);
        write("2.0.0", r#"{"git": {"sha1": "b53b2001", "dirty": true}}"#);
        write("3.0.0", "nonsense");
        assert_eq!(published_commit(home.path(), "x", "1.0.0").as_deref(), Some("b53b2001"));
        assert_eq!(published_commit(home.path(), "x", "2.0.0").as_deref(), Some("b53b2001+changes"));
        assert_eq!(published_commit(home.path(), "x", "3.0.0"), None);
    }
}
