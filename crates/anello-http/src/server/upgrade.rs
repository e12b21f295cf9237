//! A connection that has gone over to another protocol.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::transport::{Receiver, Sender};

/// Both sides of a connection, whatever it runs on.
trait Duplex {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>>;
    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>>;
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

struct SplitDuplex<R, W> {
    receiver: R,
    sender: W,
}

impl<R: Receiver, W: Sender> Duplex for SplitDuplex<R, W> {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let chunk = ready!(self.receiver.poll_receive(context))?;
        Poll::Ready(Ok(chunk.map(|chunk| Bytes::copy_from_slice(&chunk))))
    }

    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.sender.poll_write(bytes, context)
    }

    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sender.poll_drive(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sender.poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sender.poll_shutdown(context)
    }
}

/// A connection on which another protocol is spoken from now on; see
/// [`Response::upgrade`](crate::Response::upgrade). It has no deadlines but its program's own, and is closed when dropped.
pub struct Upgraded {
    stream: Box<dyn Duplex>,
    /// What had come behind the request already.
    buffered: Bytes,
}

impl Upgraded {
    pub(crate) fn new<R: Receiver, W: Sender>(receiver: R, sender: W, buffered: Vec<u8>) -> Self {
        Self { stream: Box::new(SplitDuplex { receiver, sender }), buffered: buffered.into() }
    }

    /// Waits for bytes; `None` when the client has ended its side. Cancel-safe.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn recv(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As there.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if !self.buffered.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.buffered))));
        }
        self.stream.poll_receive(context)
    }

    /// Copies as many of `bytes` as there is room for into what is to be sent. Under TLS, some of them may be kept back
    /// until the next call when the client reads slowly: call [`flush`](Self::flush) before waiting for something else.
    /// [`write_all`](Self::write_all) needs none. Cancel-safe.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.stream.poll_write(bytes, context)).await
    }

    /// Copies all of `bytes`, waiting for room as often as needed. Not cancel-safe: how much was accepted is not known.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes).await?;
            bytes = &bytes[count..];
        }
        // The program may wait for something else now, for as long as it likes.
        poll_fn(|context| self.stream.poll_drive(context)).await
    }

    /// Waits until everything accepted has gone to the kernel. Cancel-safe.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.stream.poll_flush(context)).await
    }

    /// Sends everything accepted and ends this side. Cancel-safe.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|context| self.stream.poll_shutdown(context)).await
    }
}

impl std::fmt::Debug for Upgraded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Upgraded").field("first_bytes", &self.buffered.len()).finish_non_exhaustive()
    }
}
