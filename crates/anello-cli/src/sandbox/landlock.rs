//! Files and ports, by Landlock: what is not left open is refused with EACCES or EPERM, whoever asks for it, also a ring.
//!
//! Rules are about files and folders as they were when the rules were made, whatever their names lead to later: a folder
//! that is replaced by another of its name is not open any more. So what is replaced while the server runs (certificates,
//! logs) is open through the folder that it is in.

use std::fmt;
use std::path::{Path, PathBuf};

use ::landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::AllowedPaths;

/// The interface whose restrictions are asked for; on older kernels as many of them as there are. Later ones restrict more,
/// which the server has not been tried with.
const REQUESTED_ABI: ABI = ABI::V6;

/// What each interface brought.
const ABI_FEATURES: [(i32, &str); 4] = [
    (3, "truncating files by name (Linux 6.2)"),
    (4, "TCP (6.7)"),
    (5, "ioctls of devices (6.10)"),
    (6, "signals and abstract sockets (6.12)"),
];

/// Restrictions in force.
#[derive(Debug)]
pub struct Landlock {
    /// Of the interface, up to what is asked for.
    version: i32,
}

impl Landlock {
    /// Forbids the calling thread, and those that it starts, all files but these, and all ports.
    pub fn restrict(allowed_paths: &AllowedPaths) -> Result<Self, String> {
        let status = restrict(allowed_paths).map_err(|error| format!("Landlock was refused: {error}"))?;
        match (status.landlock, status.ruleset) {
            (LandlockStatus::NotImplemented, _) => Err(
                "the kernel has no Landlock: take one of Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, \
                     or allow landlock_create_ruleset, landlock_add_rule and landlock_restrict_self in the \
                     container's profile"
                    .to_owned(),
            ),
            (LandlockStatus::NotEnabled, _) => {
                Err("Landlock is not enabled: add landlock to the kernel's parameter lsm=".to_owned())
            }
            (_, RulesetStatus::NotEnforced) => Err("Landlock was not put in force".to_owned()),
            (LandlockStatus::Available { effective_abi, .. }, _) => {
                Ok(Self { version: (effective_abi as i32).min(REQUESTED_ABI as i32) })
            }
        }
    }

    /// What the kernel's interface is too old to restrict.
    pub fn gaps(&self) -> Option<String> {
        let gaps: Vec<_> = ABI_FEATURES
            .iter()
            .filter(|(version, _)| self.version < *version)
            .map(|(_, what)| *what)
            .collect();
        (!gaps.is_empty()).then(|| {
            let (version, gaps) = (self.version, gaps.join(", "));
            format!("Landlock of ABI {version} does not restrict {gaps}: take a newer kernel")
        })
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
        // What is not there, or may not be looked at, needs no rule.
        let Ok(file) = PathFd::new(&path) else { continue };
        // What is no file of any file system has none: a pipe, by the name of standard output, is always open.
        if let Err(error) = (&mut ruleset).add_rule(PathBeneath::new(file, rights)) {
            tracing::debug!(path = %path.display(), %error, "no rule of Landlock");
        }
    }
    ruleset.restrict_self()
}

/// Files and folders, with what may be done to them and to all that is below them.
fn rules(allowed_paths: &AllowedPaths) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = vec![(allowed_paths.served.clone(), read)];
    // What the kernel tells of this process: metrics, and where the C library does not, the size of a page.
    rules.push(("/proc/self".into(), read));
    // For the names in the backtrace of a panic.
    rules.extend(std::env::current_exe().ok().map(|program| (program, AccessFs::ReadFile.into())));
    for file in &allowed_paths.reloaded {
        rules.extend(rule_paths(file).into_iter().map(|place| (place, AccessFs::ReadFile.into())));
    }
    for file in &allowed_paths.appended {
        let write = AccessFs::WriteFile | AccessFs::MakeReg;
        match std::fs::metadata(file) {
            // A device or a FIFO is never renamed to make room for another.
            Ok(found) if !found.is_file() => rules.push((file.clone(), write)),
            _ => rules.extend(rule_paths(file).into_iter().map(|place| (place, write))),
        }
    }
    for file in &allowed_paths.sockets {
        rules.extend(rule_paths(file).into_iter().map(|place| (place, AccessFs::RemoveFile.into())));
    }
    rules
}

/// The folder of a file; if it is a link, that of what it leads to as well. In folders that hold everything, or what is of
/// nobody's concern here, the file itself.
fn rule_paths(file: &Path) -> Vec<PathBuf> {
    let paths = [std::path::absolute(file), file.canonicalize()];
    let place = |path: PathBuf| match path.parent() {
        Some(folder) if !is_too_broad(folder) => folder.to_owned(),
        _ => path,
    };
    paths.into_iter().flatten().map(place).collect()
}

/// The root folder, devices, and what the kernel tells of processes.
fn is_too_broad(folder: &Path) -> bool {
    folder.parent().is_none() || folder == Path::new("/dev") || folder.starts_with("/proc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_hold_too_much_are_not_open_for_a_file_in_them() {
        for file in ["/cert.pem", "/dev/no-such-log", "/proc/self/fd/999"] {
            assert_eq!(rule_paths(Path::new(file)), [Path::new(file)]);
        }
        assert_eq!(rule_paths(Path::new("/no/such/cert.pem")), [Path::new("/no/such")]);
    }

    #[test]
    fn a_link_is_open_where_it_is_and_where_it_leads() {
        let folder = tempfile::tempdir().unwrap();
        let (live, archive) = (folder.path().join("live"), folder.path().join("archive"));
        for made in [&live, &archive] {
            std::fs::create_dir(made).unwrap();
        }
        std::fs::write(archive.join("cert-1.pem"), "").unwrap();
        std::os::unix::fs::symlink("../archive/cert-1.pem", live.join("cert.pem")).unwrap();
        let archive = archive.canonicalize().unwrap();
        assert_eq!(rule_paths(&live.join("cert.pem")), [live, archive]);
    }

    #[test]
    fn what_an_old_kernel_does_not_restrict_is_said() {
        assert_eq!(Landlock { version: REQUESTED_ABI as i32 }.gaps(), None);
        let gaps = Landlock { version: 4 }.gaps().unwrap();
        assert!(gaps.contains("ioctls") && gaps.contains("signals") && !gaps.contains("TCP"), "{gaps}");
    }
}
