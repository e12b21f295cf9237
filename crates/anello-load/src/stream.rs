//! Server addresses and the connections to them.
//!
//! [`Stream`] is the only type that distinguishes between the kinds of connections.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use anello::net::{Chunk, ShutdownHandle, TcpStream, UnixStream};
use bytes::Bytes;

use crate::tls::{Negotiated, TlsStream};

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// Path of a Unix stream socket.
    Unix(PathBuf),
    /// Abstract name of a Unix stream socket (`unix(7)`).
    Abstract(String),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Abstract(name) => write!(formatter, "unix:@{name}"),
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(Transport),
    /// TLS over a transport, after the handshake.
    Tls(Box<TlsStream>),
}

/// A TCP or Unix socket connection.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Received bytes.
#[derive(Debug)]
pub(crate) enum Received {
    /// Bytes as received from the kernel.
    Chunk(Chunk),
    /// Bytes that TLS has decrypted. [`Stream::recycle`] reuses their memory.
    Plaintext(Vec<u8>),
}

impl Deref for Received {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Chunk(chunk) => chunk,
            Self::Plaintext(plaintext) => plaintext,
        }
    }
}

impl Stream {
    /// Queues `bytes` for sending. `Ready` means that all bytes have been accepted, `Pending` that none have.
    #[inline]
    pub fn poll_send(&mut self, bytes: Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(transport) => transport.poll_send(bytes, context),
            Self::Tls(stream) => stream.poll_send(&bytes, context),
        }
    }

    /// Receives the next bytes. Returns `None` at EOF.
    #[inline]
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Received>>> {
        match self {
            Self::Plain(transport) => {
                transport.poll_receive(context).map_ok(|chunk| chunk.map(Received::Chunk))
            }
            Self::Tls(stream) => {
                stream.poll_receive(context).map_ok(|plaintext| plaintext.map(Received::Plaintext))
            }
        }
    }

    /// Reuses the memory of decrypted bytes that are no longer needed.
    pub fn recycle(&self, plaintext: Vec<u8>) {
        if let Self::Tls(stream) = self {
            stream.recycle(plaintext);
        }
    }

    /// Waits for EOF, including EOF below TLS. If bytes arrive instead, returns their number.
    pub fn poll_eof(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        match self {
            Self::Plain(transport) => {
                transport.poll_receive(context).map_ok(|chunk| chunk.map(|chunk| chunk.len()))
            }
            Self::Tls(stream) => stream.poll_eof(context),
        }
    }

    /// Returns `true` if EOF was received under TLS without `close_notify`, so the data may have been truncated.
    pub fn is_truncated(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_truncated())
    }

    /// Sends `close_notify` on a TLS connection if that is possible without waiting.
    pub fn send_close_notify(&mut self) {
        if let Self::Tls(stream) = self {
            stream.send_close_notify();
        }
    }

    /// Returns the parameters that the TLS handshake has negotiated.
    pub fn negotiated(&self) -> Option<Negotiated> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(stream.negotiated()),
        }
    }

    fn transport(&self) -> &Transport {
        match self {
            Self::Plain(transport) => transport,
            Self::Tls(stream) => stream.transport(),
        }
    }

    /// Returns a handle that shuts down the connection while its task waits for it.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        match self.transport() {
            Transport::Tcp(stream) => stream.shutdown_handle(),
            Transport::Unix(stream) => stream.shutdown_handle(),
        }
    }

    /// Sets the receive buffer size (`SO_RCVBUF`) of a TCP connection. Does nothing for Unix sockets.
    pub fn set_receive_buffer_bytes(&self, bytes: usize) -> io::Result<()> {
        match self.transport() {
            Transport::Tcp(stream) => stream.set_recv_buffer_size(bytes),
            Transport::Unix(_) => Ok(()),
        }
    }

    /// Closes the connection immediately, without sending buffered data. TCP connections are reset, so that their port
    /// does not stay in TIME_WAIT for a minute.
    pub fn abort(self) {
        match self {
            Self::Plain(transport) => transport.abort(),
            Self::Tls(stream) => stream.into_transport().abort(),
        }
    }
}

impl Transport {
    /// Queues `bytes` for sending, like [`Stream::poll_send`].
    #[inline]
    pub fn poll_send(&mut self, bytes: Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            // A pending send has accepted nothing and can be dropped.
            Self::Tcp(stream) => Pin::new(&mut stream.send(bytes)).poll(context),
            Self::Unix(stream) => Pin::new(&mut stream.send(bytes)).poll(context),
        }
    }

    /// Writes as many bytes as fit, and returns their number.
    pub fn poll_write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match self {
            // A pending write has accepted nothing and can be dropped.
            Self::Tcp(stream) => pin!(stream.write_vectored(slices)).poll(context),
            Self::Unix(stream) => pin!(stream.write_vectored(slices)).poll(context),
        }
    }

    /// Receives the next bytes. Returns `None` at EOF.
    #[inline]
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        match self {
            Self::Tcp(stream) => Pin::new(&mut stream.recv()).poll(context),
            Self::Unix(stream) => Pin::new(&mut stream.recv()).poll(context),
        }
    }

    fn abort(self) {
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
