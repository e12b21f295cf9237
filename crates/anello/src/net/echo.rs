//! Echo service (RFC 862).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::stream::Sealed;
use crate::driver::{Chunk, SendBuf};

/// Sends all received bytes back to the peer until EOF, then flushes. Returns the number of bytes echoed. Accepts a
/// [`TcpStream`](super::TcpStream) or [`UnixStream`](super::UnixStream), which is closed when the future is dropped, or
/// a mutable reference to one, which stays open.
///
/// There is no copy and no allocation per message: chunks are sent from the buffer they were received into. The future
/// is equivalent to a loop of `recv` and `send` in an `async` block, but is hand-written, which saves a few dozen
/// instructions per message and avoids cache misses with thousands of connections. Not cancel-safe: a chunk that was
/// received but not yet accepted for sending is lost when the future is dropped.
///
/// # Errors
/// Returns an error if the connection is broken.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::net::{UnixStream, echo};
///
/// let (mut client, server) = UnixStream::pair()?;
/// let echoing = anello::spawn(echo(server));
/// client.write_all(b"ciao").await?;
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// client.shutdown().await?;
/// assert_eq!(echoing.await.expect("the task does not panic")?, 4);
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn echo<S: Sealed>(stream: S) -> Echo<S> {
    Echo { stream, echoed_bytes: 0, unsent: None }
}

/// Future returned by [`echo`].
///
/// The fields used for every message come first, so that in a task they share a cache line with fields that the
/// executor uses.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::net::{Echo, UnixStream, echo};
///
/// let (client, mut server) = UnixStream::pair()?;
/// drop(client);
/// // The stream stays open, because the future only borrows it.
/// let echoing: Echo<&mut UnixStream> = echo(&mut server);
/// assert_eq!(echoing.await?, 0);
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[repr(C)]
#[must_use = "nothing is echoed unless the future is awaited"]
pub struct Echo<S> {
    stream: S,
    echoed_bytes: u64,
    /// Received bytes that are not yet accepted for sending.
    unsent: Option<SendBuf>,
}

impl<S> Echo<S> {
    /// Returns the number of bytes received from the peer.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::{UnixStream, echo};
    ///
    /// let (mut client, server) = UnixStream::pair()?;
    /// client.write_all(b"ciao").await?;
    /// client.shutdown().await?;
    /// let mut echoing = echo(server);
    /// (&mut echoing).await?;
    /// assert_eq!((echoing.received_bytes(), echoing.sent_bytes()), (4, 4));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn received_bytes(&self) -> u64 {
        self.echoed_bytes
    }

    /// Returns the stream, for example to serve it in another way. Fails if received bytes have not been passed to the send
    /// queue yet.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::{UnixStream, echo};
    ///
    /// let (stream, mut client) = UnixStream::pair()?;
    /// let mut stream = echo(stream).try_into_stream().expect("nothing was received");
    /// stream.write_all(b"ciao").await?;
    /// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the future if bytes are left, which the next polls send.
    pub fn try_into_stream(self) -> Result<S, Self> {
        if self.unsent.is_none() { Ok(self.stream) } else { Err(self) }
    }

    /// Returns the number of received bytes that have been accepted for sending. After an error, this includes the bytes
    /// whose send failed.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::{UnixStream, echo};
    ///
    /// let (_client, server) = UnixStream::pair()?;
    /// assert_eq!(echo(server).sent_bytes(), 0);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn sent_bytes(&self) -> u64 {
        self.echoed_bytes - self.unsent.as_ref().map_or(0, |unsent| unsent.as_slice().len() as u64)
    }
}

impl<S: Sealed + Unpin> Future for Echo<S> {
    type Output = io::Result<u64>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let stream = this.stream.connection();
        loop {
            if this.unsent.is_some() {
                ready!(stream.poll_send(&mut this.unsent, context))?;
            }
            let mut received: Option<Chunk> = None;
            ready!(stream.poll_recv(&mut received, context))?;
            let Some(chunk) = received else {
                // EOF is permanent: if the flush is pending, the next poll reads EOF again.
                return stream.poll_flush(context).map_ok(|()| this.echoed_bytes);
            };
            this.echoed_bytes += chunk.len() as u64;
            let mut unsent = Some(SendBuf::Chunk(chunk));
            if stream.poll_send(&mut unsent, context)?.is_pending() {
                this.unsent = unsent;
                return Poll::Pending;
            }
        }
    }
}
