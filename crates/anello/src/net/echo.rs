//! The echo service (RFC 862).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::stream::Sealed;
use super::{Chunk, SendBuf};
#[cfg(doc)]
use super::{TcpStream, UnixStream};

/// Sends back whatever arrives until the peer ends its side, then everything that is still owed; yields the bytes
/// echoed. Takes a [`TcpStream`] or [`UnixStream`], which is closed with the future, or a mutable borrow of one, which
/// stays open for the caller to close.
///
/// No copy and no allocation per message: chunks are sent from the memory they were received into. It is the loop of
/// `recv` and `send` that a program would write with `await`, as one future by hand, which saves a few dozen
/// instructions a message, and cache misses where there are thousands of connections. Not cancel-safe: a chunk taken and
/// not yet accepted for sending is dropped with the future.
///
/// # Errors
/// When the connection breaks.
pub fn echo<S: Sealed>(stream: S) -> Echo<S> {
    Echo { stream, echoed_bytes: 0, owed: None }
}

/// The future of [`echo`].
///
/// What a message touches comes first: in a task it then lies in the cache line that the executor touches anyway.
#[derive(Debug)]
#[repr(C)]
#[must_use = "nothing is echoed unless the future is awaited"]
pub struct Echo<S> {
    stream: S,
    echoed_bytes: u64,
    /// Taken, and not yet accepted for sending.
    owed: Option<SendBuf>,
}

impl<S: Sealed + Unpin> Future for Echo<S> {
    type Output = io::Result<u64>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let stream = this.stream.inner();
        loop {
            if this.owed.is_some() {
                ready!(stream.poll_send(&mut this.owed, context))?;
            }
            let mut received: Option<Chunk> = None;
            ready!(stream.poll_recv(&mut received, context))?;
            let Some(chunk) = received else {
                // The end stays the end: a poll that comes back to flush on finds it again.
                return stream.poll_flush(context).map_ok(|()| this.echoed_bytes);
            };
            this.echoed_bytes += chunk.len() as u64;
            let mut owed = Some(SendBuf::Chunk(chunk));
            if stream.poll_send(&mut owed, context)?.is_pending() {
                this.owed = owed;
                return Poll::Pending;
            }
        }
    }
}
