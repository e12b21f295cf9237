//! Errors of operations on paths, and the helpers that run such operations on the file pool.

use std::error::Error;
use std::fmt;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::driver::{Disk, NameChange};
use crate::executor::{disk, spawn_blocking, spawn_file_operation};

/// The cause of an error that a function of [`fs`](crate::fs) returns for a path.
///
/// The message of such an [`io::Error`] contains the operation and the path, and its [`kind`](io::Error::kind) is that
/// of the system call. An `io::Error` with a message cannot also return `raw_os_error()`. The error number is available
/// from [`net::raw_os_error`](crate::net::raw_os_error) and from this type:
///
/// ```
/// # anello::example! {
/// use anello::fs::{self, PathError};
///
/// let error = fs::read("/no/such/file").await.unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// assert!(error.to_string().starts_with("cannot read /no/such/file: "));
///
/// let cause: &PathError = error.get_ref().and_then(|cause| cause.downcast_ref()).unwrap();
/// assert_eq!(cause.path(), "/no/such/file");
/// assert_eq!(cause.raw_os_error(), Some(2));
/// # }
/// ```
#[derive(Debug)]
pub struct PathError {
    operation: &'static str,
    path: PathBuf,
    target: Option<(&'static str, PathBuf)>,
    source: io::Error,
}

impl PathError {
    /// Returns the path. For an operation on two paths, this is the first one.
    ///
    /// ```
    /// # use anello::fs::{self, PathError};
    /// # anello::example! {
    /// let error = fs::rename("/no/such/file", "/tmp/to").await.unwrap_err();
    /// let cause: &PathError = error.get_ref().and_then(|cause| cause.downcast_ref()).unwrap();
    /// assert_eq!(cause.path(), "/no/such/file");
    /// # }
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error number of the system call, or `None` if the error has another cause, such as invalid UTF-8.
    ///
    /// ```
    /// # use anello::fs::{self, PathError};
    /// # anello::example! {
    /// let error = fs::read_dir("/proc/version").await.unwrap_err();
    /// let cause: &PathError = error.get_ref().and_then(|cause| cause.downcast_ref()).unwrap();
    /// assert_eq!(cause.raw_os_error(), Some(20));
    /// # }
    /// ```
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot {} {}", self.operation, self.path.display())?;
        if let Some((preposition, target)) = &self.target {
            write!(formatter, " {preposition} {}", target.display())?;
        }
        write!(formatter, ": {}", self.source)
    }
}

impl Error for PathError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Adds the operation and the path to an error.
#[cold]
pub(super) fn with_path(operation: &'static str, path: PathBuf, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), PathError { operation, path, target: None, source })
}

/// Runs an operation on a path on the file pool.
pub(super) async fn on_path<T: Send + 'static>(
    operation: &'static str,
    path: impl AsRef<Path>,
    run: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    on_path_changing(operation, NameChange::None, path, run).await
}

/// The same for an operation that changes the name or discards the contents of the file.
pub(super) async fn on_path_changing<T: Send + 'static>(
    operation: &'static str,
    change: NameChange,
    path: impl AsRef<Path>,
    run: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (path, disk) = (path.as_ref().to_path_buf(), disk());
    let done = move || {
        let result = disk.on_path(change, &path, || run(path.as_path()));
        result.map_err(|error| with_path(operation, path, error))
    };
    spawn_file_operation(done).await?
}

/// The same for an operation that opens the file.
pub(super) async fn on_path_opening<T: Send + 'static>(
    operation: &'static str,
    change: NameChange,
    path: impl AsRef<Path>,
    run: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (path, disk) = (path.as_ref().to_path_buf(), disk());
    let opened = [path.clone()];
    let done = move || {
        let result = disk.on_path(change, &path, || run(path.as_path()));
        result.map_err(|error| with_path(operation, path, error))
    };
    run_opening(opened, done).await
}

/// Runs an operation on two paths on the file pool. `run` performs it on the disk. Messages have the form "cannot
/// OPERATION FROM PREPOSITION TO".
pub(super) async fn on_paths<T: Send + 'static>(
    operation: &'static str,
    preposition: &'static str,
    path: impl AsRef<Path>,
    target: impl AsRef<Path>,
    run: impl FnOnce(Disk, &Path, &Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (path, target) = (path.as_ref().to_owned(), target.as_ref().to_owned());
    spawn_file_operation(with_paths(operation, preposition, path, target, run)).await?
}

/// The same for an operation that opens the files.
pub(super) async fn on_paths_opening<T: Send + 'static>(
    operation: &'static str,
    preposition: &'static str,
    path: impl AsRef<Path>,
    target: impl AsRef<Path>,
    run: impl FnOnce(Disk, &Path, &Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (path, target) = (path.as_ref().to_owned(), target.as_ref().to_owned());
    let opened = [path.clone(), target.clone()];
    run_opening(opened, with_paths(operation, preposition, path, target, run)).await
}

fn with_paths<T>(
    operation: &'static str,
    preposition: &'static str,
    path: PathBuf,
    target: PathBuf,
    run: impl FnOnce(Disk, &Path, &Path) -> io::Result<T> + Send,
) -> impl FnOnce() -> io::Result<T> + Send {
    let disk = disk();
    move || {
        run(disk, path.as_path(), target.as_path()).map_err(|source| {
            let target = Some((preposition, target));
            io::Error::new(source.kind(), PathError { operation, path, target, source })
        })
    }
}

/// Runs an operation that opens these paths. Opening a FIFO waits for its other end, without a limit, so this occupies
/// no thread of the file pool.
async fn run_opening<T: Send + 'static, const N: usize>(
    paths: [PathBuf; N],
    operation: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let is_fifo = |path: &PathBuf| path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
    let open = move || if paths.iter().any(is_fifo) { Err(operation) } else { Ok(operation()) };
    match spawn_file_operation(open).await? {
        Ok(result) => result,
        Err(operation) => spawn_blocking(operation).await?,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn fifo_is_opened_outside_file_pool() {
        let directory = tempfile::tempdir().unwrap();
        let [fifo, regular] = ["fifo", "regular"].map(|name| directory.path().join(name));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::write(&regular, "").unwrap();
        let name = || Ok(thread::current().name().map(str::to_owned));
        let open = async |path: &Path| on_path_opening("open", NameChange::None, path, move |_| name()).await;
        let copy = async |from: &Path, to: &Path| {
            on_paths_opening("copy", "to", from, to, move |_, _, _| name()).await
        };
        crate::Runtime::new().unwrap().block_on(async {
            for path in [&regular, directory.path(), Path::new("/no/such/file")] {
                assert_eq!(open(path).await.unwrap().unwrap(), "anello-files");
            }
            assert_eq!(open(&fifo).await.unwrap().unwrap(), "anello-blocking");
            assert_eq!(copy(&fifo, &regular).await.unwrap().unwrap(), "anello-blocking");
            assert_eq!(copy(&regular, &fifo).await.unwrap().unwrap(), "anello-blocking");
            assert_eq!(copy(&regular, &regular).await.unwrap().unwrap(), "anello-files");
        });
    }
}
