//! File and port restrictions with Landlock: accesses that are not allowed fail with EACCES or EPERM, including
//! accesses through io_uring.
//!
//! Rules refer to the inodes that exist when the rules are created, not to names: if a directory is replaced by another
//! directory with the same name, the new directory is not accessible. For files that are replaced while the server is
//! running (certificates, logs), the rule therefore covers the parent directory.

use std::fmt;
use std::path::{Path, PathBuf};

use ::landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// Paths that the sandboxed server may access.
#[derive(Clone, Debug, Default)]
pub struct AllowedPaths {
    /// Document root; everything below it may be read.
    pub served: PathBuf,
    /// Files that are read again after being replaced; their directories may be read.
    pub reloaded: Vec<PathBuf>,
    /// Files that the server appends to and may recreate. Files in their directories may be created and written.
    pub appended: Vec<PathBuf>,
    /// Unix socket files, which are removed at exit; any file in their directories may be removed.
    pub sockets: Vec<PathBuf>,
}

/// Requested ABI version, the latest tested one. Older kernels enforce the subset that they support.
const REQUESTED_ABI: ABI = ABI::V6;

/// Restrictions added by each ABI version.
const ABI_FEATURES: [(i32, &str); 4] = [
    (3, "truncating files by name (Linux 6.2)"),
    (4, "TCP (Linux 6.7)"),
    (5, "device ioctls (Linux 6.10)"),
    (6, "signals and abstract sockets (Linux 6.12)"),
];

pub struct Landlock {
    /// ABI version of the kernel, at most [`REQUESTED_ABI`].
    version: i32,
}

impl Landlock {
    /// Denies access to all TCP ports and to all files except these paths, for the calling thread and threads that it
    /// starts later.
    pub fn restrict(allowed_paths: &AllowedPaths) -> Result<Self, String> {
        let status = restrict(allowed_paths).map_err(|error| format!("cannot apply Landlock: {error}"))?;
        match (status.landlock, status.ruleset) {
            (LandlockStatus::NotImplemented, _) => Err(
                "Landlock unavailable (use Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, or allow \
                 landlock_create_ruleset, landlock_add_rule and landlock_restrict_self in the container's seccomp \
                 profile)"
                    .to_owned(),
            ),
            (LandlockStatus::NotEnabled, _) => {
                Err("Landlock disabled (add landlock to the kernel parameter lsm=)".to_owned())
            }
            (_, RulesetStatus::NotEnforced) => Err("Landlock ruleset not enforced".to_owned()),
            (LandlockStatus::Available { effective_abi, .. }, _) => {
                Ok(Self { version: (effective_abi as i32).min(REQUESTED_ABI as i32) })
            }
        }
    }

    /// Returns a message about the restrictions that the kernel does not support, if any.
    pub fn gaps(&self) -> Option<String> {
        let gaps = ABI_FEATURES.iter().filter(|(version, _)| self.version < *version);
        let gaps: Vec<_> = gaps.map(|(_, feature)| *feature).collect();
        let (version, is_complete, gaps) = (self.version, gaps.is_empty(), gaps.join(", "));
        (!is_complete)
            .then(|| format!("Landlock ABI {version} does not restrict {gaps} (use a newer kernel)"))
    }
}

impl fmt::Display for Landlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "landlock-abi-{}", self.version)
    }
}

fn restrict(allowed_paths: &AllowedPaths) -> Result<RestrictionStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(REQUESTED_ABI))?
        .handle_access(AccessNet::from_all(REQUESTED_ABI))?
        .scope(Scope::from_all(REQUESTED_ABI))?
        .create()?;
    for (path, rights) in rules(allowed_paths) {
        let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(REQUESTED_ABI) };
        // A missing or inaccessible path needs no rule.
        let Ok(file) = PathFd::new(&path) else { continue };
        // Rules cannot cover files outside any file system, such as pipes, which are always accessible.
        if let Err(error) = (&mut ruleset).add_rule(PathBeneath::new(file, rights)) {
            tracing::debug!(path = %path.display(), %error, "cannot add Landlock rule");
        }
    }
    ruleset.restrict_self()
}

/// Returns files and directories with the rights granted for them and everything below them.
fn rules(allowed_paths: &AllowedPaths) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = vec![(allowed_paths.served.clone(), read)];
    // Process information for the metrics, and the page size if libc reads it from there.
    rules.push(("/proc/self".into(), read));
    // Symbol names in the backtrace of a panic.
    rules.extend(std::env::current_exe().ok().map(|executable| (executable, AccessFs::ReadFile.into())));
    for file in &allowed_paths.reloaded {
        rules.extend(rule_paths(file).into_iter().map(|rule_path| (rule_path, AccessFs::ReadFile.into())));
    }
    for file in &allowed_paths.appended {
        let write = AccessFs::WriteFile | AccessFs::MakeReg;
        match std::fs::metadata(file) {
            // Devices and FIFOs are not renamed by log rotation.
            Ok(metadata) if !metadata.is_file() => rules.push((file.clone(), write)),
            _ => rules.extend(rule_paths(file).into_iter().map(|rule_path| (rule_path, write))),
        }
    }
    for file in &allowed_paths.sockets {
        rules.extend(rule_paths(file).into_iter().map(|rule_path| (rule_path, AccessFs::RemoveFile.into())));
    }
    rules
}

/// Returns the parent directory of a file and, if the file is a symbolic link, that of its target. If a directory is
/// too broad, returns the file itself instead.
fn rule_paths(file: &Path) -> Vec<PathBuf> {
    let paths = [std::path::absolute(file), file.canonicalize()];
    let rule_path = |path: PathBuf| match path.parent() {
        Some(directory) if !is_too_broad(directory) => directory.to_owned(),
        _ => path,
    };
    paths.into_iter().flatten().map(rule_path).collect()
}

/// Returns `true` for the root directory, device directories and /proc.
fn is_too_broad(directory: &Path) -> bool {
    directory.parent().is_none() || directory == Path::new("/dev") || directory.starts_with("/proc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_in_broad_directory_is_allowed_alone() {
        for file in ["/cert.pem", "/dev/no-such-log", "/proc/self/fd/999"] {
            assert_eq!(rule_paths(Path::new(file)), [Path::new(file)]);
        }
        assert_eq!(rule_paths(Path::new("/no/such/cert.pem")), [Path::new("/no/such")]);
    }

    #[test]
    fn symlink_allows_its_directory_and_that_of_its_target() {
        let directory = tempfile::tempdir().unwrap();
        let (live, archive) = (directory.path().join("live"), directory.path().join("archive"));
        [&live, &archive].into_iter().try_for_each(std::fs::create_dir).unwrap();
        std::fs::write(archive.join("cert-1.pem"), "").unwrap();
        std::os::unix::fs::symlink("../archive/cert-1.pem", live.join("cert.pem")).unwrap();
        let archive = archive.canonicalize().unwrap();
        assert_eq!(rule_paths(&live.join("cert.pem")), [live, archive]);
    }

    #[test]
    fn missing_restrictions_are_reported_per_abi_version() {
        assert_eq!(Landlock { version: REQUESTED_ABI as i32 }.gaps(), None);
        let gaps = Landlock { version: 4 }.gaps().unwrap();
        assert!(gaps.contains("ioctls") && gaps.contains("signals") && !gaps.contains("TCP"), "{gaps}");
    }
}
