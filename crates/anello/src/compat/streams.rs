//! Implementations of the write traits for network and in-memory streams.

use std::io;
use std::task::{Context, Poll};

use super::poll::*;
use crate::io::{DuplexStream, DuplexWriteHalf};
use crate::net::{Connection, Sealed, StreamFamily, StreamSocket};

fn poll_close(connection: &Connection) -> Poll<io::Result<()>> {
    Poll::Ready(match connection.shutdown() {
        // The peer has reset the connection, so there is nothing to shut down.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        result => result,
    })
}

fn close(writer: &mut DuplexWriteHalf) -> Poll<io::Result<()>> {
    writer.close();
    Poll::Ready(Ok(()))
}

impl_writes!(
    [F: StreamFamily] StreamSocket<F>,
    |stream, context, slices| stream.connection().poll_write(slices, context), vectored: true,
    flush: stream.connection().poll_flush(context), close: poll_close(stream.connection())
);
impl_writes!(
    [P: std::ops::Deref<Target: crate::net::ByteStream> + Unpin] crate::net::WriteHalf<P>,
    |half, context, slices| half.connection().poll_write(slices, context), vectored: true,
    flush: half.connection().poll_flush(context), close: poll_close(half.connection())
);
// Hyper's flush does not wait for the kernel; see the module documentation.
impl_hyper_write!(
    [F: StreamFamily] StreamSocket<F>,
    |stream, context, slices| stream.connection().poll_write(slices, context), vectored: true,
    flush: stream.connection().poll_submitted(context), close: poll_close(stream.connection())
);

macro_rules! impl_memory {
    ($writer:ty, |$stream:ident| $half:expr) => {
        impl_memory!(@ [] $writer, |$stream, context, slices| $half.poll_write(slices, context), vectored: true,
            flush: Poll::Ready(Ok(())), close: close($half));
    };
    (@ $($writer:tt)*) => {
        impl_writes!($($writer)*);
        impl_hyper_write!($($writer)*);
    };
}

impl_memory!(DuplexWriteHalf, |writer| writer);
impl_memory!(DuplexStream, |stream| &mut stream.writer);
