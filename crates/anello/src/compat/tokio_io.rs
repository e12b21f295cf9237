//! Implementations of `tokio::io::AsyncRead` and `AsyncWrite`. They do not use the tokio runtime.

use std::io;
use std::ops::Deref;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::poll::{impl_read, impl_write};
use crate::net::{Connection, ReadHalf, Sealed, Stream, StreamFamily, StreamSocket, WriteHalf};

/// Copies received bytes directly into uninitialized memory, which a `&mut [u8]` would require to be zeroed first.
fn poll_read(
    connection: &Connection,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if buffer.initialized().len() == buffer.capacity() {
        let count = ready!(connection.poll_read(buffer.initialize_unfilled(), context))?;
        buffer.advance(count);
        return Poll::Ready(Ok(()));
    }
    let room = buffer.remaining();
    connection.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
}

impl_read!([F: StreamFamily] AsyncRead for StreamSocket<F>, poll_read(&mut ReadBuf<'_>) -> ());
impl_read!([P: Deref<Target: Stream> + Unpin] AsyncRead for ReadHalf<P>, poll_read(&mut ReadBuf<'_>) -> ());
impl_write!([F: StreamFamily] AsyncWrite for StreamSocket<F>, poll_flush, poll_shutdown, is_write_vectored);
impl_write!([P: Deref<Target: Stream> + Unpin] AsyncWrite for WriteHalf<P>, poll_flush, poll_shutdown, is_write_vectored);
