//! Attaching detached streams to a runtime.

use std::io;

use super::detached_stream::DetachedStream;
use crate::driver::Family;
use crate::net::{StreamSocket, Tcp, Unix};

/// A stream of either family, returned by [`DetachedStream::attach`].
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
/// use anello::server::{AttachedStream, DetachedStream};
///
/// let (one, _other) = UnixStream::pair()?;
/// let detached = DetachedStream::detach(one).await.map_err(std::io::Error::from)?;
/// assert!(matches!(detached.attach()?, AttachedStream::Unix(_)));
/// # }
/// ```
#[derive(Debug)]
pub enum AttachedStream {
    /// A TCP connection.
    Tcp(StreamSocket<Tcp>),
    /// A connection of a Unix socket.
    Unix(StreamSocket<Unix>),
}

impl DetachedStream {
    /// Attaches the connection to the runtime of this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// # use anello::server::{AttachedStream, DetachedStream};
    /// let (one, mut other) = UnixStream::pair()?;
    /// let detached = DetachedStream::detach(one).await.map_err(std::io::Error::from)?;
    /// other.write_all(b"ciao").await?;
    /// let AttachedStream::Unix(mut one) = detached.attach()? else { unreachable!("a Unix socket") };
    /// assert_eq!(one.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error, and closes the connection, if the driver cannot attach the socket, for example for lack of
    /// memory.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn attach(self) -> io::Result<AttachedStream> {
        let family = self.family();
        let connection = self.attach_connection()?;
        Ok(match family {
            Family::Internet => AttachedStream::Tcp(StreamSocket::new(connection)),
            Family::Unix => AttachedStream::Unix(StreamSocket::new(connection)),
        })
    }
}
