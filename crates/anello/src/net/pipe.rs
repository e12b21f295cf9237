//! Pipes and FIFOs, after tokio's `net::unix::pipe`.
//!
//! Reads and writes are system calls on a descriptor in non-blocking mode (`read(2)`, `write(2)`). If they would block,
//! the task waits for readiness: a multishot poll on io_uring (Linux 5.13), edge-triggered epoll otherwise. All methods
//! take `&self`, so several tasks can use the same end. The simulated driver has no pipes.
//!
//! A write to a pipe without a reader fails with `BrokenPipe`, because Rust programs ignore `SIGPIPE` by default.
//!
//! ```
//! use anello::net::pipe;
//!
//! anello::Runtime::new()?.block_on(async {
//!     let (sender, receiver) = pipe::pipe()?;
//!     sender.write_all(b"one pipe").await?;
//!     drop(sender);
//!     let mut text = Vec::new();
//!     receiver.read_to_end(&mut text).await?;
//!     assert_eq!(text, b"one pipe");
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::task::{Context, Poll, ready};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::pipe::PipeFlags;

use crate::driver::{Direction, Interest, Ready, unexpected_eof};
use crate::readiness::PipeEnd;

/// Creates a pipe (`pipe2(2)`), and returns its write end and its read end.
///
/// # Errors
/// Returns an error if the process has no descriptors left, or on the simulated driver (`Unsupported`).
///
/// # Panics
/// Panics if no runtime is running on this thread.
#[track_caller]
pub fn pipe() -> io::Result<(Sender, Receiver)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((Sender(PipeEnd::new_write(write)?), Receiver(PipeEnd::new_read(read)?)))
}

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
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to open the FIFO for reading and writing. The default is `false`.
    ///
    /// A receiver then never reads EOF, because it is itself a possible writer, and a sender can be opened before there
    /// is a receiver. This is specific to Linux.
    #[must_use]
    pub fn read_write(mut self, value: bool) -> Self {
        self.read_write = value;
        self
    }

    /// Sets whether to skip the check that the file is a FIFO. The default is `false`.
    #[must_use]
    pub fn unchecked(mut self, value: bool) -> Self {
        self.unchecked = value;
        self
    }

    /// Opens a FIFO for reading (`open(2)` with `O_NONBLOCK`). Does not wait for a writer: until there is one, reads
    /// return EOF.
    ///
    /// # Errors
    /// Returns the error of `open(2)`, `InvalidInput` if the file is not a FIFO, and `Unsupported` on the simulated
    /// driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
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
    #[track_caller]
    pub fn open_sender(&self, path: impl AsRef<Path>) -> io::Result<Sender> {
        let descriptor = self.open(path.as_ref(), OFlags::WRONLY)?;
        PipeEnd::new_write(descriptor).map(Sender)
    }

    fn open(&self, path: &Path, access: OFlags) -> io::Result<OwnedFd> {
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

fn check_pipe(descriptor: &OwnedFd) -> io::Result<()> {
    match FileType::from_raw_mode(rustix::fs::fstat(descriptor)?.st_mode) {
        FileType::Fifo => Ok(()),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cannot use the file as a pipe: its type is {other:?} (expected a pipe or a FIFO)"),
        )),
    }
}

fn check_access(descriptor: &OwnedFd, access: OFlags) -> io::Result<()> {
    let mode = rustix::fs::fcntl_getfl(descriptor)? & OFlags::ACCMODE;
    if mode == access || mode == OFlags::RDWR {
        return Ok(());
    }
    let text = format!("cannot use the pipe: it is open with {mode:?} (expected {access:?} or RDWR)");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Write end of a pipe.
///
/// Dropping it closes the end; the receiver reads EOF once it has read all bytes. See the [module](self) for an example.
pub struct Sender(PipeEnd);

/// Read end of a pipe.
///
/// Dropping it closes the end; writes of the sender then fail with `BrokenPipe`. See the [module](self) for an example.
pub struct Receiver(PipeEnd);

macro_rules! common {
    ($name:ident, $constructor:ident, $access:ident) => {
        impl $name {
            /// Takes a descriptor of a pipe or FIFO, and makes it non-blocking.
            ///
            /// The mode is shared with all duplicates of the descriptor, in this and other processes.
            ///
            /// # Errors
            /// Returns `InvalidInput` if the file is not a pipe or FIFO, or is not open in this direction. Returns
            /// `Unsupported` on the simulated driver.
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            #[track_caller]
            pub fn from_owned_fd(descriptor: OwnedFd) -> io::Result<Self> {
                check_pipe(&descriptor)?;
                check_access(&descriptor, OFlags::$access)?;
                Self::from_owned_fd_unchecked(descriptor)
            }

            /// Takes a descriptor like [`from_owned_fd`](Self::from_owned_fd), without checking its type.
            ///
            /// # Errors
            /// Returns an error if the kernel cannot poll the file, or on the simulated driver.
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            #[track_caller]
            pub fn from_owned_fd_unchecked(descriptor: OwnedFd) -> io::Result<Self> {
                PipeEnd::$constructor(descriptor).map(Self)
            }

            /// Takes a file that is a pipe or FIFO. See [`from_owned_fd`](Self::from_owned_fd).
            ///
            /// # Errors
            /// See [`from_owned_fd`](Self::from_owned_fd).
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            #[track_caller]
            pub fn from_file(file: std::fs::File) -> io::Result<Self> {
                Self::from_owned_fd(file.into())
            }

            /// Takes a file like [`from_file`](Self::from_file), without checking its type.
            ///
            /// # Errors
            /// See [`from_owned_fd_unchecked`](Self::from_owned_fd_unchecked).
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            #[track_caller]
            pub fn from_file_unchecked(file: std::fs::File) -> io::Result<Self> {
                Self::from_owned_fd_unchecked(file.into())
            }

            /// Returns the descriptor in blocking mode.
            ///
            /// # Errors
            /// Returns the error of `ioctl(2)`, or of `fcntl(2)` if a poll in flight requires a duplicate.
            pub fn into_blocking_fd(self) -> io::Result<OwnedFd> {
                self.0.into_blocking()
            }

            /// Returns the descriptor in non-blocking mode.
            ///
            /// # Errors
            /// Returns the error of `fcntl(2)` if a poll in flight requires a duplicate.
            pub fn into_nonblocking_fd(self) -> io::Result<OwnedFd> {
                self.0.into_nonblocking()
            }

            /// Waits for the given readiness. Cancel-safe.
            ///
            /// # Errors
            /// Returns an error if the interest is the other direction, or the runtime has been shut down.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                Ok(self.0.registration().ready(interest).await?.ready)
            }

            pub(crate) fn pipe(&self) -> &PipeEnd {
                &self.0
            }
        }

        impl AsFd for $name {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.as_fd()
            }
        }

        impl AsRawFd for $name {
            fn as_raw_fd(&self) -> RawFd {
                self.as_fd().as_raw_fd()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.debug_tuple(stringify!($name)).field(&self.as_raw_fd()).finish()
            }
        }
    };
}

common!(Sender, new_write, WRONLY);
common!(Receiver, new_read, RDONLY);

impl Sender {
    /// Writes some of `bytes`, and returns the number of bytes written (`write(2)`). Waits while the pipe is full.
    ///
    /// At most `PIPE_BUF` (4096) bytes are written as a whole. Cancel-safe.
    ///
    /// # Errors
    /// Returns `BrokenPipe` if there is no reader.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// assert_eq!(sender.write(b"ciao").await?, 4);
    /// drop(receiver);
    /// assert_eq!(sender.write(b"ciao").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn write<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.write(bytes)
    }

    /// Writes some bytes of several slices (`writev(2)`). Cancel-safe.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn write_vectored<'a>(
        &'a self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.write_vectored(slices)
    }

    /// Writes all of `bytes`. Not cancel-safe: the number of bytes written is lost.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn write_all<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<()>> + 'a {
        self.0.write_all(bytes)
    }

    /// Writes some of `bytes` without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the pipe is full, and the errors of [`write`](Self::write).
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Write, || self.0.try_write(bytes))
    }

    /// Writes some bytes of several slices without waiting.
    ///
    /// # Errors
    /// See [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Write, || self.0.try_write_vectored(slices))
    }

    /// Waits until the pipe is writable or has no reader. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(|_| ())
    }

    /// Polls for writability. Only the task of the last call is woken.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.registration().poll_ready(context, Direction::Write))?;
        Poll::Ready(Ok(()))
    }
}

impl Receiver {
    /// Reads some bytes into `buffer`, and returns their number (`read(2)`). Returns 0 at EOF, when there is no writer.
    /// Cancel-safe.
    ///
    /// # Errors
    /// Returns the error of `read(2)`.
    pub fn read<'a>(&'a self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.read(buffer)
    }

    /// Reads some bytes into several slices (`readv(2)`). Cancel-safe.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn read_vectored<'a>(
        &'a self,
        slices: &'a mut [IoSliceMut<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.read_vectored(slices)
    }

    /// Fills `buffer`. Not cancel-safe: the number of bytes read is lost.
    ///
    /// # Errors
    /// Returns `UnexpectedEof` if the pipe ends before `buffer` is full. Also see [`read`](Self::read).
    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(unexpected_eof(filled, buffer.len())),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Appends all bytes up to EOF to `buffer`, and returns their number. If the future is dropped, the bytes read so far
    /// are in `buffer`.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub async fn read_to_end(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let before = buffer.len();
        while self.0.append(buffer).await? > 0 {}
        Ok(buffer.len() - before)
    }

    /// Reads some bytes without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the pipe is empty and has a writer, and the errors of [`read`](Self::read).
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Read, || self.0.try_read(buffer))
    }

    /// Reads some bytes into several slices without waiting.
    ///
    /// # Errors
    /// See [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Read, || self.0.try_read_vectored(slices))
    }

    /// Waits until the pipe has bytes or has no writer. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(|_| ())
    }

    /// Polls for readability. Only the task of the last call is woken.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.registration().poll_ready(context, Direction::Read))?;
        Poll::Ready(Ok(()))
    }
}
