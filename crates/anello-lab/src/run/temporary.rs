//! Temporary directories for files that servers use during a run, such as the files that HTTP servers serve.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::plan::contender::{Contender, ROOT};
use crate::plan::site::Target;
use crate::run::machine::MachineError;

/// 1 January 2026, far enough in the past that caches do not treat the files as recently changed.
const MODIFIED_UNIX_S: u64 = 1_767_225_600;

/// Creates a directory with these permissions in the system's directory for temporary files (`TMPDIR` or `/tmp`).
pub fn create(prefix: &str, mode: u32) -> io::Result<TempDir> {
    let parent = std::env::temp_dir();
    let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(&parent);
    directory
        .and_then(|directory| {
            fs::set_permissions(directory.path(), Permissions::from_mode(mode))?;
            Ok(directory)
        })
        .map_err(|error| with_path(&parent.display(), &error))
}

/// Writes a file with these permissions, and syncs it so that the kernel does not write it back during a measurement.
pub fn write(directory: &TempDir, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
    let path = directory.path().join(name);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_UNIX_S))?;
        file.sync_all()
    };
    write().map_err(|error| with_path(&path.display(), &error))
}

fn with_path(path: &dyn std::fmt::Display, error: &io::Error) -> io::Error {
    let text = format!("{path}: {error} (set TMPDIR to a directory with 11 MiB of free space)");
    io::Error::new(error.kind(), text)
}

/// Creates a site directory that all users can read, because some servers change their user ID.
fn create_site() -> io::Result<TempDir> {
    let directory = create("anello-lab-site-", 0o755)?;
    for target in Target::ALL.into_iter().filter(|target| !target.is_route()) {
        write(&directory, target.file_name(), target.body(), 0o644)?;
    }
    Ok(directory)
}

/// Replaces [`ROOT`] in the contender's arguments with the site's directory. Creates the site on first use.
pub(crate) fn with_site(contender: Contender, site: &mut Option<TempDir>) -> Result<Contender, MachineError> {
    if !contender.uses(ROOT) {
        return Ok(contender);
    }
    let directory = match site.take() {
        Some(directory) => directory,
        None => create_site().map_err(MachineError::Site)?,
    };
    let directory = site.insert(directory).path().to_string_lossy();
    Ok(contender.replacing(ROOT, &directory))
}
