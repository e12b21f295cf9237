//! Listing directories.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{FileType, Metadata};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::path_error::with_path;
use super::transfer::{poll_budget, spend_budget};
use crate::executor::{JoinHandle, disk, spawn_file_operation};

/// Number of entries that one operation on the file pool reads.
const ENTRIES_PER_OPERATION: usize = 32;

/// Opens a directory to list its entries (`openat(2)` and `getdents64(2)`, file pool). Cancel-safe.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path();
/// anello::fs::write(path.join("file"), "content").await?;
/// let mut entries = anello::fs::read_dir(path).await?;
/// while let Some(entry) = entries.next_entry().await? {
///     assert_eq!(entry.file_name(), "file");
///     assert_eq!(entry.metadata().await?.len(), 7);
/// }
/// # }
/// ```
///
/// # Errors
/// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)), for example
/// `ENOTDIR`.
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let (path, disk) = (path.as_ref().to_owned(), disk());
    let first = spawn_file_operation(move || match disk.read(|| std::fs::read_dir(&path)) {
        Ok(directory) => Ok(Batch::read(directory, path)),
        Err(error) => Err(with_path("list", path, error)),
    });
    Ok(ReadDir { state: State::Ready(first.await??) })
}

/// The entries of a directory, in no particular order and without `.` and `..`. Returned by [`read_dir`].
///
/// ```
/// # anello::example! {
/// let mut entries = anello::fs::read_dir("/proc/self").await?;
/// let mut names = Vec::new();
/// while let Some(entry) = entries.next_entry().await? {
///     names.push(entry.file_name());
/// }
/// assert!(names.iter().any(|name| name == "status"));
/// # }
/// ```
#[must_use = "entries are read only when `next_entry` is called"]
pub struct ReadDir {
    state: State,
}

enum State {
    Ready(Batch),
    Reading(JoinHandle<Batch>),
    /// The file pool has failed.
    Failed,
}

struct Batch {
    entries: VecDeque<io::Result<DirEntry>>,
    /// `None` if all entries have been read.
    rest: Option<(std::fs::ReadDir, PathBuf)>,
}

impl Batch {
    fn read(mut directory: std::fs::ReadDir, path: PathBuf) -> Self {
        let mut entries = VecDeque::with_capacity(ENTRIES_PER_OPERATION);
        for entry in directory.by_ref().take(ENTRIES_PER_OPERATION) {
            let is_error = entry.is_err();
            entries.push_back(match entry {
                Ok(entry) => Ok(DirEntry { file_type: entry.file_type().ok(), entry: Arc::new(entry) }),
                Err(error) => Err(with_path("list", path.clone(), error)),
            });
            if is_error {
                break;
            }
        }
        let may_have_more = entries.len() == ENTRIES_PER_OPERATION || matches!(entries.back(), Some(Err(_)));
        Self { entries, rest: may_have_more.then_some((directory, path)) }
    }
}

impl ReadDir {
    /// Returns the next entry, or `None` after the last one. Reads up to 32 entries at a time on the file pool
    /// (`getdents64(2)`). Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// let mut entries = anello::fs::read_dir(directory.path()).await?;
    /// assert!(entries.next_entry().await?.is_none());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)).
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        poll_fn(|context| self.poll_next_entry(context)).await
    }

    /// Polls for the next entry, as [`next_entry`](Self::next_entry) does. For implementations of `Stream`.
    ///
    /// ```
    /// # anello::example! {
    /// let mut entries = anello::fs::read_dir("/proc/self").await?;
    /// let first = std::future::poll_fn(|context| entries.poll_next_entry(context)).await?;
    /// assert!(first.is_some());
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`next_entry`](Self::next_entry).
    pub fn poll_next_entry(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<DirEntry>>> {
        ready!(poll_budget(context));
        loop {
            match &mut self.state {
                State::Ready(batch) => {
                    spend_budget(0);
                    if let Some(entry) = batch.entries.pop_front() {
                        return Poll::Ready(entry.map(Some));
                    }
                    let Some((directory, path)) = batch.rest.take() else { return Poll::Ready(Ok(None)) };
                    let next = spawn_file_operation(move || Batch::read(directory, path));
                    self.state = State::Reading(next);
                }
                State::Reading(next) => match ready!(Pin::new(next).poll(context)) {
                    Ok(batch) => self.state = State::Ready(batch),
                    Err(error) => {
                        self.state = State::Failed;
                        return Poll::Ready(Err(error.into()));
                    }
                },
                State::Failed => return Poll::Ready(Ok(None)),
            }
        }
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReadDir").finish_non_exhaustive()
    }
}

/// An entry of a directory, returned by [`ReadDir::next_entry`].
///
/// ```
/// # anello::example! {
/// let entry = anello::fs::read_dir("/proc/self/task").await?.next_entry().await?.unwrap();
/// assert!(entry.file_type().await?.is_dir());
/// # }
/// ```
#[derive(Clone)]
pub struct DirEntry {
    entry: Arc<std::fs::DirEntry>,
    /// `None` if it could not be determined when the entry was read.
    file_type: Option<FileType>,
}

impl DirEntry {
    /// Returns the path of the directory as given to [`read_dir`], joined with the name.
    ///
    /// ```
    /// # anello::example! {
    /// let entry = anello::fs::read_dir("/proc/self/ns").await?.next_entry().await?.unwrap();
    /// assert!(entry.path().starts_with("/proc/self/ns"));
    /// # }
    /// ```
    pub fn path(&self) -> PathBuf {
        self.entry.path()
    }

    /// Returns the name without the directory.
    ///
    /// ```
    /// # anello::example! {
    /// let entry = anello::fs::read_dir("/proc/self/ns").await?.next_entry().await?.unwrap();
    /// assert_eq!(Some(&*entry.file_name()), entry.path().file_name());
    /// # }
    /// ```
    pub fn file_name(&self) -> OsString {
        self.entry.file_name()
    }

    /// Returns the inode number.
    ///
    /// ```
    /// # anello::example! {
    /// let entry = anello::fs::read_dir("/proc/self").await?.next_entry().await?.unwrap();
    /// assert_ne!(entry.ino(), 0);
    /// # }
    /// ```
    pub fn ino(&self) -> u64 {
        self.entry.ino()
    }

    /// Returns the metadata, without following a symbolic link (`fstatat(2)`, file pool). Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// let entry = anello::fs::read_dir("/proc/self/ns").await?.next_entry().await?.unwrap();
    /// assert!(entry.metadata().await?.is_symlink());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)): `ENOENT`
    /// if the entry has been removed.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let entry = Arc::clone(&self.entry);
        let read =
            move || entry.metadata().map_err(|error| with_path("read metadata of", entry.path(), error));
        spawn_file_operation(read).await?
    }

    /// Returns the type of the entry, without following a symbolic link.
    ///
    /// Most file systems report the type with the entry. Otherwise, and if that failed, calls `fstatat(2)` on the file
    /// pool. Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// let entry = anello::fs::read_dir("/proc/self/ns").await?.next_entry().await?.unwrap();
    /// assert!(entry.file_type().await?.is_symlink());
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`metadata`](Self::metadata).
    pub async fn file_type(&self) -> io::Result<FileType> {
        match self.file_type {
            Some(file_type) => Ok(file_type),
            None => self.metadata().await.map(|metadata| metadata.file_type()),
        }
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entry.fmt(formatter)
    }
}
