//! Atomic file replacement: a file is replaced completely or left unchanged, even if the disk is full or power fails.
//! The new contents are written to `NAME.part`, which is synced and renamed. Then the directory is synced.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Replaces the contents of the file at `path` with `bytes`. After an error, the file is unchanged unless the rename
/// succeeded. If `path` is not a regular file (for example, a pipe or a terminal), it is written to directly.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return fs::write(path, bytes),
        // Replace the target of a symbolic link, not the link.
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_owned(),
    };
    let temporary_path = temporary_path(&path);
    let write = || {
        let mut file = File::create(&temporary_path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary_path, &path)
    };
    // An incomplete file is useless. The error that interrupted the write is more important than a failed removal.
    write().inspect_err(|_| drop(fs::remove_file(&temporary_path)))?;
    sync_directory(&path)
}

/// Checks that [`replace`] can write the file at `path`, without changing it. A file that is not a regular file, such
/// as a pipe, is not checked.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(());
    }
    let temporary_path = temporary_path(path);
    let mut file = File::create(&temporary_path)?;
    // A full disk has no space for these bytes.
    let written = file.write_all(&[0; 4096]).and_then(|()| file.sync_all());
    fs::remove_file(&temporary_path).and(written)
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut temporary_path = path.to_owned().into_os_string();
    temporary_path.push(".part");
    temporary_path.into()
}

/// Syncs the directory that contains `path`, if the file system supports it.
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
