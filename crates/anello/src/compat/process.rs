//! I/O traits of tokio and futures for the pipes to a child process.
//!
//! Bytes are written directly to the pipe, so a flush has nothing to do. Only dropping [`ChildStdin`] closes its pipe.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::process::{ChildStderr, ChildStdin, ChildStdout};

#[cfg(feature = "compat-futures-io")]
macro_rules! impl_futures_read {
    ($reader:ty) => {
        impl futures_io::AsyncRead for $reader {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.pipe().poll_read(buffer, context)
            }
        }
    };
}

#[cfg(feature = "compat-tokio")]
macro_rules! impl_tokio_read {
    ($reader:ty) => {
        impl tokio::io::AsyncRead for $reader {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.pipe()
                    .poll_read(buffer.initialize_unfilled(), context)
                    .map_ok(|count| buffer.advance(count))
            }
        }
    };
}

macro_rules! impl_write {
    ($trait:path, $writer:ty, $close:ident $(, $is_vectored:ident)?) => {
        impl $trait for $writer {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.pipe().poll_write(bytes, context)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.pipe().poll_write_vectored(slices, context)
            }

            $(fn $is_vectored(&self) -> bool {
                true
            })?

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn $close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }
        }
    };
}

#[cfg(feature = "compat-futures-io")]
impl_futures_read!(ChildStdout);
#[cfg(feature = "compat-futures-io")]
impl_futures_read!(ChildStderr);
#[cfg(feature = "compat-futures-io")]
impl_write!(futures_io::AsyncWrite, ChildStdin, poll_close);

#[cfg(feature = "compat-tokio")]
impl_tokio_read!(ChildStdout);
#[cfg(feature = "compat-tokio")]
impl_tokio_read!(ChildStderr);
#[cfg(feature = "compat-tokio")]
impl_write!(tokio::io::AsyncWrite, ChildStdin, poll_shutdown, is_write_vectored);
