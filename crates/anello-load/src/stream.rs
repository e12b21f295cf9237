//! Where a load goes, and a connection to there.
//!
//! [`Stream`] is the one place that knows what kinds of connections there are.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::net::{Chunk, ShutdownHandle, TcpStream, UnixStream};
use bytes::Bytes;

use crate::tls::{Negotiated, TlsStream};

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix stream socket at this path.
    Unix(PathBuf),
    /// A Unix stream socket of this abstract name (`unix(7)`).
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
    /// TLS over one; the handshake is behind it.
    Tls(Box<TlsStream>),
}

/// What carries the bytes.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Bytes that have come.
#[derive(Debug)]
pub(crate) enum Received {
    /// As the kernel has delivered them.
    Chunk(Chunk),
    /// What TLS has decrypted. Its memory is for [`Stream::recycle`].
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
    /// Hands `bytes` over to be sent; all or nothing. Ready once they are accepted.
    #[inline]
    pub fn poll_send(&mut self, bytes: Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(transport) => transport.poll_send(bytes, context),
            Self::Tls(stream) => stream.poll_send(&bytes, context),
        }
    }

    /// The next bytes; none at the end of the stream.
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

    /// Takes the memory of a plaintext that nobody needs any more, for the next one.
    pub fn recycle(&self, plaintext: Vec<u8>) {
        if let Self::Tls(stream) = self {
            stream.recycle(plaintext);
        }
    }

    /// Waits until the server has closed its side, and all below TLS with it; how many bytes came instead, if any.
    pub fn poll_eof(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        match self {
            Self::Plain(transport) => {
                transport.poll_receive(context).map_ok(|chunk| chunk.map(|chunk| chunk.len()))
            }
            Self::Tls(stream) => stream.poll_eof(context),
        }
    }

    /// Whether an end that was received may have been somebody else's doing: TLS without its close_notify.
    pub fn is_truncated(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_truncated())
    }

    /// Tells a server under TLS that nothing more will come (close_notify), as far as that can be sent at once.
    pub fn send_close_notify(&mut self) {
        if let Self::Tls(stream) = self {
            stream.send_close_notify();
        }
    }

    /// What the handshake of TLS has come to.
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

    /// Ends the connection while its task waits for it.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        match self.transport() {
            Transport::Tcp(stream) => stream.shutdown_handle(),
            Transport::Unix(stream) => stream.shutdown_handle(),
        }
    }

    /// Sets the receive buffer (`SO_RCVBUF`) of a connection over TCP; no other has one to be set.
    pub fn set_receive_buffer_bytes(&self, bytes: usize) -> io::Result<()> {
        match self.transport() {
            Transport::Tcp(stream) => stream.set_recv_buffer_size(bytes),
            Transport::Unix(_) => Ok(()),
        }
    }

    /// Closes at once, without sending what is left and, where there is such a thing, with a reset: so that the port
    /// does not stay taken for a minute.
    pub fn abort(self) {
        match self {
            Self::Plain(transport) => transport.abort(),
            Self::Tls(stream) => stream.into_transport().abort(),
        }
    }
}

impl Transport {
    /// As [`Stream::poll_send`].
    #[inline]
    pub fn poll_send(&mut self, bytes: Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            // A send that was not ready has accepted nothing and may be dropped.
            Self::Tcp(stream) => Pin::new(&mut stream.send(bytes)).poll(context),
            Self::Unix(stream) => Pin::new(&mut stream.send(bytes)).poll(context),
        }
    }

    /// The next bytes; none at the end of the stream.
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
                // Refused only where the peer was faster.
                stream.set_linger(Some(Duration::ZERO)).ok();
                stream.abort();
            }
            Self::Unix(stream) => stream.abort(),
        }
    }
}
