//! Error of detaching a stream from its runtime.

use std::fmt;
use std::io;

/// Error of detaching a stream from its runtime, which contains the stream: of
/// [`StreamSocket::into_std`](super::StreamSocket::into_std), [`StreamSocket::move_to`](super::StreamSocket::move_to) and
/// [`DetachedStream::detach`](crate::server::DetachedStream::detach).
///
/// The conversion to [`io::Error`] drops the stream.
///
/// ```
/// # anello::example! {
/// use anello::net::{DetachError, UnixStream};
///
/// let (one, other) = UnixStream::pair()?;
/// other.shutdown_handle().reset();
/// one.shutdown_handle().reset();
/// let error: DetachError<UnixStream> = one.into_std().await.unwrap_err();
/// assert!(error.to_string().starts_with("cannot detach stream from its runtime"));
/// # }
/// ```
#[derive(Debug)]
pub struct DetachError<S> {
    error: io::Error,
    stream: S,
}

impl<S> DetachError<S> {
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

impl<S> fmt::Display for DetachError<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot detach stream from its runtime: {}", self.error)
    }
}

impl<S: fmt::Debug> std::error::Error for DetachError<S> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<S> From<DetachError<S>> for io::Error {
    fn from(error: DetachError<S>) -> Self {
        error.error
    }
}
