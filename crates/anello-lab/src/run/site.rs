//! The files that HTTP servers serve, in a temporary directory.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::plan::contender::{Contender, ROOT};
use crate::plan::site::Target;

/// Modification time of the files, in seconds since 1970. It is the same in every run and far enough in the past (1
/// January 2026) that caches do not treat the files as recently changed.
const MODIFIED_UNIX_S: u64 = 1_767_225_600;

/// Temporary directory with all files of the site. Dropping it removes the directory.
#[derive(Debug)]
pub(crate) struct Site {
    directory: TempDir,
}

impl Site {
    /// Creates the directory in the system's directory for temporary files (`TMPDIR`, else `/tmp`). It is readable
    /// by all users because some servers change their user id. The files are synced with `fsync(2)`, so that the
    /// kernel does not write them back during a measurement.
    ///
    /// # Errors
    /// Returns the error of the failed operation, with its path.
    pub fn create() -> io::Result<Site> {
        let parent = std::env::temp_dir();
        let with_path = |path: &Path, error: io::Error| {
            let text =
                format!("{}: {error} (set TMPDIR to a directory with 11 MiB of free space)", path.display());
            io::Error::new(error.kind(), text)
        };
        let directory = tempfile::Builder::new().prefix("anello-lab-site-").tempdir_in(&parent);
        let directory = directory.map_err(|error| with_path(&parent, error))?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))
            .map_err(|error| with_path(directory.path(), error))?;
        for target in Target::ALL {
            let path = directory.path().join(target.file_name());
            write(&path, target.body()).map_err(|error| with_path(&path, error))?;
        }
        Ok(Site { directory })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns the contender with [`ROOT`] in its arguments replaced by the site's directory. Creates the site on first
/// use.
pub(crate) fn with_site(contender: &Contender, site: &mut Option<Site>) -> Result<Contender, String> {
    let mut contender = contender.clone();
    if !contender.arguments.iter().any(|argument| argument.contains(ROOT)) {
        return Ok(contender);
    }
    let site = match site {
        Some(site) => site,
        none => {
            none.insert(Site::create().map_err(|error| format!("cannot create the files to serve: {error}"))?)
        }
    };
    let directory = site.path().to_string_lossy();
    contender.arguments.iter_mut().for_each(|argument| *argument = argument.replace(ROOT, &directory));
    Ok(contender)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_UNIX_S))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_has_readable_files_and_is_removed_on_drop() {
        let site = Site::create().unwrap();
        let directory = site.path().to_owned();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o755);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), Target::ALL.len());
        for target in Target::ALL {
            let path = directory.join(target.path().trim_start_matches('/'));
            assert!(fs::read(&path).unwrap() == target.body(), "{target}");
            assert_eq!(mode(&path), 0o644);
            assert!(fs::metadata(&path).unwrap().modified().unwrap() < SystemTime::now());
        }
        drop(site);
        assert!(!directory.exists());
    }
}
