//! The file that disk workers read and write: whose it is, and who removes it.

use std::path::{Path, PathBuf};
use std::{fs, process};

use anello_lab::result::LabResult;

/// A disk file that nobody named is called by the process id of its lab, between these.
const DISK_FILE_PREFIX: &str = "anello-lab-";
const DISK_FILE_SUFFIX: &str = ".disk";

/// The file of the disk workers: as it was asked for, else that of the run that is gone on with, whose workers' commands
/// name it, else one that no other lab uses.
pub fn disk_file(requested: Option<&Path>, previous: Option<&LabResult>) -> PathBuf {
    let previous_run = || previous?.plan.disk_file.as_deref().map(Path::new);
    requested.or_else(previous_run).map_or_else(default_disk_file, Path::to_owned)
}

/// One that no other lab uses.
pub fn default_disk_file() -> PathBuf {
    disk_directory().join(format!("{DISK_FILE_PREFIX}{}{DISK_FILE_SUFFIX}", process::id()))
}

/// One that is on a disk where there is one: /tmp is often memory.
fn disk_directory() -> PathBuf {
    let directory = Path::new("/var/tmp");
    if directory.is_dir() { directory.to_owned() } else { std::env::temp_dir() }
}

/// Whether the file of the disk workers is one that a lab has named for itself, this one or the one that is gone on with,
/// whose command line was `previous_run`. What such a file holds is what a lab has left that crashed; any other is the user's.
pub fn is_owned_by_lab(path: &Path, requested: Option<&Path>, previous_command: Option<&str>) -> bool {
    let named_by_user =
        requested.is_some() || previous_command.is_some_and(|command| command.contains("--disk-file"));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let process = name.strip_prefix(DISK_FILE_PREFIX).and_then(|name| name.strip_suffix(DISK_FILE_SUFFIX));
    let is_numbered = process
        .is_some_and(|process| !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit()));
    !named_by_user && is_numbered && path.parent() == Some(disk_directory().as_path())
}

/// The file of the disk workers, which goes with the run unless it is the user's and was there before.
pub struct DiskFile {
    pub path: PathBuf,
    pub was_there: bool,
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if !self.was_there {
            // In most runs it was never made.
            fs::remove_file(&self.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_file_that_the_user_has_named_is_never_the_labs_own() {
        let own = default_disk_file();
        let first = "anello lab run --preset disk";
        assert!(is_owned_by_lab(&own, None, None) && is_owned_by_lab(&own, None, Some(first)));
        let previous_run = disk_directory().join("anello-lab-17.disk");
        assert!(is_owned_by_lab(&previous_run, None, Some(first)), "of the lab that is gone on with");
        assert!(!is_owned_by_lab(&own, Some(&own), Some(first)));
        let named = "anello lab run --preset disk --disk-file /var/tmp/anello-lab-17.disk";
        assert!(!is_owned_by_lab(&previous_run, None, Some(named)));
        for other in ["blocks", "anello-lab-.disk", "anello-lab-mine.disk"] {
            assert!(!is_owned_by_lab(&disk_directory().join(other), None, Some(first)), "{other}");
        }
        assert!(!is_owned_by_lab(Path::new("/srv/anello-lab-17.disk"), None, Some(first)));
    }
}
