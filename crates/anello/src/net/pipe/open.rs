//! Opening FIFOs by their path.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::check::check_pipe;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::driver::with_context;
use crate::readiness::PipeEnd;

/// Options for opening a FIFO by its path.
///
/// ```
/// use anello::net::pipe;
///
/// anello::Runtime::new()?.block_on(async {
///     // The path is not a FIFO.
///     let error = pipe::OpenOptions::new().open_receiver("/proc/self/exe").unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    read_write: bool,
    unchecked: bool,
}

impl OpenOptions {
    /// Returns the default options.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::pipe::OpenOptions;
    /// let error = OpenOptions::new().open_sender("/no/such/fifo").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # }
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to open the FIFO for reading and writing. The default is `false`.
    ///
    /// A receiver then never reads EOF, because it is itself a possible writer, and a sender can be opened before there
    /// is a receiver. This is specific to Linux.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::pipe::OpenOptions;
    /// # use rustix::fs::{CWD, FileType, Mode};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fifo");
    /// rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0)?;
    /// // No process has opened the FIFO for reading.
    /// assert!(OpenOptions::new().open_sender(&path).is_err());
    /// let sender = OpenOptions::new().read_write(true).open_sender(&path)?;
    /// assert_eq!(sender.write(b"ciao").await?, 4);
    /// # }
    /// ```
    #[must_use]
    pub fn read_write(mut self, value: bool) -> Self {
        self.read_write = value;
        self
    }

    /// Sets whether to skip the check that the file is a FIFO. The default is `false`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::pipe::OpenOptions;
    /// # use std::io::ErrorKind;
    /// let error = OpenOptions::new().open_receiver("/dev/random").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// let receiver = OpenOptions::new().unchecked(true).open_receiver("/dev/random")?;
    /// assert!(receiver.read(&mut [0; 16]).await? > 0);
    /// # }
    /// ```
    #[must_use]
    pub fn unchecked(mut self, value: bool) -> Self {
        self.unchecked = value;
        self
    }

    /// Opens a FIFO for reading (`open(2)` with `O_NONBLOCK`). Does not wait for a writer. Reads wait until a writer has
    /// opened the FIFO, and has written bytes or closed it.
    ///
    /// # Errors
    /// Returns the error of `open(2)`, or `InvalidInput` if the file is not a FIFO; both contain the path. Returns
    /// `Unsupported` on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::pipe::OpenOptions;
    /// # use rustix::fs::{CWD, FileType, Mode};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fifo");
    /// rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0)?;
    /// let receiver = OpenOptions::new().open_receiver(&path)?;
    /// let sender = OpenOptions::new().open_sender(&path)?;
    /// sender.write_all(b"ciao").await?;
    /// assert_eq!(receiver.read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    #[track_caller]
    pub fn open_receiver(&self, path: impl AsRef<Path>) -> io::Result<Receiver> {
        let descriptor = self.open(path.as_ref(), OFlags::RDONLY)?;
        PipeEnd::new_read(descriptor).map(Receiver)
    }

    /// Opens a FIFO for writing (`open(2)` with `O_NONBLOCK`).
    ///
    /// # Errors
    /// Returns `ENXIO` if no process has opened the FIFO for reading. Also see [`open_receiver`](Self::open_receiver).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::pipe::OpenOptions;
    /// # use rustix::fs::{CWD, FileType, Mode};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fifo");
    /// rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0)?;
    /// let error = OpenOptions::new().open_sender(&path).unwrap_err();
    /// assert_eq!(anello::net::raw_os_error(&error), Some(6)); // ENXIO: there is no reader.
    /// let _receiver = OpenOptions::new().open_receiver(&path)?;
    /// assert!(OpenOptions::new().open_sender(&path).is_ok());
    /// # }
    /// ```
    #[track_caller]
    pub fn open_sender(&self, path: impl AsRef<Path>) -> io::Result<Sender> {
        let descriptor = self.open(path.as_ref(), OFlags::WRONLY)?;
        PipeEnd::new_write(descriptor).map(Sender)
    }

    fn open(&self, path: &Path, access: OFlags) -> io::Result<OwnedFd> {
        self.open_checked(path, access)
            .map_err(|error| with_context(format_args!("cannot open {}", path.display()), error))
    }

    fn open_checked(&self, path: &Path, access: OFlags) -> io::Result<OwnedFd> {
        let access = if self.read_write { OFlags::RDWR } else { access };
        let descriptor = rustix::fs::open(
            path,
            access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        )?;
        if !self.unchecked {
            check_pipe(&descriptor)?;
        }
        Ok(descriptor)
    }
}
