//! The file that disk workers read and write: whose it is, and who removes it.

use std::path::{Path, PathBuf};
use std::{fs, process};

use anello_lab::result::LabResult;

/// A disk file that nobody named is called by the process id of its lab, between these.
const DISK_FILE_START: &str = "anello-lab-";
const DISK_FILE_END: &str = ".disk";

/// The file of the disk workers: as it was asked for, else that of the run that is gone on with, whose workers' commands
/// name it, else one that no other lab uses.
pub fn disk_file(asked: Option<&Path>, previous: Option<&LabResult>) -> PathBuf {
    let earlier = || previous?.plan.disk_file.as_deref().map(Path::new);
    asked.or_else(earlier).map_or_else(default_disk_file, Path::to_owned)
}

/// One that no other lab uses.
pub fn default_disk_file() -> PathBuf {
    disk_directory().join(format!("{DISK_FILE_START}{}{DISK_FILE_END}", process::id()))
}

/// One that is on a disk where there is one: /tmp is often memory.
fn disk_directory() -> PathBuf {
    let directory = Path::new("/var/tmp");
    if directory.is_dir() { directory.to_owned() } else { std::env::temp_dir() }
}

/// Whether the file of the disk workers is one that a lab has named for itself, this one or the one that is gone on with,
/// whose command line was `earlier`. What such a file holds is what a lab has left that crashed; any other is the user's.
pub fn is_labs_own(path: &Path, asked: Option<&Path>, earlier: Option<&str>) -> bool {
    let named_by_user = asked.is_some() || earlier.is_some_and(|command| command.contains("--disk-file"));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let process = name.strip_prefix(DISK_FILE_START).and_then(|name| name.strip_suffix(DISK_FILE_END));
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
        assert!(is_labs_own(&own, None, None) && is_labs_own(&own, None, Some(first)));
        let earlier = disk_directory().join("anello-lab-17.disk");
        assert!(is_labs_own(&earlier, None, Some(first)), "of the lab that is gone on with");
        assert!(!is_labs_own(&own, Some(&own), Some(first)));
        let named = "anello lab run --preset disk --disk-file /var/tmp/anello-lab-17.disk";
        assert!(!is_labs_own(&earlier, None, Some(named)));
        for other in ["blocks", "anello-lab-.disk", "anello-lab-mine.disk"] {
            assert!(!is_labs_own(&disk_directory().join(other), None, Some(first)), "{other}");
        }
        assert!(!is_labs_own(Path::new("/srv/anello-lab-17.disk"), None, Some(first)));
    }
}
