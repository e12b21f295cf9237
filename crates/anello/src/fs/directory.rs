//! Creating and removing directories.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::path_error::{on_path, on_path_changing};
use crate::driver::NameChange;

/// Options for creating a directory, as in `std::fs::DirBuilder`.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("a/b");
/// anello::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).await?;
/// assert!(path.is_dir());
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct DirBuilder {
    is_recursive: bool,
    mode: Option<u32>,
}

impl DirBuilder {
    /// Creates options for one directory with the mode 0o777, from which the process's umask is subtracted.
    ///
    /// ```
    /// # anello::example! {
    /// let error = anello::fs::DirBuilder::new().create("/proc").await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    /// # }
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether missing parent directories are created. An existing directory is then not an error.
    ///
    /// ```
    /// # anello::example! {
    /// anello::fs::DirBuilder::new().recursive(true).create("/proc/self").await?;
    /// # }
    /// ```
    pub fn recursive(&mut self, recursive: bool) -> &mut Self {
        self.is_recursive = recursive;
        self
    }

    /// Sets the permissions of created directories, from which the process's umask is subtracted.
    ///
    /// ```
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("private");
    /// use std::os::unix::fs::PermissionsExt;
    ///
    /// anello::fs::DirBuilder::new().mode(0o700).create(&path).await?;
    /// assert_eq!(path.metadata()?.permissions().mode() & 0o777, 0o700);
    /// # }
    /// ```
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Creates the directory (`mkdir(2)`, file pool). Dropping the future does not cancel the operation.
    ///
    /// ```
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("new");
    /// anello::fs::DirBuilder::new().create(&path).await?;
    /// assert!(path.is_dir());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(self.is_recursive);
        if let Some(mode) = self.mode {
            builder.mode(mode);
        }
        let create = move |path: &Path| builder.create(path);
        on_path_changing("create directory", NameChange::Create, path, create).await
    }
}

/// Creates a directory (`mkdir(2)`, file pool). Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("new");
/// anello::fs::create_dir(&path).await?;
/// assert!(path.is_dir());
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)), for example
/// `EEXIST`, or `ENOENT` if the parent directory is missing.
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().create(path).await
}

/// Creates a directory and its missing parents (`mkdir(2)`, file pool). An existing directory is not an error. Dropping
/// the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("a/b/c");
/// anello::fs::create_dir_all(&path).await?;
/// anello::fs::create_dir_all(&path).await?;
/// assert!(path.is_dir());
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)), for example
/// `ENOTDIR`.
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(path).await
}

/// Removes an empty directory (`rmdir(2)`, file pool). Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("new");
/// anello::fs::create_dir(&path).await?;
/// anello::fs::remove_dir(&path).await?;
/// assert!(!path.exists());
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)), for example
/// `ENOTEMPTY`.
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    on_path("remove directory", path, |path| std::fs::remove_dir(path)).await
}

/// Removes a directory and everything in it, without following symbolic links (`unlinkat(2)`, one operation on the file
/// pool). Dropping the future does not cancel the operation.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("new");
/// anello::fs::create_dir_all(path.join("child")).await?;
/// anello::fs::remove_dir_all(&path).await?;
/// assert!(!path.exists());
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)). A part of the
/// content may have been removed.
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    on_path("remove directory", path, |path| std::fs::remove_dir_all(path)).await
}
