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

impl Origin {
    /// Determines the current origin. Must be called after a build, when the library has been downloaded. `sources` are
    /// the directories of the peer's sources.
    pub(super) fn current(directory: &Path, library: &str, version: &str, sources: &[&Path]) -> Origin {
        Origin { server_commit: commit::of_sources(sources), ..Origin::pinned(directory, library, version) }
    }

    /// Determines the origin of the library from its version and the lock file in `directory`. Also works for a peer
    /// whose build record does not contain its origin.
    pub fn pinned(directory: &Path, library: &str, version: &str) -> Origin {
        let version_commit = commit::of_version(version).map(str::to_owned);
        Origin {
            library_checksum: locked_checksum(directory, library, version),
            library_commit: version_commit.or_else(|| published_commit(&cargo_home()?, library, version)),
            server_commit: None,
        }
    }
}

fn locked_checksum(directory: &Path, library: &str, version: &str) -> Option<String> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    if let Some(lock) = read("Cargo.lock") {
        let lock: toml::Table = lock.parse().ok()?;
        let text = |package: &'_ toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
        let is_library = |package: &&toml::Value| {
            text(package, "name").as_deref() == Some(library)
                && text(package, "version").as_deref() == Some(version)
        };
        let package = lock.get("package")?.as_array()?.iter().find(is_library)?;
        return Some(format!("sha256:{}", text(package, "checksum")?));
    }
    let sums = read("go.sum")?;
    let start = format!("{library} {version} ");
    sums.lines().find_map(|line| Some(line.strip_prefix(&start)?.to_owned()))
}

/// Returns the commit from which a crate was published. `cargo publish` adds the commit to the crate, so it is only as
/// reliable as the publisher. Cargo has a directory for each registry; the first one that contains the crate is used.
fn published_commit(cargo_home: &Path, library: &str, version: &str) -> Option<String> {
    let registries = fs::read_dir(cargo_home.join("registry/src")).ok()?;
    let file = |registry: &Path| registry.join(format!("{library}-{version}/.cargo_vcs_info.json"));
    let mut texts = registries.filter_map(|registry| fs::read(file(&registry.ok()?.path())).ok());
    let info: serde_json::Value = serde_json::from_slice(&texts.next()?).ok()?;
    let git = &info["git"];
    Some(format!("{}{}", git["sha1"].as_str()?, if git["dirty"] == true { CHANGED } else { "" }))
}

fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty());
    set.map(PathBuf::from).or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

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
