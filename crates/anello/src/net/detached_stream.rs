//! Streams that belong to no runtime.

use std::io;
use std::os::fd::OwnedFd;

use super::connection::Connection;
use crate::driver::{Family, OpenCount};
use crate::executor::current;

/// A connection that belongs to no runtime, and can be sent to another thread.
///
/// [`Stream::detach`](super::Stream::detach) returns it. It holds the socket in blocking mode and the bytes that were
/// received but not taken. Dropping it closes the connection. [`StreamSocket::move_to`](super::StreamSocket::move_to) detaches a stream and attaches
/// it to another worker in one step.
///
/// ```
/// use anello::Runtime;
/// use anello::net::{AttachedStream, Stream, UnixStream};
///
/// let (detached, mut other) = Runtime::new()?.block_on(async {
///     let (one, other) = UnixStream::pair()?;
///     let detached = one.detach().await.map_err(std::io::Error::from)?;
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
    descriptor: OwnedFd,
    received: Vec<u8>,
    is_write_open: bool,
    open_count: Option<OpenCount>,
    family: Family,
}

impl DetachedStream {
    /// Waits until all accepted bytes are sent, and releases the socket of the connection.
    pub(super) async fn detach(connection: &Connection, family: Family) -> io::Result<Self> {
        let open_count = connection.take_open_count();
        let is_write_open = connection.driver().is_write_open(connection.key);
        match connection.detach().await {
            Ok((descriptor, received)) => {
                Ok(Self { descriptor, received, is_write_open, open_count, family })
            }
            Err(error) => {
                if let Some(open_count) = open_count {
                    connection.hold_open_count(open_count);
                }
                Err(error)
            }
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    #[track_caller]
    pub(super) fn attach_connection(self) -> io::Result<Connection> {
        let connection = Connection::import_with(self.descriptor, &self.received)?;
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
