//! Connections that have switched to another protocol.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::transport::{BytesReceiver, PollSender, Receiver};

/// A connection that has switched to another protocol; see [`Response::upgrade`](crate::Response::upgrade).
///
/// The server applies no timeouts to it. It is closed when dropped. Its methods return an error if the connection
/// fails.
pub struct Upgraded {
    receiver: Box<dyn BytesReceiver>,
    sender: Box<dyn PollSender>,
    /// Data received after the request, before the upgrade.
    buffered: Bytes,
}

impl Upgraded {
    pub(crate) fn new(receiver: impl Receiver, sender: impl PollSender, buffered: Vec<u8>) -> Self {
        Self { receiver: Box::new(receiver), sender: Box::new(sender), buffered: buffered.into() }
    }

    /// Waits for data. Returns `None` at EOF. Cancel-safe: no data is lost.
    pub async fn recv(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Polls for data, like [`recv`](Self::recv).
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if !self.buffered.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.buffered))));
        }
        self.receiver.poll_bytes(context)
    }

    /// Copies as many of `bytes` as fit into the send buffer and returns their number.
    ///
    /// Under TLS, some of the bytes may be held back until the next call if the client reads slowly: call
    /// [`flush`](Self::flush) before waiting for anything else. After [`write_all`](Self::write_all) this is not
    /// needed. Cancel-safe: if the future is dropped, no data was accepted.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.sender.poll_write(bytes, context)).await
    }

    /// Copies all of `bytes` into the send buffer, waiting for space as needed. Not cancel-safe: it is unknown how many
    /// bytes were accepted.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes).await?;
            bytes = &bytes[count..];
        }
        // The caller may wait for another event next, for an unlimited time.
        poll_fn(|context| self.sender.poll_drive(context)).await
    }

    /// Waits until the kernel has accepted all data. Cancel-safe.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.sender.poll_flush(context)).await
    }

    /// Sends all data, then shuts down the write half. Cancel-safe.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|context| self.sender.poll_shutdown(context)).await
    }
}

impl fmt::Debug for Upgraded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Upgraded").finish_non_exhaustive()
    }
}
