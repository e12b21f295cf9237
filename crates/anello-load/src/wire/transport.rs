//! TCP and Unix socket connections.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use anello::net::{Chunk, ShutdownHandle, TcpStream, UnixStream};
use bytes::Bytes;

#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Transport {
    #[inline]
    pub fn poll_send(&mut self, bytes: Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            // While the send is pending, no bytes have been accepted, so the future can be dropped.
            Self::Tcp(stream) => Pin::new(&mut stream.send(bytes)).poll(context),
            Self::Unix(stream) => Pin::new(&mut stream.send(bytes)).poll(context),
        }
    }

    pub fn poll_write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match self {
            // While the write is pending, no bytes have been accepted, so the future can be dropped.
            Self::Tcp(stream) => pin!(stream.write_vectored(slices)).poll(context),
            Self::Unix(stream) => pin!(stream.write_vectored(slices)).poll(context),
        }
    }

    #[inline]
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        match self {
            Self::Tcp(stream) => Pin::new(&mut stream.recv()).poll(context),
            Self::Unix(stream) => Pin::new(&mut stream.recv()).poll(context),
        }
    }

    /// Returns a handle that can shut down the connection while its task is waiting on it.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        match self {
            Self::Tcp(stream) => stream.shutdown_handle(),
            Self::Unix(stream) => stream.shutdown_handle(),
        }
    }

    /// Sets the receive buffer size (`SO_RCVBUF`) of a TCP connection. Does nothing for Unix sockets.
    pub fn set_receive_buffer_bytes(&self, bytes: usize) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_recv_buffer_size(bytes),
            Self::Unix(_) => Ok(()),
        }
    }

    /// Closes the connection immediately, without sending buffered data. TCP connections are reset, so that they do not
    /// occupy their ports in TIME_WAIT for a minute.
    pub fn abort(self) {
        match self {
            Self::Tcp(stream) => {
                // Fails only if the peer has closed the connection first.
                stream.set_linger(Some(Duration::ZERO)).ok();
                stream.abort();
            }
            Self::Unix(stream) => stream.abort(),
        }
    }
}
