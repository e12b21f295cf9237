//! Streams that belong to no runtime.

use std::io;

use crate::driver::{DetachedConnection, Family, OpenCount};
use crate::executor::current;
use crate::net::{ByteStream, Connection, DetachError};

/// A connection that belongs to no runtime, and can be sent to another thread.
///
/// It holds the socket in blocking mode and the bytes that were received but not taken. Dropping it closes the
/// connection, and does not block even with a positive `SO_LINGER`.
/// [`StreamSocket::move_to`](crate::net::StreamSocket::move_to) detaches a stream and attaches it to another worker in
/// one step.
///
/// ```
/// use anello::Runtime;
/// use anello::net::UnixStream;
/// use anello::server::{AttachedStream, DetachedStream};
///
/// let (detached, mut other) = Runtime::new()?.block_on(async {
///     let (one, other) = UnixStream::pair()?;
///     let detached = DetachedStream::detach(one).await.map_err(std::io::Error::from)?;
///     Ok::<_, std::io::Error>((detached, other.into_std().await.map_err(std::io::Error::from)?.0))
/// })?;
/// std::io::Write::write_all(&mut other, b"ciao")?;
/// // On another thread:
/// Runtime::new()?.block_on(async {
///     let AttachedStream::Unix(mut stream) = detached.attach()? else { unreachable!("a Unix socket") };
///     assert_eq!(stream.recv().await?.as_deref(), Some(&b"ciao"[..]));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct DetachedStream {
    connection: DetachedConnection,
    received: Vec<u8>,
    is_write_open: bool,
    open_count: Option<OpenCount>,
    family: Family,
}

impl DetachedStream {
    /// Detaches a connection from the runtime of this thread, so that it can be [attached](Self::attach) to the runtime
    /// of another thread.
    ///
    /// Waits until the kernel has taken all accepted bytes. Received bytes that no task has taken stay with the
    /// connection. Takes about five system calls. A [`ShutdownHandle`](crate::net::ShutdownHandle) created earlier has no
    /// effect on the detached stream. Not cancel-safe: dropping the future before it completes closes the connection.
    ///
    /// ```
    /// use anello::net::{ByteStream, UnixStream};
    /// use anello::server::DetachedStream;
    /// use anello::sync::mpsc;
    ///
    /// /// Passes the connection to the thread that receives from the channel.
    /// async fn pass_on(stream: impl ByteStream, target: &mpsc::UnboundedSender<DetachedStream>) -> std::io::Result<()> {
    ///     let detached = DetachedStream::detach(stream).await.map_err(std::io::Error::from)?;
    ///     target.send(detached).map_err(std::io::Error::other)
    /// }
    /// # anello::example! {
    /// let (target, mut detached) = mpsc::unbounded_channel();
    /// pass_on(UnixStream::pair()?.0, &target).await?;
    /// assert!(detached.recv().await.is_some());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the connection is broken, or on the simulated driver. The error contains the stream, which is
    /// still attached to this runtime.
    pub async fn detach<S: ByteStream>(stream: S) -> Result<Self, DetachError<S>> {
        let connection = stream.connection();
        let open_count = connection.take_open_count();
        let is_write_open = connection.driver().is_write_open(connection.key);
        match connection.detach().await {
            Ok((descriptor, received)) => {
                let connection = DetachedConnection::new(descriptor);
                Ok(Self { connection, received, is_write_open, open_count, family: S::FAMILY })
            }
            Err(error) => {
                if let Some(open_count) = open_count {
                    connection.hold_open_count(open_count);
                }
                Err(DetachError::new(error, stream))
            }
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    #[track_caller]
    pub(super) fn attach_connection(self) -> io::Result<Connection> {
        let descriptor = self.connection.into_socket().into_descriptor()?;
        let connection = Connection::import_with(descriptor, &self.received)?;
        if let Some(open_count) =
            self.open_count.and_then(|count| count.move_to_worker(current().worker_id()))
        {
            connection.hold_open_count(open_count);
        }
        if !self.is_write_open {
            // The kernel has already shut it down. The driver must know this to reject writes.
            connection.shutdown().ok();
        }
        Ok(connection)
    }
}
