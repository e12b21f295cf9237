//! One stream from a reader and a writer.

use std::io;
use std::task::{Context, Poll};

use super::traits::{AsyncRecv, AsyncSend, AsyncSplit};
use crate::driver::SendBuf;

/// Stream that consists of a reader and a writer; see [`join`].
///
/// ```
/// # anello::example! {
/// use anello::io::{Join, SimplexReader, SimplexWriter, copy_bidirectional, duplex, join, simplex};
///
/// let (mut peer, mut stream) = duplex(64);
/// let ((reader, mut input), (mut output, writer)) = (simplex(64), simplex(64));
/// let mut joined: Join<SimplexReader, SimplexWriter> = join(reader, writer);
/// input.send("ciao").await?;
/// drop(input);
/// peer.shutdown().await?;
/// assert_eq!(copy_bidirectional(&mut joined, &mut stream).await?, (4, 0));
/// assert_eq!(peer.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// assert!(output.recv().await?.is_none());
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Join<R, W> {
    reader: R,
    writer: W,
}

/// Joins a reader and a writer into one stream, for example for [`copy_bidirectional`](super::copy_bidirectional).
///
/// ```
/// # anello::example! {
/// use anello::io::{join, simplex};
///
/// let ((reader, mut input), (mut output, writer)) = (simplex(64), simplex(64));
/// let mut stream = join(reader, writer);
/// input.send("ciao").await?;
/// let received = anello::io::AsyncRecv::recv(&mut stream).await?.expect("bytes");
/// anello::io::AsyncSend::send(&mut stream, received).await?;
/// assert_eq!(output.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
pub fn join<R, W>(reader: R, writer: W) -> Join<R, W> {
    Join { reader, writer }
}

impl<R, W> Join<R, W> {
    /// Returns the reader and the writer.
    ///
    /// ```
    /// # anello::example! {
    /// let ((reader, mut input), (_output, writer)) = (anello::io::simplex(64), anello::io::simplex(64));
    /// let (mut reader, _writer) = anello::io::join(reader, writer).into_inner();
    /// input.send("ciao").await?;
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn into_inner(self) -> (R, W) {
        (self.reader, self.writer)
    }

    /// Returns a reference to the reader.
    ///
    /// ```
    /// # anello::example! {
    /// let (reader, writer) = anello::net::pipe::pipe().map(|(writer, reader)| (reader, writer))?;
    /// let stream = anello::io::join(reader, writer);
    /// stream.writer().write_all(b"ciao").await?;
    /// assert_eq!(stream.reader().read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns a reference to the writer.
    ///
    /// ```
    /// # anello::example! {
    /// # let (writer, reader) = anello::net::pipe::pipe()?;
    /// let stream = anello::io::join(reader, writer);
    /// assert_eq!(stream.writer().write(b"ciao").await?, 4);
    /// # }
    /// ```
    pub fn writer(&self) -> &W {
        &self.writer
    }

    /// Returns a mutable reference to the reader.
    ///
    /// ```
    /// # anello::example! {
    /// # let (reader, mut input) = anello::io::simplex(64);
    /// # let (_output, writer) = anello::io::simplex(64);
    /// let mut stream = anello::io::join(reader, writer);
    /// input.send("ciao").await?;
    /// assert_eq!(stream.reader_mut().read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn reader_mut(&mut self) -> &mut R {
        &mut self.reader
    }

    /// Returns a mutable reference to the writer.
    ///
    /// ```
    /// # anello::example! {
    /// # let (reader, _input) = anello::io::simplex(64);
    /// # let (mut output, writer) = anello::io::simplex(64);
    /// let mut stream = anello::io::join(reader, writer);
    /// stream.writer_mut().write_all(b"ciao").await?;
    /// assert_eq!(output.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn writer_mut(&mut self) -> &mut W {
        &mut self.writer
    }
}

impl<R: AsyncRecv, W> AsyncRecv for Join<R, W> {
    type Buf = R::Buf;

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<R::Buf>>> {
        self.reader.poll_recv(context)
    }
}

impl<R, W: AsyncSend> AsyncSend for Join<R, W> {
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

impl<R: AsyncRecv, W: AsyncSend> AsyncSplit for Join<R, W> {
    type Reader<'a>
        = &'a mut R
    where
        Self: 'a;
    type Writer<'a>
        = &'a mut W
    where
        Self: 'a;

    fn halves(&mut self) -> (&mut R, &mut W) {
        (&mut self.reader, &mut self.writer)
    }
}
