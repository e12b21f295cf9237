//! The file type, and its operations other than reads and writes.

use std::fmt;
use std::fs::{FileTimes, Metadata, Permissions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::cursor::Cursor;
use super::residency_cache::ResidencyCache;
use crate::driver::Disk;
use crate::executor::{FileQueue, JoinHandle, disk, spawn_file_operation};

/// Offset beyond the end of any file.
const PROBE_OFFSET: u64 = 1 << 62;

/// An open file.
///
/// A file is read and written in two ways. [`read_at`](Self::read_at), [`write_at`](Self::write_at) and the related
/// methods take an offset and can run concurrently. [`read`](Self::read), [`write`](Self::write) and
/// [`seek`](Self::seek) use the cursor of the file, one operation at a time, and behave like those of tokio's `File`.
/// With the features `compat-tokio` and `compat-futures-io`, the file implements the `AsyncRead`, `AsyncWrite` and
/// `AsyncSeek` traits of tokio and futures.
///
/// Unlike in tokio, all methods take `&self`. Clones share one descriptor and one cursor. The descriptor is closed when
/// the last clone is dropped and no operation uses it any longer. Accepted writes are completed even if the file is
/// dropped, but their errors are then lost: call [`flush`](Self::flush) or [`sync_all`](Self::sync_all) first.
///
/// Use files, directories and block devices only. A read from a pipe or terminal would occupy a thread of the file pool
/// until data arrives.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("log");
/// use anello::fs::File;
///
/// let file = File::create(&path).await?;
/// file.write_all(b"one line\n").await?;
/// file.sync_all().await?;
/// assert_eq!(file.metadata().await?.len(), 9);
/// # }
/// ```
#[derive(Clone)]
pub struct File {
    pub(super) inner: Arc<FileInner>,
}

pub(super) struct FileInner {
    /// Separate from the other fields, so that the driver can own a reference. Dropping it runs no application code.
    pub file: Arc<std::fs::File>,
    pub residency: Mutex<ResidencyCache>,
    pub cursor: Mutex<Cursor>,
    flags: OnceLock<OFlags>,
    supports_nowait: OnceLock<bool>,
    /// Set if the file system cannot write without waiting.
    writes_wait: AtomicBool,
    /// Writes through the page cache on the file pool.
    cached_writes: Arc<FileQueue>,
}

impl FileInner {
    pub fn cursor(&self) -> MutexGuard<'_, Cursor> {
        // No application code runs while the lock is held, so a panic cannot poison it.
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the file was opened with `O_DIRECT`.
    pub fn is_direct(&self) -> bool {
        self.flags().contains(OFlags::DIRECT)
    }

    /// Returns whether writes wait for the disk, without the lock on the file (`O_SYNC`, `O_DSYNC`).
    pub fn is_synchronous(&self) -> bool {
        self.flags().intersects(OFlags::SYNC | OFlags::DSYNC)
    }

    /// Returns the flags with which the file was opened (`fcntl(2)`, once per file).
    fn flags(&self) -> OFlags {
        *self.flags.get_or_init(|| rustix::fs::fcntl_getfl(&*self.file).unwrap_or(OFlags::empty()))
    }

    /// Returns whether the kernel can start operations on the file without waiting. Otherwise, the ring would run them on
    /// its few kernel threads.
    pub fn supports_nowait(&self) -> bool {
        *self.supports_nowait.get_or_init(|| {
            // Nothing is read beyond the end of the file. Files open only for writing are assumed to support it.
            let mut byte = [0];
            let buffers = &mut [IoSliceMut::new(&mut byte)];
            let read = rustix::io::preadv2(&*self.file, buffers, PROBE_OFFSET, ReadWriteFlags::NOWAIT);
            !matches!(read, Err(Errno::OPNOTSUPP | Errno::NOSYS))
        })
    }

    /// Returns whether a write with `RWF_NOWAIT` may succeed. Without the page cache, the flag does not prevent the call
    /// from waiting for the disk.
    pub fn may_write_now(&self) -> bool {
        !self.writes_wait.load(Ordering::Relaxed) && !self.is_direct()
    }

    /// Runs a write at an offset on the file pool. File systems that support `RWF_NOWAIT` perform the writes of a file
    /// through the page cache sequentially, so these occupy one thread. Other writes may run in parallel.
    pub fn spawn_write<T: Send + 'static>(
        &self,
        write: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        if self.is_direct() || self.is_synchronous() || !self.supports_nowait() {
            return spawn_file_operation(write);
        }
        self.cached_writes.spawn(write)
    }

    pub fn disable_writes_now(&self) {
        self.writes_wait.store(true, Ordering::Relaxed);
    }
}

impl File {
    /// Converts a standard file. Its cursor keeps its position.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(std::fs::File::open("/proc/version")?);
    /// let mut text = String::new();
    /// file.read_to_string(&mut text).await?;
    /// assert!(text.starts_with("Linux"));
    /// # }
    /// ```
    pub fn from_std(file: std::fs::File) -> Self {
        Self {
            inner: Arc::new(FileInner {
                file: Arc::new(file),
                residency: Mutex::default(),
                cursor: Mutex::default(),
                flags: OnceLock::new(),
                supports_nowait: OnceLock::new(),
                writes_wait: AtomicBool::new(false),
                cached_writes: Arc::default(),
            }),
        }
    }

    /// Returns the underlying file, which all clones share. Its cursor is valid only while no operation at the cursor
    /// is pending.
    ///
    /// ```
    /// # use anello::fs::File;
    /// # anello::example! {
    /// let file = File::open("/proc/version").await?;
    /// assert!(file.as_std().metadata()?.is_file());
    /// # }
    /// ```
    pub fn as_std(&self) -> &std::fs::File {
        &self.inner.file
    }

    /// Waits for accepted writes and converts the file into a standard file, whose cursor is at the position that
    /// follows the last returned byte. Cancel-safe, but dropping the future drops the file.
    ///
    /// If a clone or an operation in flight still uses the descriptor, returns a duplicate of it (`fcntl(2)` with
    /// `F_DUPFD_CLOEXEC`). tokio's method cannot fail, because its files cannot be cloned.
    ///
    /// ```
    /// # use anello::fs::File;
    /// # anello::example! {
    /// let file: std::fs::File = File::open("/proc/version").await?.into_std().await?;
    /// assert!(file.metadata()?.is_file());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of an accepted write, of `lseek(2)`, or of duplicating the descriptor (`EMFILE`).
    pub async fn into_std(self) -> io::Result<std::fs::File> {
        self.flush().await?;
        self.align_cursor().await?;
        let shared = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner.file,
            Err(inner) => Arc::clone(&inner.file),
        };
        Arc::try_unwrap(shared).or_else(|shared| shared.try_clone())
    }

    /// Waits for accepted writes and returns a new file with a duplicate of the descriptor (`fcntl(2)` with
    /// `F_DUPFD_CLOEXEC`). Both files share the cursor in the kernel. Cancel-safe.
    ///
    /// Unlike a duplicate, a clone also shares operations in flight, and needs no descriptor of its own.
    ///
    /// ```
    /// # use anello::fs::File;
    /// # anello::example! {
    /// let file = File::open("/proc/version").await?;
    /// let duplicate = file.try_clone().await?;
    /// file.read(&mut [0; 6]).await?;
    /// assert_eq!(duplicate.stream_position().await?, 6);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of duplicating the descriptor, for example `EMFILE`.
    pub async fn try_clone(&self) -> io::Result<Self> {
        self.align_cursor().await?;
        self.inner.file.try_clone().map(Self::from_std)
    }

    /// Waits for accepted writes, then writes the file's data and metadata to the disk (`fsync(2)`, file pool).
    ///
    /// Dropping the future does not cancel the operation.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.write_all(b"kept").await?;
    /// file.sync_all().await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of an accepted write or of the system call, for example `EIO` if the disk fails.
    pub async fn sync_all(&self) -> io::Result<()> {
        self.flush().await?;
        self.run_on_disk(|disk, file| disk.sync(file, || file.sync_all())).await
    }

    /// Like [`sync_all`](Self::sync_all), but writes only the metadata that is needed to read the data
    /// (`fdatasync(2)`, file pool).
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.write_at(b"kept", 0).await?;
    /// file.sync_data().await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of an accepted write or of the system call.
    pub async fn sync_data(&self) -> io::Result<()> {
        self.flush().await?;
        self.run_on_disk(|disk, file| disk.sync(file, || file.sync_data())).await
    }

    /// Waits for accepted writes, then truncates or extends the file to `length` bytes (`ftruncate(2)`, file pool). New
    /// bytes are zero. The cursor does not move. Dropping the future does not cancel the operation.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.set_len(10).await?;
    /// assert_eq!(file.metadata().await?.len(), 10);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of an accepted write or of the system call, for example `EFBIG`.
    pub async fn set_len(&self, length: u64) -> io::Result<()> {
        self.flush().await?;
        self.run_on_disk(move |disk, file| disk.set_length(file, length, || file.set_len(length))).await
    }

    /// Allocates disk space for `length` bytes from `offset` and extends the file if necessary (`fallocate(2)`, file
    /// pool). Later writes to the range cannot fail for lack of space. New bytes are zero. Dropping the future does not
    /// cancel the operation.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// match file.allocate(0, 1 << 20).await {
    ///     Ok(()) => assert_eq!(file.metadata().await?.len(), 1 << 20),
    ///     Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Unsupported),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of an accepted write or of the system call, for example `ENOSPC`, or `EOPNOTSUPP` if the file
    /// system does not support it.
    pub async fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.flush().await?;
        let allocate = move |file: &std::fs::File| {
            Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length)?)
        };
        self.run_on_disk(move |disk, file| disk.set_length(file, u64::MAX, || allocate(file))).await
    }

    /// Waits for accepted writes, then returns the file's metadata (`statx(2)`, file pool). Cancel-safe.
    ///
    /// ```
    /// # use anello::fs::File;
    /// # anello::example! {
    /// assert!(File::open("/proc/version").await?.metadata().await?.is_file());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        self.wait_for_cursor().await;
        self.run(std::fs::File::metadata).await
    }

    /// Changes the file's permissions (`fchmod(2)`, file pool). Dropping the future does not cancel the operation.
    ///
    /// ```
    /// # anello::example! {
    /// use std::os::unix::fs::PermissionsExt;
    ///
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.set_permissions(std::fs::Permissions::from_mode(0o400)).await?;
    /// assert!(file.metadata().await?.permissions().readonly());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, for example `EPERM`.
    pub async fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        self.run(move |file| file.set_permissions(permissions)).await
    }

    /// Waits for accepted writes, then changes the file's timestamps (`futimens(3)`, file pool). Dropping the future
    /// does not cancel the operation.
    ///
    /// ```
    /// # anello::example! {
    /// use std::time::SystemTime;
    ///
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// let times = std::fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    /// file.set_times(times).await?;
    /// assert_eq!(file.metadata().await?.modified()?, SystemTime::UNIX_EPOCH);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, for example `EPERM`.
    pub async fn set_times(&self, times: FileTimes) -> io::Result<()> {
        self.wait_for_cursor().await;
        self.run(move |file| file.set_times(times)).await
    }

    /// Runs an operation on the file pool.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.run_on_disk(|disk, file| disk.read(|| operation(file))).await
    }

    /// The same for an operation that changes the file.
    async fn run_on_disk<T: Send + 'static>(
        &self,
        operation: impl FnOnce(Disk, &std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (file, disk) = (Arc::clone(&self.inner.file), disk());
        spawn_file_operation(move || operation(disk, &file)).await?
    }

    /// Returns the cursor's state when no operation at the cursor is running.
    pub(super) fn poll_cursor(&self, context: &Context<'_>) -> Poll<MutexGuard<'_, Cursor>> {
        loop {
            let cursor = self.inner.cursor();
            if !cursor.is_busy {
                return Poll::Ready(cursor);
            }
            drop(cursor);
            // Cloning and dropping a waker can run arbitrary code, so neither happens while the lock is held.
            let waker = context.waker().clone();
            let mut cursor = self.inner.cursor();
            if cursor.is_busy {
                if !cursor.wakers.iter().any(|current| current.will_wake(&waker)) {
                    cursor.wakers.push(waker);
                }
                return Poll::Pending;
            }
            drop(cursor);
        }
    }

    async fn wait_for_cursor(&self) {
        std::future::poll_fn(|context| self.poll_cursor(context).map(drop)).await;
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self::from_std(file)
    }
}

impl From<OwnedFd> for File {
    fn from(descriptor: OwnedFd) -> Self {
        Self::from_std(descriptor.into())
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.file.as_raw_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.file.fmt(formatter)
    }
}
