//! Implementations of the traits for in-memory streams.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::io::{DuplexStream, SimplexReader, SimplexWriter};

/// Implements a read trait with the function `$read`, and a write trait whose method `$close` closes the stream.
macro_rules! impl_memory {
    (
        $read_trait:path, $read:ident($buffer:ty) -> $output:ty,
        $write_trait:path, $close:ident $(, $is_vectored:ident)?
    ) => {
        impl_memory!(@read SimplexReader, $read_trait, $read($buffer) -> $output);
        impl_memory!(@read DuplexStream, $read_trait, $read($buffer) -> $output);
        impl_memory!(@write SimplexWriter, $write_trait, $close $(, $is_vectored)?);
        impl_memory!(@write DuplexStream, $write_trait, $close $(, $is_vectored)?);
    };
    (@read $reader:ty, $trait:path, $read:ident($buffer:ty) -> $output:ty) => {
        impl $trait for $reader {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: $buffer,
            ) -> Poll<io::Result<$output>> {
                $read(self.get_mut().reader_half(), context, buffer)
            }
        }
    };
    (@write $writer:ty, $trait:path, $close:ident $(, $is_vectored:ident)?) => {
        impl $trait for $writer {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().writer_half().poll_write(&[IoSlice::new(bytes)], context)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().writer_half().poll_write(slices, context)
            }

            $(fn $is_vectored(&self) -> bool {
                true
            })?

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn $close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().writer_half().close();
                Poll::Ready(Ok(()))
            }
        }
    };
}

#[cfg(feature = "compat-futures-io")]
mod futures_io {
    use super::*;

    fn poll_read(
        reader: &mut SimplexReader,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        reader.poll_copy(buffer.len(), |bytes| buffer[..bytes.len()].copy_from_slice(bytes), context)
    }

    impl_memory!(
        ::futures_io::AsyncRead, poll_read(&mut [u8]) -> usize,
        ::futures_io::AsyncWrite, poll_close
    );
}

#[cfg(feature = "compat-hyper")]
mod hyper {
    use ::hyper::rt::{Read, ReadBufCursor, Write};

    use super::*;

    fn poll_read(
        reader: &mut SimplexReader,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        reader.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
    }

    impl_memory!(Read, poll_read(ReadBufCursor<'_>) -> (), Write, poll_shutdown, is_write_vectored);
}

#[cfg(feature = "compat-tokio")]
mod tokio_io {
    use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;

    fn poll_read(
        reader: &mut SimplexReader,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        reader.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
    }

    impl_memory!(AsyncRead, poll_read(&mut ReadBuf<'_>) -> (), AsyncWrite, poll_shutdown, is_write_vectored);
}
