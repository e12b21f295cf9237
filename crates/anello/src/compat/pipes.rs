//! I/O traits of tokio and futures for pipes, the standard streams and files.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::poll::*;
use crate::fs::File;
use crate::io::{Stderr, Stdin, Stdout};
use crate::net::pipe::{Receiver, Sender};
use crate::process::{ChildStderr, ChildStdin, ChildStdout};

/// Implements the read traits with a function that reads into a slice.
macro_rules! impl_reads {
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

fn first<'a>(slices: &'a [IoSlice<'_>]) -> &'a [u8] {
    slices.iter().find(|slice| !slice.is_empty()).map_or(&[], |slice| slice)
}

impl_reads!(Receiver, |receiver, buffer, context| receiver.pipe().poll_read(buffer, context));
impl_reads!(ChildStdout, |pipe, buffer, context| pipe.pipe().poll_read(buffer, context));
impl_reads!(ChildStderr, |pipe, buffer, context| pipe.pipe().poll_read(buffer, context));
impl_reads!(Stdin, |stdin, buffer, context| stdin.poll_read(buffer, context));

// Only dropping a writer closes its file.
impl_writes!(
    [] Sender, |sender, context, slices| sender.pipe().poll_write_vectored(slices, context), vectored: true,
    flush: Poll::Ready(Ok(())), close: Poll::Ready(Ok(()))
);
impl_writes!(
    [] ChildStdin, |pipe, context, slices| pipe.pipe().poll_write_vectored(slices, context), vectored: true,
    flush: Poll::Ready(Ok(())), close: Poll::Ready(Ok(()))
);
impl_writes!(
    [] Stdout, |stdout, context, slices| stdout.poll_write(first(slices), context), vectored: false,
    flush: stdout.poll_flush(context), close: stdout.poll_flush(context)
);
impl_writes!(
    [] Stderr, |stderr, context, slices| stderr.poll_write(first(slices), context), vectored: false,
    flush: stderr.poll_flush(context), close: stderr.poll_flush(context)
);
impl_writes!(
    [] File, |file, context, slices| File::poll_write(file, context, slices), vectored: true,
    flush: File::poll_flush(file, context), close: File::poll_flush(file, context)
);
