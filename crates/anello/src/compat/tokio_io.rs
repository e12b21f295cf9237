//! Implementations of tokio's read and seek traits. They do not use the tokio runtime.

use std::io::{self, IoSliceMut, SeekFrom};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};

use super::poll::impl_read;
use crate::fs::File;
use crate::io::{DuplexReadHalf, DuplexStream};
use crate::net::{ByteStream, Connection, ReadHalf, Sealed, StreamFamily, StreamSocket};

/// Copies received bytes directly into uninitialized memory, which a `&mut [u8]` would require to be zeroed first.
fn read(
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

fn copy(
    reader: &mut DuplexReadHalf,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let room = buffer.remaining();
    reader.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
}

fn read_file(file: &File, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    let unfilled = IoSliceMut::new(buffer.initialize_unfilled());
    file.poll_read(context, &mut [unfilled]).map_ok(|count| buffer.advance(count))
}

impl_read!(AsyncRead, [F: StreamFamily] StreamSocket<F>, |stream| stream.connection(), read(&mut ReadBuf<'_>) -> ());
impl_read!(
    AsyncRead, [P: Deref<Target: ByteStream> + Unpin] ReadHalf<P>, |half| half.connection(), read(&mut ReadBuf<'_>) -> ()
);
impl_read!(AsyncRead, [] DuplexReadHalf, |reader| reader, copy(&mut ReadBuf<'_>) -> ());
impl_read!(AsyncRead, [] DuplexStream, |stream| &mut stream.reader, copy(&mut ReadBuf<'_>) -> ());

impl_read!(AsyncRead, [] File, |file| &*file, read_file(&mut ReadBuf<'_>) -> ());

impl AsyncSeek for File {
    fn start_seek(self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.request_seek(position);
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.poll_requested_seek(context)
    }
}
