//! Connections to a server. [`Stream`] is the only type that distinguishes between kinds of connections.

use std::io;
use std::task::{Context, Poll};

use anello::net::Chunk;
use bytes::Bytes;

use crate::model::tls::HandshakeSummary;
use crate::wire::tls_stream::TlsStream;
use crate::wire::transport::Transport;

/// An open connection.
pub(crate) enum Stream {
    Plain(Transport),
    Tls(Box<TlsStream>),
}

#[derive(Debug)]
pub(crate) enum Received {
    /// Bytes as received from the kernel.
    Chunk(Chunk),
    /// Bytes that TLS has decrypted. [`Stream::recycle`] makes their memory available for reuse.
    Plaintext(Vec<u8>),
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

    pub fn recycle(&self, plaintext: Vec<u8>) {
        if let Self::Tls(stream) = self {
            stream.recycle(plaintext);
        }
    }

    /// Waits for EOF, including EOF of the transport below TLS. If bytes arrive instead, returns their number.
    pub fn poll_eof(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        match self {
            Self::Plain(transport) => {
                transport.poll_receive(context).map_ok(|chunk| chunk.map(|chunk| chunk.len()))
            }
            Self::Tls(stream) => stream.poll_eof(context),
        }
    }

    /// Returns `true` if a TLS connection received EOF without `close_notify`: data may be missing.
    pub fn is_truncated(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_truncated())
    }

    /// Sends `close_notify` on a TLS connection if this is possible without blocking.
    pub fn send_close_notify(&mut self) {
        if let Self::Tls(stream) = self {
            stream.send_close_notify();
        }
    }

    pub fn handshake_summary(&self) -> Option<HandshakeSummary> {
        if let Self::Tls(stream) = self { Some(HandshakeSummary::of(&stream.tls)) } else { None }
    }

    /// Returns the connection underlying TLS, or the connection itself.
    pub fn transport(&self) -> &Transport {
        match self {
            Self::Plain(transport) => transport,
            Self::Tls(stream) => &stream.transport,
        }
    }

    /// Resets the connection, like [`Transport::abort`].
    pub fn abort(self) {
        match self {
            Self::Plain(transport) => transport.abort(),
            Self::Tls(stream) => stream.transport.abort(),
        }
    }
}
