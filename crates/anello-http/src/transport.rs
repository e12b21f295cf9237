//! Connection transports: TCP and Unix sockets, with or without TLS.

use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use anello::fs::File;
use anello::log_event;
use anello::net::{ByteStream, Chunk, OwnedReadHalf, OwnedWriteHalf, SendBuf};

/// Maximum capacity of a buffer that is sent without a copy. A larger one is passed to the kernel immediately, and
/// reused while it is in the CPU cache.
pub(crate) const MAX_MOVED_BYTES: usize = 4 * 1024;

pub(crate) trait Receiver: 'static {
    type Chunk: Deref<Target = [u8]>;

    /// Polls for the next bytes. Returns `None` at EOF.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Self::Chunk>>>;
    /// Returns whether HTTP/2 was negotiated with the client, or `None` if the transport does not negotiate. Known once
    /// bytes have been received.
    #[cfg(feature = "http2")]
    fn has_negotiated_http2(&self) -> Option<bool> {
        None
    }
}

/// The dyn-compatible operations of a sender.
pub(crate) trait PollSender: 'static {
    /// Accepts as many bytes as fit, and returns their number.
    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>>;
    /// Like [`poll_write`](Self::poll_write), for use when more bytes or a shutdown will follow immediately.
    fn poll_write_more(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_write(bytes, context)
    }
    /// Completes when the kernel has accepted all data.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Passes accepted data to the socket, unless the transport does so on its own.
    fn poll_drive(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    /// Continues sending while the task waits for another event. A connection error is reported by the next send.
    fn poll_progress(&mut self, context: &mut Context<'_>) {
        if let Poll::Ready(Err(error)) = self.poll_drive(context) {
            log_event!(DEBUG, %error, "connection failed while waiting for the handler or the response body");
        }
    }
    /// Sends the transport's close notification, if it has one, after the accepted data.
    fn poll_close_notify(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Sends the close notification, flushes all data and shuts down the write half.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

pub(crate) trait Sender: PollSender {
    /// Maximum length of a part of a body that is copied, so that it is sent together with other data.
    const MAX_COPIED_BYTES: usize;

    /// Sends the bytes. The transport may take them out of `buffer`, which is then empty.
    fn send(&mut self, buffer: &mut Vec<u8>) -> impl Future<Output = io::Result<()>>;
    /// Sends the buffers in order, without copies if possible.
    fn send_vectored(&mut self, buffers: Vec<SendBuf>) -> impl Future<Output = io::Result<()>>;
    /// Sends a range of a file. Returns the number of bytes sent, which is less than requested if the file is too
    /// short. Each time a part has been sent, calls `on_progress` with its number of bytes.
    fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        length: u64,
        on_progress: impl FnMut(u64),
    ) -> impl Future<Output = io::Result<u64>>;

    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = poll_fn(|context| self.poll_write(bytes, context)).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }
}

impl<S: ByteStream> Receiver for OwnedReadHalf<S> {
    type Chunk = Chunk;

    #[inline]
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        // Cancel-safe: the future keeps no state between polls.
        pin!(self.recv()).poll(context)
    }
}

impl<S: ByteStream> PollSender for OwnedWriteHalf<S> {
    // All methods are cancel-safe: the futures keep no state between polls.

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
        // There is no notification. Accepted data is sent before the socket is closed.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The send timeout applies until the kernel has accepted everything.
        ready!(self.poll_flush(context))?;
        pin!(self.shutdown()).poll(context)
    }
}

impl<S: ByteStream> Sender for OwnedWriteHalf<S> {
    // Longer parts are cheaper to send as separate slices of one system call.
    const MAX_COPIED_BYTES: usize = 2 * 1024;

    #[inline]
    async fn send(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        if buffer.capacity() <= MAX_MOVED_BYTES {
            return OwnedWriteHalf::send(self, mem::take(buffer)).await;
        }
        Sender::write_all(self, buffer).await
    }

    async fn send_vectored(&mut self, buffers: Vec<SendBuf>) -> io::Result<()> {
        OwnedWriteHalf::send_vectored(self, buffers).await
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
