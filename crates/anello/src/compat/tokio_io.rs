//! Implementations of `tokio::io::AsyncRead` and `AsyncWrite`. They do not use the tokio runtime.

use std::io::{self, IoSlice};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::closing::poll_close;
use crate::net::stream::{Inner, Sealed};
use crate::net::{ReadHalf, Stream, TcpStream, UnixStream, WriteHalf};

/// Reads into a tokio buffer. Received bytes are copied into uninitialized memory, because a slice of it would first
/// have to be zeroed.
fn poll_read(connection: &Inner, context: &Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    if buffer.initialized().len() == buffer.capacity() {
        let count = ready!(connection.poll_read(buffer.initialize_unfilled(), context))?;
        buffer.advance(count);
        return Poll::Ready(Ok(()));
    }
    let room = buffer.remaining();
    connection.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
}

/// Implements the traits for one stream type. A blanket implementation is not possible, because the traits are foreign.
macro_rules! reads {
    ($reader:ty $(, $parameter:ident)?) => {
        impl $(<$parameter: Deref<Target: Stream> + Unpin>)? AsyncRead for $reader {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                poll_read(self.inner(), context, buffer)
            }
        }
    };
}

macro_rules! writes {
    ($writer:ty $(, $parameter:ident)?) => {
        impl $(<$parameter: Deref<Target: Stream> + Unpin>)? AsyncWrite for $writer {
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

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.inner().poll_flush(context)
            }

            fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
                poll_close(self.inner())
            }
        }
    };
}

reads!(TcpStream);
reads!(UnixStream);
reads!(ReadHalf<P>, P);
writes!(TcpStream);
writes!(UnixStream);
writes!(WriteHalf<P>, P);
