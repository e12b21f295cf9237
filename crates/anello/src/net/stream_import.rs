//! Conversions between streams and the sockets of the standard library.

use std::io;
use std::os::fd::OwnedFd;

use super::connection::Connection;
use super::detach_error::DetachError;
use super::family::{StreamFamily, Tcp, Unix};
use super::stream_socket::StreamSocket;
use crate::driver::{check_linger, check_socket};
use crate::executor::current;

impl<F: StreamFamily> StreamSocket<F> {
    /// Converts a standard library stream.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be switched to non-blocking mode, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Write as _;
    /// # use anello::net::UnixStream;
    /// let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// let mut one = UnixStream::from_std(one)?;
    /// other.write_all(b"ciao")?;
    /// assert_eq!(one.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    #[track_caller]
    pub fn from_std(stream: F::StdStream) -> io::Result<Self> {
        let descriptor = stream.into();
        check_linger(&descriptor);
        Ok(Self::new(Connection::import(current(), descriptor)?))
    }

    /// Converts a standard library stream from which bytes have already been received. Receives return a copy of
    /// `received` before the bytes in the socket. This is the inverse of [`into_std`](Self::into_std).
    ///
    /// ```
    /// # anello::example! {
    /// use std::io::Write as _;
    ///
    /// use anello::net::UnixStream;
    ///
    /// let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// other.write_all(b" world")?;
    /// let mut stream = UnixStream::from_std_with(one, b"hello")?;
    /// let mut text = [0; 11];
    /// stream.read_exact(&mut text).await?;
    /// assert_eq!(&text, b"hello world");
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`from_std`](Self::from_std).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn from_std_with(stream: F::StdStream, received: impl AsRef<[u8]>) -> io::Result<Self> {
        let descriptor = stream.into();
        check_linger(&descriptor);
        Ok(Self::new(Connection::import_with(descriptor, received.as_ref())?))
    }

    /// Converts the stream into a standard library stream in blocking mode, once all accepted bytes are sent. Also
    /// returns the bytes that were received but not yet taken. Not cancel-safe: dropping the future closes the
    /// connection.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixStream;
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all(b"ciao").await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// let (std_stream, received): (std::os::unix::net::UnixStream, _) = other.into_std().await?;
    /// assert_eq!((std_stream.read_timeout()?, received), (None, Vec::new()));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the connection is broken, or on the simulated driver. The error contains the stream, whose
    /// received bytes can still be taken.
    pub async fn into_std(self) -> Result<(F::StdStream, Vec<u8>), DetachError<Self>> {
        match self.connection.detach().await {
            Ok((descriptor, received)) => Ok((descriptor.into(), received)),
            Err(error) => Err(DetachError::new(error, self)),
        }
    }
}

/// Fails if the descriptor is not a stream socket of the family or is listening, and on the simulated driver. Panics if
/// no runtime is running on this thread.
///
/// ```
/// # anello::example! {
/// use std::os::fd::OwnedFd;
///
/// use anello::net::{TcpStream, UnixStream};
///
/// let (one, _other) = std::os::unix::net::UnixStream::pair()?;
/// let descriptor = OwnedFd::from(one);
/// assert!(TcpStream::try_from(descriptor.try_clone()?).is_err());
/// let mut stream = UnixStream::try_from(descriptor)?;
/// stream.write_all(b"ciao").await?;
/// # }
/// ```
impl<F: StreamFamily> TryFrom<OwnedFd> for StreamSocket<F> {
    type Error = io::Error;

    #[track_caller]
    fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
        check_socket(&descriptor, F::FAMILY, false)?;
        check_linger(&descriptor);
        Ok(Self::new(Connection::import(current(), descriptor)?))
    }
}

impl TryFrom<std::net::TcpStream> for StreamSocket<Tcp> {
    type Error = io::Error;

    /// See [`from_std`](Self::from_std).
    #[track_caller]
    fn try_from(stream: std::net::TcpStream) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

impl TryFrom<std::os::unix::net::UnixStream> for StreamSocket<Unix> {
    type Error = io::Error;

    /// See [`from_std`](Self::from_std).
    #[track_caller]
    fn try_from(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        Self::from_std(stream)
    }
}
