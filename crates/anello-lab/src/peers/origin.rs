//! Where a peer comes from: its library by what the lock file pins, its server by the commit of its sources.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Peer;
use crate::commit::{self, CHANGED};

/// Where a peer comes from, as far as that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The checksum of the library in the lock file: "sha256:…" of a crate's archive, "h1:…" of a Go module.
    #[serde(default)]
    pub library_checksum: Option<String>,
    /// The library's commit: the one that its version names, or that its publisher has put into the crate.
    #[serde(default)]
    pub library_commit: Option<String>,
    /// The commit that the peer's own sources are at, with "+changes" where they were changed since.
    #[serde(default)]
    pub server_commit: Option<String>,
}

impl Peer {
    /// Where library and server come from, now: after a build, when the library has been fetched. `version` is the
    /// library's. Asks git, and reads Cargo's folder of unpacked crates.
    #[must_use]
    pub fn origin(&self, version: &str) -> Origin {
        let sources = self.manifest.sources.iter().map(Path::new);
        let folders: Vec<&Path> = [self.folder.as_path()].into_iter().chain(sources).collect();
        Origin { server_commit: commit::of_sources(&folders), ..self.pinned_origin(version) }
    }

    /// What of it no build changes: where the library comes from, by lock file and version. Known as well of a peer that
    /// was built before its record told any of this.
    pub(super) fn pinned_origin(&self, version: &str) -> Origin {
        let library = &self.manifest.library;
        let of_version = || commit::of_version(version).map(str::to_owned);
        Origin {
            library_checksum: locked_checksum(&self.folder, library, version),
            library_commit: of_version().or_else(|| published_commit(&cargo_home()?, library, version)),
            server_commit: None,
        }
    }
}

/// What the lock file of the project in `folder` pins the library's content to.
fn locked_checksum(folder: &Path, library: &str, version: &str) -> Option<String> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
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

/// The commit that a crate was published from, which `cargo publish` puts into it. Cargo has compared the crate with the
/// checksum when it unpacked it; that the commit is the right one rests on the word of the publisher. Cargo has a folder
/// for each registry: the first that has the crate is read, whichever registry that is.
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

/// Where Cargo keeps what it has fetched.
fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty());
    set.map(PathBuf::from).or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peers;

    #[test]
    fn every_library_of_a_lock_file_has_its_checksum() {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers");
        let out = tempfile::tempdir().unwrap();
        for peer in Peers::open(&peers, out.path()).unwrap().all() {
            let version = peer.manifest.version.as_deref();
            let has_lock = ["Cargo.lock", "go.sum"].iter().any(|name| peer.folder.join(name).is_file());
            let checksum = locked_checksum(&peer.folder, &peer.manifest.library, version.unwrap_or("0"));
            match version {
                Some(_) if has_lock => {
                    let checksum = checksum.expect(&peer.manifest.name);
                    let kind = if peer.manifest.language == "Go" { "h1:" } else { "sha256:" };
                    assert!(checksum.starts_with(kind) && checksum.len() > 40, "{checksum}");
                }
                _ => assert_eq!(checksum, None, "{}", peer.manifest.name),
            }
        }
    }

    #[test]
    fn of_several_versions_in_a_lock_file_the_one_that_is_used_counts() {
        let lock = "[[package]]\nname = \"x\"\nversion = \"1.0.0\"\nchecksum = \"aa\"\n\
                    [[package]]\nname = \"x\"\nversion = \"2.0.0\"\nchecksum = \"bb\"\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        assert_eq!(checksum_of_crate(lock, "x", "2.0.0").as_deref(), Some("bb"));
        assert_eq!(checksum_of_crate(lock, "x", "3.0.0"), None);
        assert_eq!(checksum_of_crate(lock, "own", "0.1.0"), None, "a folder has no checksum");
        assert_eq!(checksum_of_crate("no lock file", "x", "1.0.0"), None);
    }

    #[test]
    fn a_crate_tells_the_commit_that_it_was_published_from() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(published_commit(home.path(), "x", "1.0.0"), None, "nothing was fetched");
        let write = |version: &str, text: &str| {
            let folder = home.path().join(format!("registry/src/index-1/x-{version}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(".cargo_vcs_info.json"), text).unwrap();
        };
        write("1.0.0", r#"{"git": {"sha1": "b53b2001"}, "path_in_vcs": "x"}"#);
        write("2.0.0", r#"{"git": {"sha1": "b53b2001", "dirty": true}}"#);
        write("3.0.0", "nonsense");
        assert_eq!(published_commit(home.path(), "x", "1.0.0").as_deref(), Some("b53b2001"));
        assert_eq!(published_commit(home.path(), "x", "2.0.0").as_deref(), Some("b53b2001+changes"));
        assert_eq!(published_commit(home.path(), "x", "3.0.0"), None);
    }
}
