//! The traits of this module for TCP and Unix streams and their halves.

use std::io;
use std::ops::Deref;
use std::task::{Context, Poll};

use super::traits::{AsyncRecv, AsyncSend, AsyncSplit};
use crate::driver::{Chunk, SendBuf};
use crate::net::{ByteStream, ReadHalf, StreamFamily, StreamSocket, WriteHalf};

impl<P: Deref<Target: ByteStream>> AsyncRecv for ReadHalf<P> {
    type Buf = Chunk;

    #[inline]
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        let mut chunk = None;
        self.connection().poll_recv(&mut chunk, context).map_ok(|()| chunk)
    }
}

impl<P: Deref<Target: ByteStream>> AsyncSend for WriteHalf<P> {
    #[inline]
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.connection().poll_send(bytes, context);
        if matches!(sent, Poll::Ready(Err(_))) {
            // The destructor of the bytes may panic, which must not leak the error.
            drop(bytes.take());
        }
        sent
    }

    #[inline]
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection().poll_flush(context)
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.connection().shutdown() {
            // The peer has closed the connection, so there is nothing to shut down.
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
            result => result,
        })
    }
}

impl<F: StreamFamily> AsyncRecv for StreamSocket<F> {
    type Buf = Chunk;

    #[inline]
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        self.split().0.poll_recv(context)
    }
}

impl<F: StreamFamily> AsyncSend for StreamSocket<F> {
    #[inline]
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.split().1.poll_send(bytes, context)
    }

    #[inline]
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.split().1.poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.split().1.poll_shutdown(context)
    }
}

impl<S: ByteStream> AsyncSplit for S {
    type Reader<'a> = ReadHalf<&'a S>;
    type Writer<'a> = WriteHalf<&'a S>;

    #[inline]
    fn halves(&mut self) -> (ReadHalf<&S>, WriteHalf<&S>) {
        self.split()
    }
}
