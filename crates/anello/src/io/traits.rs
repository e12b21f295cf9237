//! Traits of readers and writers of owned buffers.

use std::future::{Future, poll_fn};
use std::io;
use std::task::{Context, Poll};

use crate::driver::SendBuf;

/// Reader of owned buffers, such as the read half of a stream.
///
/// In contrast to `AsyncRead`, the reader chooses the buffer and gives it away, so that no bytes need to be copied.
/// Types of other crates can implement this trait.
///
/// ```
/// use anello::io::AsyncRecv;
///
/// async fn count(mut reader: impl AsyncRecv) -> std::io::Result<usize> {
///     let mut bytes = 0;
///     while let Some(buffer) = reader.recv().await? {
///         bytes += buffer.as_ref().len();
///     }
///     Ok(bytes)
/// }
/// # anello::Runtime::new()?.block_on(async {
/// let (mut one, other) = anello::io::duplex(64);
/// one.send("ciao").await?;
/// drop(one);
/// assert_eq!(count(other).await?, 4);
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait AsyncRecv {
    /// Buffer of received bytes.
    type Buf: AsRef<[u8]> + Into<SendBuf>;

    /// Polls for the next bytes. Returns `None` at EOF, and never returns an empty buffer. If it is not ready, wakes
    /// the task once it is; bytes that have arrived stay in the reader until they are returned.
    ///
    /// # Errors
    /// Returns the error of the reader, for example if its connection is broken.
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Self::Buf>>>;

    /// Receives the next bytes. Returns `None` at EOF. Cancel-safe.
    ///
    /// # Errors
    /// See [`poll_recv`](Self::poll_recv).
    fn recv(&mut self) -> impl Future<Output = io::Result<Option<Self::Buf>>>
    where
        Self: Sized,
    {
        poll_fn(|context| self.poll_recv(context))
    }
}

/// Writer of owned buffers, such as the write half of a stream.
///
/// In contrast to `AsyncWrite`, the writer takes whole buffers, so that no bytes need to be copied. Types of other
/// crates can implement this trait.
///
/// ```
/// use anello::io::AsyncSend;
///
/// async fn greet(mut writer: impl AsyncSend) -> std::io::Result<()> {
///     writer.send("ciao").await?;
///     writer.shutdown().await
/// }
/// # anello::Runtime::new()?.block_on(async {
/// let (one, mut other) = anello::io::duplex(64);
/// greet(one).await?;
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// assert_eq!(other.recv().await?, None);
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait AsyncSend {
    /// Polls until the bytes are accepted. When ready without an error, `bytes` is `None`. Otherwise, the task is woken
    /// once the writer can accept more, and `bytes` contains what has not been accepted yet: sockets and in-memory
    /// streams accept all bytes or none, pipes may have accepted some ([`SendBuf::advance`]).
    ///
    /// Accepted bytes are written even if the writer is not flushed.
    ///
    /// # Errors
    /// Returns the error of the writer, for example if its connection is broken.
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Polls until all accepted bytes are written, for example until the kernel has taken them.
    ///
    /// # Errors
    /// See [`poll_send`](Self::poll_send).
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Shuts down the writer: after the accepted bytes, its peer reads EOF. Later sends fail.
    ///
    /// # Errors
    /// See [`poll_send`](Self::poll_send). A peer that has closed the connection is not an error.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sends bytes, and returns once they are accepted. Cancel-safe for sockets and in-memory streams: a dropped future
    /// has accepted nothing. A pipe may have accepted some of the bytes.
    ///
    /// # Errors
    /// See [`poll_send`](Self::poll_send).
    fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>>
    where
        Self: Sized,
    {
        let mut bytes = Some(bytes.into());
        poll_fn(move |context| self.poll_send(&mut bytes, context))
    }

    /// Waits until all accepted bytes are written. Cancel-safe.
    ///
    /// # Errors
    /// See [`poll_send`](Self::poll_send).
    fn flush(&mut self) -> impl Future<Output = io::Result<()>>
    where
        Self: Sized,
    {
        poll_fn(|context| self.poll_flush(context))
    }

    /// Shuts down the writer; see [`poll_shutdown`](Self::poll_shutdown). Cancel-safe.
    ///
    /// # Errors
    /// See [`poll_shutdown`](Self::poll_shutdown).
    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>>
    where
        Self: Sized,
    {
        poll_fn(|context| self.poll_shutdown(context))
    }
}

/// Stream whose two directions can be used at the same time, as two halves.
///
/// ```
/// use anello::io::{AsyncSplit, copy};
///
/// async fn echo(mut stream: impl AsyncSplit) -> std::io::Result<u64> {
///     let (mut reader, mut writer) = stream.halves();
///     copy(&mut reader, &mut writer).await
/// }
/// # anello::Runtime::new()?.block_on(async {
/// let (mut one, other) = anello::io::duplex(64);
/// one.send("ciao").await?;
/// one.shutdown().await?;
/// assert_eq!(echo(other).await?, 4);
/// assert_eq!(one.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait AsyncSplit {
    /// Read half.
    type Reader<'a>: AsyncRecv
    where
        Self: 'a;
    /// Write half.
    type Writer<'a>: AsyncSend
    where
        Self: 'a;

    /// Borrows the stream as two halves.
    fn halves(&mut self) -> (Self::Reader<'_>, Self::Writer<'_>);
}

impl<R: AsyncRecv + ?Sized> AsyncRecv for &mut R {
    type Buf = R::Buf;

    #[inline]
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<R::Buf>>> {
        (**self).poll_recv(context)
    }
}

impl<W: AsyncSend + ?Sized> AsyncSend for &mut W {
    #[inline]
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_send(bytes, context)
    }

    #[inline]
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_flush(context)
    }

    #[inline]
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_shutdown(context)
    }
}
