//! Traits of readers and writers of owned buffers.

use std::future::{Future, poll_fn};
use std::io;
use std::task::{Context, Poll};

use crate::driver::SendBuf;

/// Reader of owned buffers, such as the read half of a stream.
///
/// In contrast to `AsyncRead`, the reader chooses the buffer and transfers its ownership, so that no bytes need to be
/// copied. Types of other crates can implement this trait.
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
/// # anello::example! {
/// let (mut one, other) = anello::io::duplex(64);
/// one.send("ciao").await?;
/// drop(one);
/// assert_eq!(count(other).await?, 4);
/// # }
/// ```
pub trait AsyncRecv {
    /// Buffer of received bytes.
    type Buf: AsRef<[u8]> + Into<SendBuf>;

    /// Polls for the next bytes. Returns `None` at EOF, and never returns an empty buffer. If it is not ready, wakes
    /// the task once it is; bytes that have arrived stay in the reader until they are returned.
    ///
    /// # Errors
    /// Returns the error of the reader, for example if its connection is broken.
    ///
    /// ```
    /// use std::task::{Context, Poll};
    ///
    /// use anello::io::AsyncRecv;
    ///
    /// /// Returns its bytes once.
    /// struct Once(Option<Vec<u8>>);
    ///
    /// impl AsyncRecv for Once {
    ///     type Buf = Vec<u8>;
    ///
    ///     fn poll_recv(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<Option<Vec<u8>>>> {
    ///         Poll::Ready(Ok(self.0.take()))
    ///     }
    /// }
    /// # anello::example! {
    /// let mut reader = Once(Some(b"ciao".to_vec()));
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// assert!(reader.recv().await?.is_none());
    /// # }
    /// ```
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Self::Buf>>>;

    /// Receives the next bytes. Returns `None` at EOF. Cancel-safe.
    ///
    /// # Errors
    /// See [`poll_recv`](Self::poll_recv).
    ///
    /// ```
    /// # anello::example! {
    /// use anello::io::{AsyncRecv, duplex};
    ///
    /// let (mut reader, mut writer) = duplex(64);
    /// writer.send("ciao").await?;
    /// drop(writer);
    /// assert_eq!(AsyncRecv::recv(&mut reader).await?.as_deref(), Some(&b"ciao"[..]));
    /// assert!(AsyncRecv::recv(&mut reader).await?.is_none());
    /// # }
    /// ```
    fn recv(&mut self) -> impl Future<Output = io::Result<Option<Self::Buf>>>
    where
        Self: Sized,
    {
        poll_fn(|context| self.poll_recv(context))
    }

    /// Receives bytes until EOF, appends them to `bytes`, and returns their number. If the future is dropped, the bytes
    /// received so far are in `bytes`.
    ///
    /// Copies each buffer, and sets no limit: a peer that never stops sending fills the memory.
    ///
    /// # Errors
    /// See [`poll_recv`](Self::poll_recv). The bytes received before the error are in `bytes`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::io::AsyncRecv;
    /// use anello::net::UnixStream;
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.send("ciao ").await?;
    /// one.send("mondo").await?;
    /// drop(one);
    /// let mut bytes = Vec::new();
    /// assert_eq!(other.read_to_end(&mut bytes).await?, 10);
    /// assert_eq!(bytes, b"ciao mondo");
    /// # }
    /// ```
    fn read_to_end(&mut self, bytes: &mut Vec<u8>) -> impl Future<Output = io::Result<usize>>
    where
        Self: Sized,
    {
        async move {
            let before = bytes.len();
            while let Some(buffer) = self.recv().await? {
                bytes.extend_from_slice(buffer.as_ref());
            }
            Ok(bytes.len() - before)
        }
    }

    /// Receives text until EOF, appends it to `text`, and returns the number of bytes.
    ///
    /// Not cancel-safe: if the future is dropped, the text that has been received is lost. Sets no limit, see
    /// [`read_to_end`](Self::read_to_end).
    ///
    /// # Errors
    /// See [`poll_recv`](Self::poll_recv). Also returns `InvalidData` if the bytes are not UTF-8. `text` is then
    /// unchanged.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::io::{AsyncRecv, duplex};
    ///
    /// let (mut reader, mut writer) = duplex(64);
    /// writer.send("ciao").await?;
    /// drop(writer);
    /// let mut text = String::new();
    /// assert_eq!(reader.read_to_string(&mut text).await?, 4);
    /// assert_eq!(text, "ciao");
    /// # }
    /// ```
    fn read_to_string(&mut self, text: &mut String) -> impl Future<Output = io::Result<usize>>
    where
        Self: Sized,
    {
        async move {
            let mut bytes = Vec::new();
            let count = self.read_to_end(&mut bytes).await?;
            let received = String::from_utf8(bytes).map_err(|_invalid| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    "cannot receive text: the bytes are not valid UTF-8",
                )
            })?;
            text.push_str(&received);
            Ok(count)
        }
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
/// # anello::example! {
/// let (one, mut other) = anello::io::duplex(64);
/// greet(one).await?;
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// assert_eq!(other.recv().await?, None);
/// # }
/// ```
pub trait AsyncSend {
    /// Polls until the bytes are accepted. When ready without an error, `bytes` is `None`. Otherwise, the task is woken
    /// once the writer can accept more, and `bytes` contains what has not been accepted yet: sockets and in-memory
    /// streams accept all bytes or none, pipes and files may have accepted some ([`SendBuf::advance`]).
    ///
    /// Accepted bytes are written even if the writer is not flushed.
    ///
    /// # Errors
    /// Returns the error of the writer, for example if its connection is broken.
    ///
    /// ```
    /// # anello::example! {
    /// use std::future::poll_fn;
    ///
    /// use anello::io::{AsyncSend, duplex};
    /// use anello::net::SendBuf;
    ///
    /// let (mut reader, mut writer) = duplex(64);
    /// let mut bytes = Some(SendBuf::from("ciao"));
    /// poll_fn(|context| writer.poll_send(&mut bytes, context)).await?;
    /// assert!(bytes.is_none(), "all bytes are accepted");
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Polls until all accepted bytes are written, for example until the kernel has taken them.
    ///
    /// # Errors
    /// See [`poll_send`](Self::poll_send).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// # use anello::io::AsyncSend;
    /// # use anello::net::UnixStream;
    /// let (mut one, other) = UnixStream::pair()?;
    /// one.send("ciao").await?;
    /// poll_fn(|context| one.poll_flush(context)).await?;
    /// other.readable().await?;
    /// assert_eq!(other.try_read(&mut [0; 16])?, 4);
    /// # }
    /// ```
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Shuts down the writer: after the accepted bytes, its peer reads EOF. Later sends fail.
    ///
    /// # Errors
    /// See [`poll_send`](Self::poll_send). A peer that has closed the connection is not an error.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// # use anello::io::{AsyncSend, duplex};
    /// let (mut reader, mut writer) = duplex(64);
    /// poll_fn(|context| writer.poll_shutdown(context)).await?;
    /// assert!(reader.recv().await?.is_none());
    /// assert!(writer.send("ciao").await.is_err());
    /// # }
    /// ```
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sends bytes, and returns once they are accepted. Cancel-safe for sockets and in-memory streams: a dropped future
    /// has accepted nothing. A pipe or a file may have accepted some of the bytes.
    ///
    /// # Errors
    /// See [`poll_send`](Self::poll_send).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{AsyncSend, duplex};
    /// let (mut reader, mut writer) = duplex(64);
    /// AsyncSend::send(&mut writer, vec![1, 2]).await?;
    /// AsyncSend::send(&mut writer, "tre").await?;
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&[1, 2][..]));
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"tre"[..]));
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::AsyncSend;
    /// /// Sends a request that must not wait in a queue.
    /// async fn request(writer: &mut impl AsyncSend) -> std::io::Result<()> {
    ///     writer.send("GET / HTTP/1.1\r\n\r\n").await?;
    ///     writer.flush().await
    /// }
    /// let (mut one, mut other) = anello::net::UnixStream::pair()?;
    /// request(&mut one).await?;
    /// assert_eq!(other.recv().await?.map(|chunk| chunk.len()), Some(18));
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{AsyncSend, duplex};
    /// let (mut reader, mut writer) = duplex(64);
    /// AsyncSend::shutdown(&mut writer).await?;
    /// assert!(reader.recv().await?.is_none());
    /// # }
    /// ```
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
/// # anello::example! {
/// let (mut one, other) = anello::io::duplex(64);
/// one.send("ciao").await?;
/// one.shutdown().await?;
/// assert_eq!(echo(other).await?, 4);
/// assert_eq!(one.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
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
    ///
    /// ```
    /// # anello::example! {
    /// use anello::io::{AsyncRecv, AsyncSend, AsyncSplit, duplex};
    ///
    /// let (mut one, mut other) = duplex(64);
    /// other.send("ciao").await?;
    /// let (mut reader, mut writer) = one.halves();
    /// let received = AsyncRecv::recv(&mut reader).await?.expect("bytes");
    /// AsyncSend::send(&mut writer, received).await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
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
