//! The echo service (RFC 862).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Chunk, Outgoing, TcpStream};

/// Sends back whatever arrives until the peer ends its side, then everything that is still owed; yields the bytes
/// echoed. The connection stays open for the caller to close.
///
/// No copy and no allocation per message: chunks are sent from the memory they were received into. It is the loop of
/// `recv` and `send` that a program would write with `await`, as one future by hand, which saves a few dozen
/// instructions a message. Not cancel-safe: a chunk taken and not yet accepted for sending is dropped with the future.
///
/// # Errors
/// When the connection breaks.
pub fn echo(stream: &mut TcpStream) -> impl Future<Output = io::Result<u64>> + '_ {
    Echo { stream, owed: None, ended: false, echoed_bytes: 0 }
}

struct Echo<'a> {
    stream: &'a TcpStream,
    /// Taken, and not yet accepted for sending.
    owed: Option<Outgoing>,
    ended: bool,
    echoed_bytes: u64,
}

impl Future for Echo<'_> {
    type Output = io::Result<u64>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let stream = this.stream.inner();
        loop {
            if this.owed.is_some() {
                ready!(stream.poll_send(&mut this.owed, context))?;
            }
            if this.ended {
                return stream.poll_flush(context).map_ok(|()| this.echoed_bytes);
            }
            let mut received: Option<Chunk> = None;
            ready!(stream.poll_recv(&mut received, context))?;
            let Some(chunk) = received else {
                this.ended = true;
                continue;
            };
            this.echoed_bytes += chunk.len() as u64;
            let mut owed = Some(Outgoing::Chunk(chunk));
            if stream.poll_send(&mut owed, context)?.is_pending() {
                this.owed = owed;
                return Poll::Pending;
            }
        }
    }
}
