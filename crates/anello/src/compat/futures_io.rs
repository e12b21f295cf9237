//! Implementations of `futures_io::AsyncRead` and `AsyncWrite`.

use std::io;
use std::ops::Deref;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use super::poll::{impl_read, impl_write};
use crate::net::{Connection, ReadHalf, Sealed, Stream, StreamFamily, StreamSocket, WriteHalf};

fn poll_read(
    connection: &Connection,
    context: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    connection.poll_read(buffer, context)
}

impl_read!([F: StreamFamily] AsyncRead for StreamSocket<F>, poll_read(&mut [u8]) -> usize);
impl_read!([P: Deref<Target: Stream> + Unpin] AsyncRead for ReadHalf<P>, poll_read(&mut [u8]) -> usize);
impl_write!([F: StreamFamily] AsyncWrite for StreamSocket<F>, poll_flush, poll_close);
impl_write!([P: Deref<Target: Stream> + Unpin] AsyncWrite for WriteHalf<P>, poll_flush, poll_close);
