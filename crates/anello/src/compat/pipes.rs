//! I/O traits of tokio and futures for pipes and the standard streams.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::io::{Stderr, Stdin, Stdout};
use crate::net::pipe::{Receiver, Sender};
use crate::process::{ChildStderr, ChildStdin, ChildStdout};

/// Implements the read traits. `$read` polls for bytes in the `buffer`.
macro_rules! impl_read {
    ($reader:ty, |$self:ident, $buffer:ident, $context:ident| $read:expr) => {
        #[cfg(feature = "compat-futures-io")]
        impl futures_io::AsyncRead for $reader {
            fn poll_read(
                mut self: Pin<&mut Self>,
                $context: &mut Context<'_>,
                $buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let $self = &mut *self;
                $read
            }
        }

        #[cfg(feature = "compat-tokio")]
        impl tokio::io::AsyncRead for $reader {
            fn poll_read(
                mut self: Pin<&mut Self>,
                $context: &mut Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let ($self, $buffer) = (&mut *self, buffer.initialize_unfilled());
                $read.map_ok(|count| buffer.advance(count))
            }
        }
    };
}

/// Implements a write trait, whose method `$close` flushes: only dropping the writer closes its file.
macro_rules! impl_write {
    ($trait:path, $close:ident, $writer:ty, |$self:ident, $slices:ident, $context:ident| $write:expr, $flush:expr) => {
        impl $trait for $writer {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.poll_write_vectored(context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                $context: &mut Context<'_>,
                $slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $self = &mut *self;
                $write
            }

            fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                let flush: fn(&mut Self, &mut Context<'_>) -> Poll<io::Result<()>> = $flush;
                flush(&mut self, context)
            }

            fn $close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_flush(context)
            }
        }
    };
}

macro_rules! impl_writes {
    ($($rest:tt)*) => {
        #[cfg(feature = "compat-futures-io")]
        impl_write!(futures_io::AsyncWrite, poll_close, $($rest)*);
        #[cfg(feature = "compat-tokio")]
        impl_write!(tokio::io::AsyncWrite, poll_shutdown, $($rest)*);
    };
}

fn first<'a>(slices: &'a [IoSlice<'_>]) -> &'a [u8] {
    slices.iter().find(|slice| !slice.is_empty()).map_or(&[], |slice| slice)
}

impl_read!(Receiver, |receiver, buffer, context| receiver.pipe().poll_read(buffer, context));
impl_read!(ChildStdout, |pipe, buffer, context| pipe.pipe().poll_read(buffer, context));
impl_read!(ChildStderr, |pipe, buffer, context| pipe.pipe().poll_read(buffer, context));
impl_read!(Stdin, |stdin, buffer, context| stdin.poll_read(buffer, context));
impl_writes!(Sender, |sender, slices, context| sender.pipe().poll_write_vectored(slices, context), |_, _| {
    Poll::Ready(Ok(()))
});
impl_writes!(ChildStdin, |pipe, slices, context| pipe.pipe().poll_write_vectored(slices, context), |_, _| {
    Poll::Ready(Ok(()))
});
impl_writes!(
    Stdout,
    |stdout, slices, context| stdout.poll_write(first(slices), context),
    |stdout, context| stdout.poll_flush(context)
);
impl_writes!(
    Stderr,
    |stderr, slices, context| stderr.poll_write(first(slices), context),
    |stderr, context| stderr.poll_flush(context)
);
