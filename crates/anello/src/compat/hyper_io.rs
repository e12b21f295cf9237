//! Implementations of `hyper::rt::Read` and `Write`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};

use super::closing::poll_close;
use crate::net::stream::Sealed;
use crate::net::{TcpStream, UnixStream};

/// Implements the traits for one stream type. A blanket implementation is not possible, because the traits are foreign.
macro_rules! reads_and_writes {
    ($stream:ty) => {
        impl Read for $stream {
            #[inline]
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                mut buffer: ReadBufCursor<'_>,
            ) -> Poll<io::Result<()>> {
                let room = buffer.remaining();
                self.inner().poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
            }
        }

        impl Write for $stream {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.inner().poll_write(&[IoSlice::new(bytes)], context)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.inner().poll_write(slices, context)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Ready once the bytes are queued for submission. Hyper flushes after each response, and waiting for the
            /// kernel would cost a wake-up per response.
            #[inline]
            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.inner().poll_submitted(context)
            }

            fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
                poll_close(self.inner())
            }
        }
    };
}

reads_and_writes!(TcpStream);
reads_and_writes!(UnixStream);
