//! Functions on files, links and metadata. Each runs as one operation on the file pool, or, if it opens a FIFO, on the
//! threads of `spawn_blocking`.

use std::fs::{Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use super::path_error::{on_path, on_path_changing, on_path_opening, on_paths, on_paths_opening};
use crate::driver::{Disk, NameChange};

/// Reads a whole file (`openat(2)`, `read(2)`, file pool). Cancel-safe.
///
/// ```
/// # anello::example! {
/// assert!(anello::fs::read("/proc/version").await?.starts_with(b"Linux"));
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    on_path_opening("read", NameChange::None, path, |path| std::fs::read(path)).await
}

/// Reads a whole file as text (`openat(2)`, `read(2)`, file pool). Cancel-safe.
///
/// ```
/// # anello::example! {
/// assert!(anello::fs::read_to_string("/proc/version").await?.starts_with("Linux"));
/// # }
/// ```
///
/// # Errors
/// See [`read`]. Also returns `InvalidData` if the file is not valid UTF-8.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    on_path_opening("read", NameChange::None, path, |path| std::fs::read_to_string(path)).await
}

/// Writes a whole file, which is created or truncated first (`openat(2)`, `write(2)`, file pool).
///
/// Borrowed bytes are copied. Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("file");
/// anello::fs::write(&path, "content").await?;
/// assert_eq!(anello::fs::read(&path).await?, b"content");
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
pub async fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    let content = content.as_ref().to_vec();
    let write = move |path: &Path| std::fs::write(path, content);
    on_path_opening("write", NameChange::Replace, path, write).await
}

/// Copies the content and permissions of a file, and returns the number of bytes copied.
///
/// The target is created or truncated. Copies within the kernel where possible (`copy_file_range(2)`, Linux 4.5, or
/// `sendfile(2)`), in one operation on the file pool. Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let (from, to) = (directory.path().join("from"), directory.path().join("to"));
/// anello::fs::write(&from, "content").await?;
/// assert_eq!(anello::fs::copy(&from, &to).await?, 7);
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with both paths in its message ([`PathError`](super::PathError)).
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let copy = |disk: Disk, from: &Path, to: &Path| {
        disk.on_path(NameChange::Replace, to, || std::fs::copy(from, to))
    };
    on_paths_opening("copy", "to", from, to, copy).await
}

/// Renames a file or directory, and replaces the target if it exists (`rename(2)`, file pool).
///
/// Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let (from, to) = (directory.path().join("from"), directory.path().join("to"));
/// anello::fs::write(&from, "content").await?;
/// anello::fs::rename(&from, &to).await?;
/// assert_eq!(anello::fs::read(&to).await?, b"content");
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with both paths in its message ([`PathError`](super::PathError)), for example
/// `EXDEV` if the target is on another file system.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let rename = |disk: Disk, from: &Path, to: &Path| disk.rename(from, to, || std::fs::rename(from, to));
    on_paths("rename", "to", from, to, rename).await
}

/// Removes a file or symbolic link (`unlink(2)`, file pool). Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("file");
/// anello::fs::write(&path, "content").await?;
/// anello::fs::remove_file(&path).await?;
/// assert!(!anello::fs::try_exists(&path).await?);
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    on_path_changing("remove", NameChange::Remove, path, |path| std::fs::remove_file(path)).await
}

/// Returns the metadata of a file or directory, and follows symbolic links (`statx(2)`, file pool). Cancel-safe.
///
/// ```
/// # anello::example! {
/// assert!(anello::fs::metadata("/proc").await?.is_dir());
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    on_path("read metadata of", path, |path| std::fs::metadata(path)).await
}

/// Returns the metadata of a file, directory or symbolic link, without following the link (`statx(2)`, file pool).
/// Cancel-safe.
///
/// ```
/// # anello::example! {
/// assert!(anello::fs::symlink_metadata("/proc/self").await?.is_symlink());
/// # }
/// ```
///
/// # Errors
/// See [`metadata`].
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    on_path("read metadata of", path, |path| std::fs::symlink_metadata(path)).await
}

/// Returns whether the path exists, and follows symbolic links (`stat(2)`, file pool). Cancel-safe.
///
/// ```
/// # anello::example! {
/// assert!(anello::fs::try_exists("/proc/version").await?);
/// assert!(!anello::fs::try_exists("/no/such/file").await?);
/// # }
/// ```
///
/// # Errors
/// Returns an error if this cannot be determined, for example `EACCES`, with the path in its message
/// ([`PathError`](super::PathError)).
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    on_path("check existence of", path, Path::try_exists).await
}

/// Changes the permissions of a file or directory, and follows symbolic links (`chmod(2)`, file pool). Dropping the
/// future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("file");
/// use std::fs::Permissions;
/// use std::os::unix::fs::PermissionsExt;
///
/// anello::fs::write(&path, "content").await?;
/// anello::fs::set_permissions(&path, Permissions::from_mode(0o400)).await?;
/// assert!(anello::fs::metadata(&path).await?.permissions().readonly());
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    on_path("set permissions of", path, move |path| std::fs::set_permissions(path, permissions)).await
}

/// Creates a hard link to a file (`linkat(2)`, file pool). Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let (original, link) = (directory.path().join("original"), directory.path().join("link"));
/// anello::fs::write(&original, "content").await?;
/// anello::fs::hard_link(&original, &link).await?;
/// assert_eq!(anello::fs::read(&link).await?, b"content");
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with both paths in its message ([`PathError`](super::PathError)).
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let create = |disk: Disk, original: &Path, link: &Path| {
        disk.on_path(NameChange::Create, link, || std::fs::hard_link(original, link))
    };
    on_paths("link", "as", original, link, create).await
}

/// Creates a symbolic link (`symlink(2)`, file pool). Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let link = directory.path().join("link");
/// anello::fs::symlink("/proc/version", &link).await?;
/// assert!(anello::fs::read(&link).await?.starts_with(b"Linux"));
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with both paths in its message ([`PathError`](super::PathError)).
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let create =
        |disk: Disk, original: &Path, link: &Path| disk.read(|| std::os::unix::fs::symlink(original, link));
    on_paths("create symbolic link to", "at", original, link, create).await
}

/// Returns the target of a symbolic link (`readlink(2)`, file pool). Cancel-safe.
///
/// ```
/// # anello::example! {
/// let target = anello::fs::read_link("/proc/self").await?;
/// assert_eq!(target.to_str(), Some(&*std::process::id().to_string()));
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)): `EINVAL` if
/// the path is not a symbolic link.
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    on_path("read link", path, |path| std::fs::read_link(path)).await
}

/// Returns the absolute path without symbolic links (`realpath(3)`, file pool). Cancel-safe.
///
/// ```
/// # anello::example! {
/// let path = anello::fs::canonicalize("/proc/../proc/version").await?;
/// assert_eq!(path.to_str(), Some("/proc/version"));
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    on_path("resolve", path, |path| std::fs::canonicalize(path)).await
}
