//! The file that disk workers read and write: selects its path and removes it after a run.

use std::path::{Path, PathBuf};
use std::{fs, process};

use anello_lab::result::LabResult;

/// Parts of the default file name before and after the process ID of the lab.
const PREFIX: &str = "anello-lab-";
const SUFFIX: &str = ".disk";

/// Returns a path that no other running lab uses.
pub fn default_disk_file() -> PathBuf {
    disk_directory().join(format!("{PREFIX}{}{SUFFIX}", process::id()))
}

/// Returns `/var/tmp` if it exists, because `/tmp` is often in memory.
fn disk_directory() -> PathBuf {
    let directory = Path::new("/var/tmp");
    if directory.is_dir() { directory.to_owned() } else { std::env::temp_dir() }
}

/// Returns whether the path was chosen by this lab or by the lab that was started with `previous_command`. If such a
/// file exists, it was left by a lab that crashed. Any other file belongs to the user.
fn is_owned_by_lab(path: &Path, requested: Option<&Path>, previous_command: Option<&str>) -> bool {
    let named_by_user =
        requested.is_some() || previous_command.is_some_and(|command| command.contains("--disk-file"));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let pid = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
    let has_pid = pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
    !named_by_user && has_pid && path.parent() == Some(disk_directory().as_path())
}

/// The file of the disk workers. It is removed on drop unless it belongs to the user and existed before the run.
pub struct DiskFile {
    pub path: PathBuf,
    is_kept: bool,
}

impl DiskFile {
    /// Selects the requested path, else the path from the resumed run, else the default path.
    pub fn new(requested: Option<&Path>, previous: Option<&LabResult>) -> Self {
        let previous_run = || previous?.plan.disk_file.as_deref().map(Path::new);
        let path = requested.or_else(previous_run).map_or_else(default_disk_file, Path::to_owned);
        let previous_command = previous.map(|previous| previous.plan.repeat_command.as_str());
        Self { is_kept: path.exists() && !is_owned_by_lab(&path, requested, previous_command), path }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // Errors are ignored, because runs without disk workers never create the file.
            fs::remove_file(&self.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_file_named_by_user_is_not_owned_by_lab() {
        let own = default_disk_file();
        let first = "anello lab run --preset disk";
        assert!(is_owned_by_lab(&own, None, None) && is_owned_by_lab(&own, None, Some(first)));
        let earlier = disk_directory().join("anello-lab-17.disk");
        assert!(is_owned_by_lab(&earlier, None, Some(first)), "the lab owns the file of the resumed run");
        assert!(!is_owned_by_lab(&own, Some(&own), Some(first)));
        let named = "anello lab run --preset disk --disk-file /var/tmp/anello-lab-17.disk";
        assert!(!is_owned_by_lab(&earlier, None, Some(named)));
        for other in ["blocks", "anello-lab-.disk", "anello-lab-mine.disk"] {
            assert!(!is_owned_by_lab(&disk_directory().join(other), None, Some(first)), "{other}");
        }
        assert!(!is_owned_by_lab(Path::new("/srv/anello-lab-17.disk"), None, Some(first)));
    }
}
