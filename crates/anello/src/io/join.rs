//! One stream from a reader and a writer.

use std::io;
use std::task::{Context, Poll};

use super::traits::{AsyncRecv, AsyncSend, AsyncSplit};
use crate::driver::SendBuf;

/// Stream that consists of a reader and a writer; see [`join`].
#[derive(Clone, Debug, Default)]
pub struct Join<R, W> {
    reader: R,
    writer: W,
}

/// Joins a reader and a writer into one stream, for example for [`copy_bidirectional`](super::copy_bidirectional).
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::io::{join, simplex};
///
/// let ((reader, mut input), (mut output, writer)) = (simplex(64), simplex(64));
/// let mut stream = join(reader, writer);
/// input.send("ciao").await?;
/// let received = anello::io::AsyncRecv::recv(&mut stream).await?.expect("bytes");
/// anello::io::AsyncSend::send(&mut stream, received).await?;
/// assert_eq!(output.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn join<R, W>(reader: R, writer: W) -> Join<R, W> {
    Join { reader, writer }
}

impl<R, W> Join<R, W> {
    /// Returns the reader and the writer.
    pub fn into_inner(self) -> (R, W) {
        (self.reader, self.writer)
    }

    /// Returns the reader.
    pub fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns the writer.
    pub fn writer(&self) -> &W {
        &self.writer
    }

    /// Returns the reader.
    pub fn reader_mut(&mut self) -> &mut R {
        &mut self.reader
    }

    /// Returns the writer.
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
