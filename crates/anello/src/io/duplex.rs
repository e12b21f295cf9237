//! In-memory streams.

use std::future::Future;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::duplex_halves::{DuplexReadHalf, DuplexWriteHalf, pipe};
use super::traits::{AsyncRecv, AsyncSend, AsyncSplit};
use crate::driver::SendBuf;

/// In-memory stream; see [`duplex`]. Dropping it closes both.
///
/// ```
/// # anello::example! {
/// use anello::io::{DuplexStream, duplex};
///
/// /// Sends back one message.
/// async fn echo(mut stream: DuplexStream) -> std::io::Result<()> {
///     let received = stream.recv().await?.expect("bytes");
///     stream.send(received).await
/// }
/// let (mut client, server) = duplex(64);
/// client.send("ciao").await?;
/// echo(server).await?;
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
#[derive(Debug)]
pub struct DuplexStream {
    pub(crate) reader: DuplexReadHalf,
    pub(crate) writer: DuplexWriteHalf,
}

/// Creates two streams that are connected to each other. In each direction, bytes are accepted while fewer than
/// `max_bytes` are waiting to be received.
///
/// The streams and their halves have the methods of sockets, consume budget as these do, and implement the traits of
/// [`compat`](crate::compat). They are `Send`. Buffers are transferred without a copy. For one direction, use only one
/// stream to send and the other to receive.
///
/// ```
/// # anello::example! {
/// let (mut client, mut server) = anello::io::duplex(64);
/// client.send("ping").await?;
/// assert_eq!(server.recv().await?.as_deref(), Some(&b"ping"[..]));
/// server.send("pong").await?;
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"pong"[..]));
/// # }
/// ```
///
/// # Panics
/// Panics if `max_bytes` is 0.
#[track_caller]
pub fn duplex(max_bytes: usize) -> (DuplexStream, DuplexStream) {
    assert!(max_bytes > 0, "cannot create streams: capacity is 0 (request at least one byte)");
    let ((one_reader, other_writer), (other_reader, one_writer)) = (pipe(max_bytes), pipe(max_bytes));
    (
        DuplexStream { reader: one_reader, writer: one_writer },
        DuplexStream { reader: other_reader, writer: other_writer },
    )
}

impl DuplexStream {
    /// Borrows the stream as two halves, for two futures in one task.
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.send("ciao").await?;
    /// let (reader, writer) = server.split();
    /// writer.send(reader.recv().await?.expect("bytes")).await?;
    /// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn split(&mut self) -> (&mut DuplexReadHalf, &mut DuplexWriteHalf) {
        (&mut self.reader, &mut self.writer)
    }

    /// Splits the stream into two independent halves, for two tasks.
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, server) = anello::io::duplex(64);
    /// let (mut reader, mut writer) = server.into_split();
    /// anello::spawn(async move { writer.send("ciao").await });
    /// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// drop(client);
    /// assert!(reader.recv().await?.is_none());
    /// # }
    /// ```
    pub fn into_split(self) -> (DuplexReadHalf, DuplexWriteHalf) {
        (self.reader, self.writer)
    }

    /// Receives the next bytes, in the buffer in which they were sent. See [`DuplexReadHalf::recv`].
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.send("ciao").await?;
    /// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>> {
        self.reader.recv()
    }

    /// Copies received bytes into `buffer` and returns their number. See [`DuplexReadHalf::read`].
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.send("ciao").await?;
    /// assert_eq!(server.read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.reader.read(buffer)
    }

    /// Fills `buffer`. See [`DuplexReadHalf::read_exact`].
    ///
    /// # Errors
    /// See [`DuplexReadHalf::read_exact`].
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.send("ciao").await?;
    /// drop(client);
    /// server.read_exact(&mut [0; 3]).await?;
    /// let error = server.read_exact(&mut [0; 3]).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    /// # }
    /// ```
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(buffer).await
    }

    /// Sends owned bytes, and returns once they are accepted. See [`DuplexWriteHalf::send`].
    ///
    /// # Errors
    /// See [`DuplexWriteHalf::send`].
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.send("ciao").await?;
    /// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> {
        self.writer.send(bytes)
    }

    /// Copies as many of `bytes` as can be accepted, and returns their number. See [`DuplexWriteHalf::write`].
    ///
    /// # Errors
    /// See [`DuplexWriteHalf::send`].
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, _server) = anello::io::duplex(3);
    /// assert_eq!(client.write(b"ciao").await?, 3);
    /// # }
    /// ```
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.writer.write(bytes)
    }

    /// Writes all of `bytes`. See [`DuplexWriteHalf::write_all`].
    ///
    /// # Errors
    /// See [`DuplexWriteHalf::send`].
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.write_all(b"ciao").await?;
    /// assert_eq!(server.read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await
    }

    /// Does nothing, because accepted bytes can be received immediately. See [`DuplexWriteHalf::flush`].
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.send("ciao").await?;
    /// client.flush().await?;
    /// assert_eq!(server.read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Shuts down the write direction: the peer receives the accepted bytes, then EOF. See
    /// [`DuplexWriteHalf::shutdown`].
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// let (mut client, mut server) = anello::io::duplex(64);
    /// client.shutdown().await?;
    /// assert!(server.recv().await?.is_none());
    /// server.send("response").await?;
    /// assert_eq!(client.recv().await?.as_deref(), Some(&b"response"[..]));
    /// # }
    /// ```
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.writer.shutdown().await
    }
}

impl AsyncRecv for DuplexStream {
    type Buf = Bytes;

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        self.reader.poll_recv(context)
    }
}

impl AsyncSend for DuplexStream {
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_send(bytes, context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_shutdown(context)
    }
}

impl AsyncSplit for DuplexStream {
    type Reader<'a> = &'a mut DuplexReadHalf;
    type Writer<'a> = &'a mut DuplexWriteHalf;

    fn halves(&mut self) -> (&mut DuplexReadHalf, &mut DuplexWriteHalf) {
        self.split()
    }
}
