//! Implementations of `hyper::rt::Read` and `Write`.

use std::io;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};

use super::poll::{impl_read, impl_write};
use crate::net::{Connection, Sealed, StreamFamily, StreamSocket};

#[inline]
fn poll_read(
    connection: &Connection,
    context: &mut Context<'_>,
    mut buffer: ReadBufCursor<'_>,
) -> Poll<io::Result<()>> {
    let room = buffer.remaining();
    connection.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
}

impl_read!([F: StreamFamily] Read for StreamSocket<F>, poll_read(ReadBufCursor<'_>) -> ());
// A flush is ready once the bytes are queued for submission. Hyper flushes after each response, and waiting for the
// kernel would cost a wake-up per response.
impl_write!([F: StreamFamily] Write for StreamSocket<F>, poll_submitted, poll_shutdown, is_write_vectored);
