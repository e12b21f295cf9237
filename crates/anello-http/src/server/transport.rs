//! What connections run on: plain sockets of either family, or TLS over them.

use std::future::{Future, poll_fn};
use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use anello::fs::File;
use anello::net::{Chunk, OwnedReadHalf, OwnedWriteHalf, Stream};
use bytes::Bytes;

/// The receiving side.
pub(crate) trait Receiver: 'static {
    /// Bytes where they lie.
    type Chunk: Deref<Target = [u8]>;

    /// The next bytes; `None` at the end.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Self::Chunk>>>;
}

/// The sending side.
pub(crate) trait Sender: 'static {
    /// Accepts as many of these bytes as there is room for.
    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>>;
    /// As [`poll_write`](Self::poll_write), of bytes that more follows, or the end.
    fn poll_write_more(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_write(bytes, context)
    }
    /// Ready when everything accepted has gone to the kernel.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Goes on handing to the socket what was accepted, where the socket does not do that by itself.
    fn poll_drive(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    /// Says that no more follows, where the protocol below has a word for that, when everything accepted has gone.
    fn poll_close_notify(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Says so, and ends this side.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Sends shared bytes, from where they lie if it can.
    fn send(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>>;
    /// Sends a part of a file; how many bytes, fewer when it has ended. `on_progress` is called when some of it has gone, with
    /// how many bytes.
    fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        length: u64,
        on_progress: impl FnMut(u64),
    ) -> impl Future<Output = io::Result<u64>>;

    /// Accepts all of these bytes.
    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = poll_fn(|context| self.poll_write(bytes, context)).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }
}

impl<S: Stream> Receiver for OwnedReadHalf<S> {
    type Chunk = Chunk;

    #[inline]
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        // Receiving is cancel-safe: the future keeps nothing from one poll to the next.
        pin!(self.recv()).poll(context)
    }
}

impl<S: Stream> Sender for OwnedWriteHalf<S> {
    // Cancel-safe, all three: the futures keep nothing from one poll to the next.

    #[inline]
    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        pin!(self.write(bytes)).poll(context)
    }

    fn poll_write_more(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        pin!(self.write_more(bytes)).poll(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(self.flush()).poll(context)
    }

    fn poll_close_notify(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was accepted is sent, and the socket closed then.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Until the kernel has taken all of it, the deadline for writes holds.
        ready!(self.poll_flush(context))?;
        pin!(self.shutdown()).poll(context)
    }

    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        OwnedWriteHalf::send(self, bytes).await
    }

    async fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        length: u64,
        on_progress: impl FnMut(u64),
    ) -> io::Result<u64> {
        self.send_file_with_progress(file, offset, length, on_progress).await
    }
}
