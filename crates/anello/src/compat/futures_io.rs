//! Implementations of the read and seek traits of `futures_io`.

use std::io::{self, IoSliceMut, SeekFrom};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncSeek};

use super::poll::impl_read;
use crate::fs::File;
use crate::io::{DuplexReadHalf, DuplexStream};
use crate::net::{ByteStream, Connection, ReadHalf, Sealed, StreamFamily, StreamSocket};

fn read(connection: &Connection, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    connection.poll_read(buffer, context)
}

fn copy(
    reader: &mut DuplexReadHalf,
    context: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    reader.poll_copy(buffer.len(), |bytes| buffer[..bytes.len()].copy_from_slice(bytes), context)
}

impl_read!(AsyncRead, [F: StreamFamily] StreamSocket<F>, |stream| stream.connection(), read(&mut [u8]) -> usize);
impl_read!(
    AsyncRead, [P: Deref<Target: ByteStream> + Unpin] ReadHalf<P>, |half| half.connection(), read(&mut [u8]) -> usize
);
impl_read!(AsyncRead, [] DuplexReadHalf, |reader| reader, copy(&mut [u8]) -> usize);
impl_read!(AsyncRead, [] DuplexStream, |stream| &mut stream.reader, copy(&mut [u8]) -> usize);

impl AsyncRead for File {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_read_vectored(context, &mut [IoSliceMut::new(buffer)])
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        File::poll_read(&self, context, buffers)
    }
}

impl AsyncSeek for File {
    fn poll_seek(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        position: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        File::poll_seek(&self, context, position)
    }
}
