//! Options for opening files.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::file::File;
use super::path_error::on_path_opening;
use crate::driver::NameChange;

/// Options for opening a file, as in `std::fs::OpenOptions`.
///
/// ```
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("log");
/// use anello::fs::OpenOptions;
///
/// let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).await?;
/// log.write_all(b"started\n").await?;
/// log.flush().await?;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    options: std::fs::OpenOptions,
    custom_flags: Option<i32>,
    is_direct: bool,
    truncates: bool,
}

impl OpenOptions {
    /// Creates a set of options that are all off.
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// // Opening a file requires at least one kind of access.
    /// assert!(OpenOptions::new().open("/proc/version").await.is_err());
    /// # }
    /// ```
    pub fn new() -> Self {
        Self { options: std::fs::OpenOptions::new(), custom_flags: None, is_direct: false, truncates: false }
    }

    /// Sets whether the file can be read.
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// let file = OpenOptions::new().read(true).open("/proc/version").await?;
    /// assert_eq!(file.read_at(&mut [0; 5], 0).await?, 5);
    /// # }
    /// ```
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.options.read(read);
        self
    }

    /// Sets whether the file can be written.
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// let null = OpenOptions::new().write(true).open("/dev/null").await?;
    /// null.write_all(b"discarded").await?;
    /// # }
    /// ```
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.options.write(write);
        self
    }

    /// Sets whether all writes append to the file (`O_APPEND`), including those with an offset. Implies write access.
    ///
    /// ```
    /// # use anello::fs::{self, OpenOptions};
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("log");
    /// fs::write(&path, "one,").await?;
    /// let log = OpenOptions::new().append(true).open(&path).await?;
    /// log.write_all(b"two").await?;
    /// log.flush().await?;
    /// assert_eq!(fs::read(&path).await?, b"one,two");
    /// # }
    /// ```
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.options.append(append);
        self
    }

    /// Sets whether the file is truncated to no bytes when it is opened (`O_TRUNC`). Requires write access.
    ///
    /// ```
    /// # use anello::fs::{self, OpenOptions};
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("file");
    /// fs::write(&path, "old").await?;
    /// OpenOptions::new().write(true).truncate(true).open(&path).await?;
    /// assert_eq!(fs::read(&path).await?, b"");
    /// # }
    /// ```
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.options.truncate(truncate);
        self.truncates = truncate;
        self
    }

    /// Sets whether a missing file is created (`O_CREAT`). Requires write or append access.
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("file");
    /// OpenOptions::new().write(true).create(true).open(&path).await?;
    /// assert!(path.exists());
    /// # }
    /// ```
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.options.create(create);
        self
    }

    /// Sets whether a new file must be created (`O_CREAT | O_EXCL`). Opening fails with `EEXIST` if the path exists,
    /// even as a symbolic link.
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// let error = OpenOptions::new().write(true).create_new(true).open("/dev/null").await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    /// # }
    /// ```
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.options.create_new(create_new);
        self
    }

    /// Sets the permissions of a file that is created, from which the process's umask is subtracted. The default is
    /// 0o666.
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("secret");
    /// use std::os::unix::fs::PermissionsExt;
    ///
    /// let file = OpenOptions::new().write(true).create(true).mode(0o600).open(&path).await?;
    /// assert_eq!(file.metadata().await?.permissions().mode() & 0o777, 0o600);
    /// # }
    /// ```
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.options.mode(mode);
        self
    }

    /// Sets additional flags for `openat(2)`, such as `libc::O_NOFOLLOW`. Access modes (`O_ACCMODE`) are ignored.
    /// Replaces the flags of earlier calls, but not [`direct`](Self::direct).
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// // This path is a symbolic link, which is not followed.
    /// let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open("/proc/self/exe").await;
    /// assert!(opened.is_err());
    /// # }
    /// ```
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = Some(flags);
        self
    }

    /// Sets whether reads and writes bypass the page cache (`O_DIRECT`).
    ///
    /// Offsets, lengths and buffer addresses must then be multiples of the disk's block size; use
    /// [`AlignedBuf`](super::AlignedBuf), and [`File::read_owned_at`] and [`File::write_owned_at`] to avoid a copy.
    /// Some file systems, such as older tmpfs, do not support direct I/O (`EINVAL`).
    ///
    /// ```
    /// # use anello::fs::{self, AlignedBuf, OpenOptions};
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("file");
    /// fs::write(&path, [7; 4096]).await?;
    /// match OpenOptions::new().read(true).direct(true).open(&path).await {
    ///     Ok(file) => {
    ///         let (read, buffer) = file.read_owned_at(AlignedBuf::new(4096), 0).await;
    ///         assert_eq!(buffer[..read?], [7; 4096]);
    ///     }
    ///     Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput),
    /// }
    /// # }
    /// ```
    pub fn direct(&mut self, direct: bool) -> &mut Self {
        self.is_direct = direct;
        self
    }

    /// Opens the file (`openat(2)`, file pool). Cancel-safe: an abandoned file is closed.
    ///
    /// Opening a FIFO waits for its other end, as in std, on a thread of [`spawn_blocking`](crate::spawn_blocking), which
    /// dropping the future does not release. [`pipe::OpenOptions`](crate::net::pipe::OpenOptions) opens a FIFO without
    /// a thread.
    ///
    /// ```
    /// # use anello::fs::OpenOptions;
    /// # anello::example! {
    /// let error = OpenOptions::new().read(true).open("/no/such/file").await.unwrap_err();
    /// assert!(error.to_string().starts_with("cannot open /no/such/file: No such file"));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, with the path in its message ([`PathError`](super::PathError)): `ENOENT`,
    /// `EACCES`, `EMFILE` and others, or `EINVAL` if the options contradict each other.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = self.options.clone();
        if self.is_direct || self.custom_flags.is_some() {
            let direct = if self.is_direct { libc::O_DIRECT } else { 0 };
            options.custom_flags(self.custom_flags.unwrap_or(0) | direct);
        }
        let change = if self.truncates { NameChange::Replace } else { NameChange::Create };
        on_path_opening("open", change, path, move |path| options.open(path)).await.map(File::from_std)
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// The flags set by `custom_flags` on standard options are lost if [`OpenOptions::custom_flags`] or
/// [`OpenOptions::direct`] is called afterwards.
impl From<std::fs::OpenOptions> for OpenOptions {
    fn from(options: std::fs::OpenOptions) -> Self {
        Self { options, custom_flags: None, is_direct: false, truncates: false }
    }
}

impl File {
    /// Opens a file for reading (`openat(2)`, file pool). Cancel-safe: an abandoned file is closed.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// assert_eq!(file.read(&mut [0; 5]).await?, 5);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`OpenOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file for writing, after creating it if it is missing or truncating it otherwise (`openat(2)`, file
    /// pool). Dropping the future does not cancel the operation; the abandoned file is closed.
    ///
    /// ```
    /// # anello::example! {
    /// let null = anello::fs::File::create("/dev/null").await?;
    /// null.write_all(b"discarded").await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`OpenOptions::open`].
    pub async fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path).await
    }

    /// Creates a file and opens it for reading and writing (`openat(2)` with `O_EXCL`, file pool). Dropping the future
    /// does not cancel the operation; the abandoned file is closed.
    ///
    /// ```
    /// # anello::example! {
    /// let error = anello::fs::File::create_new("/dev/null").await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`OpenOptions::open`]. Also returns `EEXIST` if the path exists.
    pub async fn create_new(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path).await
    }

    /// Returns options for opening a file, which are all off.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::options().read(true).open("/proc/version").await?;
    /// assert!(file.metadata().await?.is_file());
    /// # }
    /// ```
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }
}
