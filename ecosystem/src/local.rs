//! Streams for libraries that require `Send`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::ReadBufCursor;
use hyper_util::client::legacy::connect::{Connected, Connection};
use send_wrapper::SendWrapper;
use tokio::io::ReadBuf;

/// A stream that is `Send`, although it can be used only on the thread of its runtime.
///
/// # Panics
/// Every operation panics on another thread, as does dropping the stream there. A library that runs all of its futures
/// on the runtime that has created the stream, such as hyper with `HyperExecutor`, does neither.
#[derive(Debug)]
pub struct Local<T>(SendWrapper<T>);

impl<T> Local<T> {
    /// Wraps a stream that belongs to the calling thread.
    pub fn new(stream: T) -> Self {
        Self(SendWrapper::new(stream))
    }
}

impl<T: Unpin> Local<T> {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut T> {
        Pin::new(&mut *self.get_mut().0)
    }
}

impl<T: tokio::io::AsyncRead + Unpin> tokio::io::AsyncRead for Local<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, buffer)
    }
}

impl<T: hyper::rt::Read + Unpin> hyper::rt::Read for Local<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, buffer)
    }
}

/// The write traits of tokio and hyper have the same methods.
macro_rules! impl_write {
    ($($write:tt)*) => {
        impl<T: $($write)* + Unpin> $($write)* for Local<T> {
            fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                self.stream().poll_write(context, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.stream().poll_write_vectored(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.0.is_write_vectored()
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.stream().poll_flush(context)
            }

            fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.stream().poll_shutdown(context)
            }
        }
    };
}

impl_write!(tokio::io::AsyncWrite);
impl_write!(hyper::rt::Write);

/// Lets the pooling client of `hyper-util` use the stream. The protocol is that of the URL.
impl<T> Connection for Local<T> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
