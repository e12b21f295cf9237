//! The echo service (RFC 862).

use std::future::{Future, poll_fn};
use std::io;
use std::task::ready;

use super::{Outgoing, TcpStream};

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
    let stream = stream.inner();
    let (mut owed, mut ended, mut echoed_bytes) = (None, false, 0);
    poll_fn(move |context| {
        loop {
            if owed.is_some() {
                ready!(stream.poll_send(&mut owed, context))?;
            }
            if ended {
                return stream.poll_flush(context).map_ok(|()| echoed_bytes);
            }
            match ready!(stream.poll_recv(context))? {
                Some(chunk) => {
                    echoed_bytes += chunk.len() as u64;
                    owed = Some(Outgoing::Chunk(chunk));
                }
                None => ended = true,
            }
        }
    })
}
