//! Errors of descriptors and guards.

use std::error::Error;
use std::fmt;
use std::io;

/// Error returned by the `try_io` methods of the guards if the operation returned `WouldBlock`.
///
/// ```
/// # anello::example! {
/// # use std::io::ErrorKind;
/// # use anello::io::{AsyncFd, TryIoError};
/// # let (_reader, writer) = std::io::pipe()?;
/// let writer = AsyncFd::new(writer)?;
/// let mut guard = writer.writable().await?;
/// let result: Result<std::io::Result<()>, TryIoError> = guard.try_io(|_| Err(ErrorKind::WouldBlock.into()));
/// assert_eq!(result.unwrap_err().to_string(), "operation would block");
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryIoError(());

impl TryIoError {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl fmt::Display for TryIoError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("operation would block")
    }
}

impl Error for TryIoError {}

/// Error returned by [`AsyncFd::try_new`](super::AsyncFd::try_new), with the value that could not be registered.
///
/// ```
/// # anello::example! {
/// use std::fs::File;
///
/// use anello::io::{AsyncFd, AsyncFdTryNewError};
///
/// let error: AsyncFdTryNewError<File> = AsyncFd::try_new(File::open("/proc/self/exe")?).unwrap_err();
/// let error = std::io::Error::from(error);
/// assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
/// # }
/// ```
pub struct AsyncFdTryNewError<T> {
    pub(super) inner: T,
    pub(super) cause: io::Error,
}

impl<T> AsyncFdTryNewError<T> {
    /// Returns the value and the error.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::AsyncFd;
    /// let file = std::fs::File::open("/proc/self/exe")?;
    /// let (file, error) = AsyncFd::try_new(file).unwrap_err().into_parts();
    /// assert!(file.metadata()?.is_file(), "{error}");
    /// # }
    /// ```
    pub fn into_parts(self) -> (T, io::Error) {
        (self.inner, self.cause)
    }
}

impl<T> fmt::Debug for AsyncFdTryNewError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.cause, formatter)
    }
}

impl<T> fmt::Display for AsyncFdTryNewError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, formatter)
    }
}

impl<T> Error for AsyncFdTryNewError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

impl<T> From<AsyncFdTryNewError<T>> for io::Error {
    fn from(error: AsyncFdTryNewError<T>) -> Self {
        error.cause
    }
}
