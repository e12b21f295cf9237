//! Files that are replaced whole, or stay as they were, also if the disk is full or the power fails in between.
//!
//! ```text
//!  lab.json.part   written, then synced      the new text is on the disk
//!  rename(2)       lab.json.part ─► lab.json  whoever looks finds the old text or the new one
//!  the directory   synced                    the new name is on the disk
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Puts `bytes` in the place of the file at `path`. What is no file (a pipe, a terminal) is written to as it is.
///
/// # Errors
/// Why it could not be written, synced or renamed. Until it was renamed, the file at `path` is what it was.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return fs::write(path, bytes),
        // The file itself, not a link to it, is what is replaced.
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_owned(),
    };
    let temporary_path = temporary_path(&path);
    write_synced(&temporary_path, bytes).and_then(|()| fs::rename(&temporary_path, &path)).inspect_err(
        |_| {
            // Half a file is of no use; that it cannot be removed is of less interest than why it is half.
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

/// Puts the names in the directory of `path` on the disk, where the file system can.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(directory).and_then(|directory| directory.sync_all()) {
        // Some network and user-space file systems sync no directories, and some directories may not be read.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("run.json"), folder.path().join("old"));
        replace(&path, b"first").unwrap();
        fs::hard_link(&path, &old).unwrap();
        replace(&path, b"second").unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!((read(&path), read(&old)), ("second".to_owned(), "first".to_owned()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        replace(&path, b"first").unwrap();
        fs::create_dir(folder.path().join("run.json.part")).unwrap();
        assert!(replace(&path, b"second").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
    }

    #[test]
    fn a_link_stays_one_and_a_device_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "first").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, b"second").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        replace(Path::new("/dev/null"), b"anything").unwrap();
        assert!(!Path::new("/dev/null.part").exists());
    }
}
