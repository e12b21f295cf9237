//! The parent's ends of the pipes to a child.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Stdio;
use std::task::{Context, Poll, ready};

use crate::driver::SendBuf;
use crate::io::{AsyncRecv, AsyncSend};
use crate::readiness::PipeEnd;

/// Write end of the pipe to the standard input of a child. Dropping it closes the pipe: the child then reads EOF.
///
/// The pipe is in non-blocking mode on this side; the child's side is not affected. Writes need no buffer of the
/// runtime: a future that is dropped has written nothing.
///
/// ```
/// use std::process::Stdio;
///
/// # anello::example! {
/// let mut command = anello::process::Command::new("wc");
/// let mut child = command.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
/// let mut stdin = child.stdin.take().expect("stdin is piped");
/// stdin.write_all(b"four").await?;
/// drop(stdin);
/// assert_eq!(child.wait_with_output().await?.stdout.trim_ascii(), b"4");
/// # }
/// ```
pub struct ChildStdin(pub(super) PipeEnd);

/// Read end of the pipe from the standard output of a child. Dropping it closes the pipe: a write of the child then
/// fails with `EPIPE`, or SIGPIPE terminates it.
///
/// ```
/// use std::process::Stdio;
///
/// # anello::example! {
/// let mut child = anello::process::Command::new("echo").arg("ciao").stdout(Stdio::piped()).spawn()?;
/// let mut text = String::new();
/// child.stdout.take().expect("stdout is piped").read_to_string(&mut text).await?;
/// assert_eq!(text, "ciao\n");
/// # }
/// ```
pub struct ChildStdout(pub(super) PipeEnd);

/// Read end of the pipe from the standard error of a child. Dropping it closes the pipe; see [`ChildStdout`].
///
/// ```
/// use std::process::Stdio;
///
/// # anello::example! {
/// let mut command = anello::process::Command::new("sh");
/// let mut child = command.args(["-c", "echo failed >&2"]).stderr(Stdio::piped()).spawn()?;
/// let mut text = String::new();
/// child.stderr.take().expect("stderr is piped").read_to_string(&mut text).await?;
/// assert_eq!(text, "failed\n");
/// # }
/// ```
pub struct ChildStderr(pub(super) PipeEnd);

macro_rules! common {
    ($name:ident, $constructor:ident) => {
        impl $name {
            #[doc = concat!("Converts the standard library's `", stringify!($name), "`, and makes it non-blocking.")]
            ///
            /// ```
            /// use std::process::{Command, Stdio};
            ///
            /// use anello::process::ChildStdout;
            ///
            /// # anello::example! {
            /// let mut child = Command::new("echo").arg("ciao").stdout(Stdio::piped()).spawn()?;
            /// let mut stdout = ChildStdout::from_std(child.stdout.take().expect("stdout is piped"))?;
            /// let mut bytes = Vec::new();
            /// assert_eq!(stdout.read_to_end(&mut bytes).await?, 5);
            /// child.wait()?;
            /// # }
            /// ```
            ///
            /// # Errors
            /// Returns an error if the pipe cannot be registered, or on the simulated driver.
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            #[track_caller]
            pub fn from_std(inner: std::process::$name) -> io::Result<Self> {
                PipeEnd::$constructor(inner.into()).map(Self)
            }

            /// Returns a duplicate of the descriptor in blocking mode, and closes this one. The mode is common to all
            /// duplicates of the descriptor.
            ///
            /// ```
            /// use std::process::Stdio;
            ///
            /// # anello::example! {
            /// let mut child = anello::process::Command::new("true").stdout(Stdio::piped()).spawn()?;
            /// let stdout = child.stdout.take().expect("stdout is piped");
            /// let pipe = std::io::PipeReader::from(stdout.into_owned_fd()?);
            /// # drop(pipe);
            /// # }
            /// ```
            ///
            /// # Errors
            /// Returns the error of `fcntl(2)` or `ioctl(2)`.
            pub fn into_owned_fd(self) -> io::Result<OwnedFd> {
                self.0.into_blocking()
            }

            #[cfg(any(feature = "compat-futures-io", feature = "compat-tokio"))]
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

        /// Makes the pipe a standard stream of another child, which is then connected to this one directly.
        impl TryFrom<$name> for Stdio {
            type Error = io::Error;

            fn try_from(pipe: $name) -> io::Result<Self> {
                pipe.into_owned_fd().map(Self::from)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.debug_tuple(stringify!($name)).field(&self.as_raw_fd()).finish()
            }
        }
    };
}

common!(ChildStdin, new_write);
common!(ChildStdout, new_read);
common!(ChildStderr, new_read);

impl ChildStdin {
    /// Writes some of `bytes`, and returns the number of bytes written (`write(2)`). Waits while the pipe is full (64
    /// KiB by default). Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// use std::process::Stdio;
    ///
    /// let mut child = anello::process::Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    /// let mut stdin = child.stdin.take().expect("stdin is piped");
    /// assert_eq!(stdin.write(b"ciao").await?, 4);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns `BrokenPipe` if the child has closed its standard input or has exited, or `NotConnected` if the runtime
    /// has been shut down.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).await
    }

    /// Writes all of `bytes`. Not cancel-safe: the number of bytes written is lost.
    ///
    /// ```
    /// # anello::example! {
    /// use std::process::Stdio;
    ///
    /// let mut child = anello::process::Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    /// let mut stdin = child.stdin.take().expect("stdin is piped");
    /// stdin.write_all(b"ciao").await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }
}

/// Shutting down does nothing: drop the pipe to close it.
impl AsyncSend for ChildStdin {
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_send(bytes, context)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

macro_rules! reads {
    ($name:ident) => {
        impl $name {
            /// Reads into `buffer`, and returns the number of bytes read (`read(2)`). Returns 0 at EOF, or if `buffer`
            /// is empty. Cancel-safe.
            ///
            /// ```
            /// # anello::example! {
            /// use std::process::Stdio;
            ///
            /// let mut child = anello::process::Command::new("echo").arg("ciao").stdout(Stdio::piped()).spawn()?;
            /// let mut pipe = child.stdout.take().expect("stdout is piped");
            /// let mut buffer = [0; 4096];
            /// let count = pipe.read(&mut buffer).await?;
            /// assert!(b"ciao\n".starts_with(&buffer[..count]));
            /// # }
            /// ```
            ///
            /// # Errors
            /// Returns the error of `read(2)`, or `NotConnected` if the runtime has been shut down.
            pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(buffer).await
            }

            /// Reads until EOF, appends the bytes to `buffer`, and returns their number. There is no limit.
            /// Cancel-safe: the bytes that have been read are in `buffer`.
            ///
            /// ```
            /// # anello::example! {
            /// use std::process::Stdio;
            ///
            /// let mut child = anello::process::Command::new("echo").arg("ciao").stdout(Stdio::piped()).spawn()?;
            /// let mut pipe = child.stdout.take().expect("stdout is piped");
            /// let mut bytes = Vec::new();
            /// pipe.read_to_end(&mut bytes).await?;
            /// assert_eq!(bytes, b"ciao\n");
            /// # }
            /// ```
            ///
            /// # Errors
            /// See [`read`](Self::read).
            pub async fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
                let before = buffer.len();
                while self.0.append(buffer).await? > 0 {}
                Ok(buffer.len() - before)
            }

            /// Reads until EOF, appends the text to `text`, and returns the number of bytes. There is no limit. Not
            /// cancel-safe: the bytes that have been read are lost.
            ///
            /// ```
            /// # anello::example! {
            /// use std::process::Stdio;
            ///
            /// let mut child = anello::process::Command::new("echo").arg("ciao").stdout(Stdio::piped()).spawn()?;
            /// let mut pipe = child.stdout.take().expect("stdout is piped");
            /// let mut text = String::new();
            /// pipe.read_to_string(&mut text).await?;
            /// assert_eq!(text, "ciao\n");
            /// # }
            /// ```
            ///
            /// # Errors
            /// See [`read`](Self::read). Also returns `InvalidData` if the bytes are not UTF-8; `text` is then
            /// unchanged.
            pub async fn read_to_string(&mut self, text: &mut String) -> io::Result<usize> {
                let mut bytes = Vec::new();
                self.read_to_end(&mut bytes).await?;
                let read = String::from_utf8(bytes).map_err(|error| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("cannot read text: {error}"))
                })?;
                text.push_str(&read);
                Ok(read.len())
            }
        }

        impl AsyncRecv for $name {
            type Buf = Vec<u8>;

            fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
                self.0.poll_recv(context)
            }
        }
    };
}

reads!(ChildStdout);
reads!(ChildStderr);

/// Reads what is available, and closes the pipe at EOF. Ready once the pipe is closed.
pub(super) fn read_available(
    pipe: &mut Option<PipeEnd>,
    buffer: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while let Some(open) = pipe {
        if ready!(open.poll_append(buffer, context))? == 0 {
            *pipe = None;
        }
    }
    Poll::Ready(Ok(()))
}
