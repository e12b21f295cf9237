//! Implementations of `futures_io::AsyncRead` and `AsyncWrite`.

use std::io::{self, IoSlice};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use super::closing::poll_close;
use crate::net::stream::Sealed;
use crate::net::{ReadHalf, Stream, TcpStream, UnixStream, WriteHalf};

/// Implements the traits for one stream type. A blanket implementation is not possible, because the traits are foreign.
macro_rules! reads {
    ($reader:ty $(, $parameter:ident)?) => {
        impl $(<$parameter: Deref<Target: Stream> + Unpin>)? AsyncRead for $reader {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.inner().poll_read(buffer, context)
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

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.inner().poll_flush(context)
            }

            fn poll_close(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
