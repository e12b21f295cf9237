//! Error of detaching a stream from its runtime.

use std::fmt;
use std::io;

/// Error of [`StreamSocket::into_std`](super::StreamSocket::into_std), [`StreamSocket::move_to`](super::StreamSocket::move_to)
/// and [`Stream::detach`](super::Stream::detach), which contains the stream.
///
/// The conversion to [`io::Error`] drops the stream.
///
/// ```
/// # anello::example! {
/// use anello::net::{IntoStdError, UnixStream};
///
/// let (one, other) = UnixStream::pair()?;
/// other.shutdown_handle().reset();
/// one.shutdown_handle().reset();
/// let error: IntoStdError<UnixStream> = one.into_std().await.unwrap_err();
/// assert!(error.to_string().starts_with("cannot detach stream from its runtime"));
/// # }
/// ```
#[derive(Debug)]
pub struct IntoStdError<S> {
    error: io::Error,
    stream: S,
}

impl<S> IntoStdError<S> {
    pub(crate) fn new(error: io::Error, stream: S) -> Self {
        Self { error, stream }
    }

    /// Returns the error of the connection.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, _other) = UnixStream::pair()?;
    /// one.shutdown_handle().reset();
    /// let error = one.into_std().await.unwrap_err();
    /// assert_eq!(error.error().kind(), std::io::ErrorKind::NotConnected);
    /// # }
    /// ```
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Returns the error and the stream. The stream returns the bytes that it had received before the error.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, _other) = UnixStream::pair()?;
    /// one.shutdown_handle().reset();
    /// let (error, stream) = one.into_std().await.unwrap_err().into_parts();
    /// assert!(stream.peer_addr().is_err(), "{error}");
    /// # }
    /// ```
    pub fn into_parts(self) -> (io::Error, S) {
        (self.error, self.stream)
    }
}

impl<S> fmt::Display for IntoStdError<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot detach stream from its runtime: {}", self.error)
    }
}

impl<S: fmt::Debug> std::error::Error for IntoStdError<S> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<S> From<IntoStdError<S>> for io::Error {
    fn from(error: IntoStdError<S>) -> Self {
        error.error
    }
}
