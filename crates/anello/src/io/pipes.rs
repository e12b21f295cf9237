//! The traits of this module for pipes, files and the standard streams, which have no send queue.

use std::io::{self, IoSlice, IoSliceMut};
use std::task::{Context, Poll, ready};

use super::stdio::{Stderr, Stdin, Stdout};
use super::traits::{AsyncRecv, AsyncSend};
use crate::driver::SendBuf;
use crate::fs::File;
use crate::net::pipe::{Receiver, Sender};

/// Size of the buffers that are read from the standard input.
const STDIN_BYTES: usize = 8 * 1024;

/// Size of the buffers that are read from files.
const FILE_BYTES: usize = 64 * 1024;

impl AsyncRecv for Receiver {
    type Buf = Vec<u8>;

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        self.pipe().poll_recv(context)
    }
}

/// Shutting down does nothing: drop the pipe to close it.
impl AsyncSend for Sender {
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe().poll_send(bytes, context)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRecv for Stdin {
    type Buf = Vec<u8>;

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        let mut buffer = vec![0; STDIN_BYTES];
        let count = ready!(self.poll_read(&mut buffer, context))?;
        buffer.truncate(count);
        Poll::Ready(Ok((count > 0).then_some(buffer)))
    }
}

/// Reads at the cursor. [`send_file`](crate::net::StreamSocket::send_file) sends a file without copying its bytes.
impl AsyncRecv for File {
    type Buf = Vec<u8>;

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        let mut buffer = vec![0; FILE_BYTES];
        let count = ready!(self.poll_read(context, &mut [IoSliceMut::new(&mut buffer)]))?;
        buffer.truncate(count);
        Poll::Ready(Ok((count > 0).then_some(buffer)))
    }
}

/// Writes at the cursor. May accept some of the bytes. Shutting down only flushes.
impl AsyncSend for File {
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = bytes.as_mut().filter(|rest| !rest.is_empty()) {
            match ready!(self.poll_write(context, &[IoSlice::new(rest)]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => rest.advance(count),
            }
        }
        drop(bytes.take());
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        File::poll_flush(self, context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        File::poll_flush(self, context)
    }
}

macro_rules! impl_send {
    ($writer:ty) => {
        /// Shutting down only flushes, because the standard streams stay open.
        impl AsyncSend for $writer {
            fn poll_send(
                &mut self,
                bytes: &mut Option<SendBuf>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                while let Some(rest) = bytes.as_mut().filter(|rest| !rest.is_empty()) {
                    let count = ready!(self.poll_write(rest, context))?;
                    rest.advance(count);
                }
                drop(bytes.take());
                Poll::Ready(Ok(()))
            }

            fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_flush(context)
            }

            fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_flush(context)
            }
        }
    };
}

impl_send!(Stdout);
impl_send!(Stderr);
