//! Where a load goes, and a connection to there.
//!
//! [`Stream`] is the one place that knows what kinds of connections there are. TLS would be another kind.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::net::{Chunk, Closer, TcpStream, UnixStream};
use bytes::Bytes;

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
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Hands `bytes` over to be sent; all or nothing. Ready once they are accepted.
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

    /// Ends the connection while its task waits for it.
    pub fn closer(&self) -> Closer {
        match self {
            Self::Tcp(stream) => stream.closer(),
            Self::Unix(stream) => stream.closer(),
        }
    }

    /// Closes at once, without sending what is left and, where there is such a thing, with a reset: so that the port
    /// does not stay taken for a minute.
    pub fn abort(self) {
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
