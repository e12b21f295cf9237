//! Atomic file replacement: a file is replaced completely or left unchanged, even if the disk is full or power fails.
//!
//! ```text
//!  lab.json.part   written, then synced       the new contents are on the disk
//!  rename(2)       lab.json.part ─► lab.json  readers see either the old or the new contents
//!  the directory   synced                     the new directory entry is on the disk
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Replaces the contents of the file at `path` with `bytes`. A path that is not a regular file (a pipe, a terminal)
/// is written to directly.
///
/// # Errors
/// Returns an error if the temporary file cannot be written, synced or renamed. The file at `path` is unchanged unless
/// the rename succeeded.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return fs::write(path, bytes),
        // Replace the target of a symbolic link, not the link.
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_owned(),
    };
    let temporary_path = temporary_path(&path);
    write_synced(&temporary_path, bytes).and_then(|()| fs::rename(&temporary_path, &path)).inspect_err(
        |_| {
            // An incomplete file is useless. The error that interrupted the write is more important than a failed
            // removal.
            fs::remove_file(&temporary_path).ok();
        },
    )?;
    sync_directory(&path)
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".part");
    PathBuf::from(name)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Flushes the entries of the directory that contains `path` to disk, if the file system supports it.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(directory).and_then(|directory| directory.sync_all()) {
        // Some network and user-space file systems cannot sync directories, and some directories cannot be opened.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_file_without_overwriting_old_inode() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("run.json"), directory.path().join("old"));
        replace(&path, b"first").unwrap();
        fs::hard_link(&path, &old).unwrap();
        replace(&path, b"second").unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!((read(&path), read(&old)), ("second".to_owned(), "first".to_owned()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "temporary file was left behind");
    }

    #[test]
    fn failed_write_leaves_file_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        replace(&path, b"first").unwrap();
        fs::create_dir(directory.path().join("run.json.part")).unwrap();
        assert!(replace(&path, b"second").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
    }

    #[test]
    fn keeps_symlinks_and_writes_to_devices_directly() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "first").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, b"second").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        replace(Path::new("/dev/null"), b"anything").unwrap();
        assert!(!Path::new("/dev/null.part").exists());
    }
}
