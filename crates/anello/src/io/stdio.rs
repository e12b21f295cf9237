//! Standard input, output and error.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::{FileType, Mode, OFlags};

use crate::executor::{AcceptedWrite, JoinHandle, current, spawn_blocking};
use crate::readiness::PipeEnd;

/// Maximum number of bytes per operation on the blocking pool.
const MAX_BLOCKING_BYTES: usize = 64 * 1024;

/// Returns a handle for the standard input of the process.
///
/// How it reads depends on the file:
///
/// - A pipe or a terminal is opened again through `/proc/self/fd` (`open(2)` with `O_NONBLOCK`), and read when it is
///   readable. The mode `O_NONBLOCK` belongs to the open file, which other processes may share (for example, the shell
///   that started this one), so the runtime does not change the mode of the original.
/// - A socket is read with `recv(2)` and `MSG_DONTWAIT` when it is readable.
/// - Any other file, and any file that cannot be opened again, is read by a thread of the
///   [blocking pool](crate::spawn_blocking). This also applies to the simulated driver.
///
/// Bytes in the buffer of [`std::io::stdin`] are not returned.
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```no_run
/// # anello::example! {
/// let mut stdin = anello::io::stdin();
/// let mut buffer = [0; 1024];
/// let count = stdin.read(&mut buffer).await?;
/// println!("{count} bytes");
/// # }
/// ```
#[track_caller]
pub fn stdin() -> Stdin {
    let standard = io::stdin();
    Stdin { input: Input::open(standard.as_fd()), standard }
}

/// Returns a handle for the standard output of the process.
///
/// Writes go directly to the file, without the buffer of [`std::io::stdout`]: flush that one before, if both are used.
/// [`stdin`] describes how the file is used. Bytes given to a thread of the blocking pool are lost if `process::exit` ends
/// the process before a [`flush`](Stdout::flush); the end of the last runtime waits for them.
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// anello::Runtime::new()?.block_on(async {
///     let mut stdout = anello::io::stdout();
///     stdout.write_all(b"ciao\n").await?;
///     stdout.flush().await
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn stdout() -> Stdout {
    let standard = io::stdout();
    Stdout { output: Output::open(standard.as_fd(), Standard::Output), standard }
}

/// Returns a handle for the standard error of the process. See [`stdout`].
///
/// # Panics
/// Panics if no runtime is running on this thread.
///
/// ```
/// anello::Runtime::new()?.block_on(async {
///     let mut stderr = anello::io::stderr();
///     stderr.write_all(b"warning\n").await?;
///     stderr.flush().await
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn stderr() -> Stderr {
    let standard = io::stderr();
    Stderr { output: Output::open(standard.as_fd(), Standard::Error), standard }
}

/// Handle for the standard input; see [`stdin`].
///
/// ```
/// # anello::example! {
/// use std::os::fd::AsRawFd;
///
/// let stdin: anello::io::Stdin = anello::io::stdin();
/// assert_eq!(stdin.as_raw_fd(), 0);
/// # }
/// ```
#[derive(Debug)]
pub struct Stdin {
    input: Input,
    standard: io::Stdin,
}

/// Handle for the standard output; see [`stdout`].
///
/// ```
/// # anello::example! {
/// use std::os::fd::AsRawFd;
///
/// let mut stdout: anello::io::Stdout = anello::io::stdout();
/// assert_eq!(stdout.as_raw_fd(), 1);
/// stdout.write_all(b"ciao\n").await?;
/// stdout.flush().await?;
/// # }
/// ```
#[derive(Debug)]
pub struct Stdout {
    output: Output,
    standard: io::Stdout,
}

/// Handle for the standard error; see [`stderr`].
///
/// ```
/// # anello::example! {
/// use std::os::fd::AsRawFd;
///
/// let mut stderr: anello::io::Stderr = anello::io::stderr();
/// assert_eq!(stderr.as_raw_fd(), 2);
/// stderr.write_all(b"warning\n").await?;
/// stderr.flush().await?;
/// # }
/// ```
#[derive(Debug)]
pub struct Stderr {
    output: Output,
    standard: io::Stderr,
}

impl Stdin {
    /// Reads some bytes into `buffer`, and returns their number. Returns 0 at EOF.
    ///
    /// Cancel-safe: bytes that the blocking pool has read for a dropped future are returned by the next call.
    ///
    /// # Errors
    /// Returns the error of `read(2)`.
    ///
    /// ```no_run
    /// # anello::example! {
    /// let mut stdin = anello::io::stdin();
    /// let mut answer = [0; 1];
    /// if stdin.read(&mut answer).await? == 0 {
    ///     println!("no answer");
    /// }
    /// # }
    /// ```
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(|context| self.poll_read(buffer, context))
    }

    /// Appends all bytes up to EOF to `buffer`, and returns their number. If the future is dropped, the bytes read so far
    /// are in `buffer`.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    ///
    /// ```no_run
    /// # anello::example! {
    /// let mut document = Vec::new();
    /// let bytes = anello::io::stdin().read_to_end(&mut document).await?;
    /// assert_eq!(document.len(), bytes);
    /// # }
    /// ```
    pub async fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let before = buffer.len();
        let mut block = [0; 8192];
        loop {
            match self.read(&mut block).await? {
                0 => return Ok(buffer.len() - before),
                count => buffer.extend(&block[..count]),
            }
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        buffer: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        match &mut self.input {
            Input::Pollable(end) => end.poll_read(buffer, context),
            Input::Blocking(reader) => reader.poll_read(buffer, context),
        }
    }
}

impl AsFd for Stdin {
    /// Returns descriptor 0, even if the handle reads from a descriptor of its own.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.standard.as_fd()
    }
}

impl AsRawFd for Stdin {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

macro_rules! impl_output {
    ($name:ident) => {
        impl $name {
            /// Writes some of `bytes`, and returns the number of bytes written, or given to the blocking pool.
            /// Cancel-safe.
            ///
            /// # Errors
            /// Returns the error of `write(2)`. An error of the blocking pool is returned by the next call.
            ///
            /// ```
            /// # anello::example! {
            /// let mut stdout = anello::io::stdout();
            /// let count = stdout.write(b"ciao\n").await?;
            /// assert!((1..=5).contains(&count));
            /// # }
            /// ```
            pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
                poll_fn(|context| self.poll_write(bytes, context))
            }

            /// Writes all of `bytes`. Not cancel-safe: the number of bytes written is lost.
            ///
            /// # Errors
            /// See [`write`](Self::write).
            ///
            /// ```
            /// # anello::example! {
            /// let mut stderr = anello::io::stderr();
            /// stderr.write_all(b"warning: the disk is full\n").await?;
            /// assert_eq!(stderr.write(b"").await?, 0);
            /// # }
            /// ```
            pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
                while !bytes.is_empty() {
                    match self.write(bytes).await? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        count => bytes = &bytes[count..],
                    }
                }
                Ok(())
            }

            /// Waits until all bytes have been written to the file. Cancel-safe.
            ///
            /// # Errors
            /// See [`write`](Self::write).
            ///
            /// ```
            /// # anello::example! {
            /// let mut stdout = anello::io::stdout();
            /// stdout.write_all(b"done\n").await?;
            /// // The process may exit now.
            /// stdout.flush().await?;
            /// # }
            /// ```
            pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
                poll_fn(|context| self.poll_flush(context))
            }

            pub(crate) fn poll_write(
                &mut self,
                bytes: &[u8],
                context: &mut Context<'_>,
            ) -> Poll<io::Result<usize>> {
                match &mut self.output {
                    Output::Pollable(end) => end.poll_write(bytes, context),
                    Output::Blocking(writer) => writer.poll_write(bytes, context),
                }
            }

            pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match &mut self.output {
                    Output::Pollable(_) => Poll::Ready(Ok(())),
                    Output::Blocking(writer) => writer.poll_flush(context),
                }
            }
        }

        impl AsFd for $name {
            /// Returns the standard descriptor, even if the handle writes to a descriptor of its own.
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.standard.as_fd()
            }
        }

        impl AsRawFd for $name {
            fn as_raw_fd(&self) -> RawFd {
                self.as_fd().as_raw_fd()
            }
        }
    };
}

impl_output!(Stdout);
impl_output!(Stderr);

enum Input {
    Pollable(PipeEnd),
    Blocking(BlockingReader),
}

enum Output {
    Pollable(PipeEnd),
    Blocking(BlockingWriter),
}

#[derive(Clone, Copy, Debug)]
enum Standard {
    Output,
    Error,
}

impl Input {
    #[track_caller]
    fn open(descriptor: BorrowedFd<'_>) -> Self {
        match open_pollable(descriptor, OFlags::RDONLY, PipeEnd::new_read) {
            Some(end) => Self::Pollable(end),
            None => Self::Blocking(BlockingReader::default()),
        }
    }
}

impl Output {
    #[track_caller]
    fn open(descriptor: BorrowedFd<'_>, standard: Standard) -> Self {
        match open_pollable(descriptor, OFlags::WRONLY, PipeEnd::new_write) {
            Some(end) => Self::Pollable(end),
            None => Self::Blocking(BlockingWriter { standard, pending: None }),
        }
    }
}

/// Opens a descriptor of its own for a standard stream, if the file can be polled.
#[track_caller]
fn open_pollable(
    descriptor: BorrowedFd<'_>,
    access: OFlags,
    register: fn(OwnedFd) -> io::Result<PipeEnd>,
) -> Option<PipeEnd> {
    // Panics without a runtime, whatever the type of the file is.
    drop(current());
    match FileType::from_raw_mode(rustix::fs::fstat(descriptor).ok()?.st_mode) {
        FileType::Socket => PipeEnd::of_socket(descriptor.try_clone_to_owned().ok()?).ok(),
        FileType::Fifo | FileType::CharacterDevice => {
            let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
            let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
            register(rustix::fs::open(path, flags, Mode::empty()).ok()?).ok()
        }
        _ => None,
    }
}

/// Reads the standard input on the blocking pool.
#[derive(Default)]
struct BlockingReader {
    pending: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Bytes that have been read but not taken.
    bytes: Vec<u8>,
    taken: usize,
}

impl BlockingReader {
    fn poll_read(&mut self, buffer: &mut [u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.taken == self.bytes.len() {
            let wanted = buffer.len().min(MAX_BLOCKING_BYTES);
            let pending = self.pending.get_or_insert_with(|| {
                spawn_blocking(move || {
                    let mut bytes = vec![0; wanted];
                    let count = rustix::io::retry_on_intr(|| rustix::io::read(io::stdin(), &mut *bytes))?;
                    bytes.truncate(count);
                    Ok(bytes)
                })
            });
            let read = ready!(Pin::new(pending).poll(context));
            self.pending = None;
            (self.bytes, self.taken) =
                (read.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))?, 0);
        }
        let rest = &self.bytes[self.taken..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Poll::Ready(Ok(count))
    }
}

/// Writes the standard output or error on the blocking pool.
struct BlockingWriter {
    standard: Standard,
    pending: Option<JoinHandle<io::Result<()>>>,
}

impl BlockingWriter {
    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        let (standard, count) = (self.standard, bytes.len().min(MAX_BLOCKING_BYTES));
        if count > 0 {
            let bytes = bytes[..count].to_vec();
            let accepted = AcceptedWrite::new();
            self.pending = Some(spawn_blocking(move || {
                let _accepted = accepted;
                standard.write_all(&bytes)
            }));
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(pending) = &mut self.pending else { return Poll::Ready(Ok(())) };
        let written = ready!(Pin::new(pending).poll(context));
        self.pending = None;
        Poll::Ready(written.unwrap_or_else(|error| Err(io::Error::other(error.to_string()))))
    }
}

impl Standard {
    fn write_all(self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = rustix::io::retry_on_intr(|| match self {
                Self::Output => rustix::io::write(io::stdout(), bytes),
                Self::Error => rustix::io::write(io::stderr(), bytes),
            });
            bytes = &bytes[written?..];
        }
        Ok(())
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pollable(_) => "Pollable",
            Self::Blocking(_) => "Blocking",
        })
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pollable(_) => "Pollable",
            Self::Blocking(_) => "Blocking",
        })
    }
}
