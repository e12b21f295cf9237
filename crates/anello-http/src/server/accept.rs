//! Sources of incoming connections.

use std::io;

use anello::net::{GroupListener, GroupMember, Stream, TcpListener, TcpStream, UnixListener, UnixStream};

/// A source of incoming connections.
pub trait Accept: 'static {
    /// The type of an accepted connection.
    type Connection: Stream;

    /// Waits for the next connection. Returns `None` if no more connections will arrive. Implementations must be
    /// cancel-safe.
    ///
    /// # Errors
    /// Returns an error if accepting a connection fails.
    fn accept(&self) -> impl Future<Output = io::Result<Option<Self::Connection>>>;

    /// Allows or forbids accepting connections before [`accept`](Self::accept) is called. Each such connection holds a
    /// file descriptor, so a server that is close to its limits forbids accepting ahead. The default implementation
    /// does nothing.
    fn set_accept_ahead(&self, _accepts_ahead: bool) {}
}

impl Accept for TcpListener {
    type Connection = TcpStream;

    async fn accept(&self) -> io::Result<Option<TcpStream>> {
        Self::accept(self).await.map(Some)
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}

impl Accept for UnixListener {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<Option<UnixStream>> {
        Self::accept(self).await.map(Some)
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}

impl<L: GroupListener> Accept for GroupMember<L> {
    type Connection = L::Stream;

    async fn accept(&self) -> io::Result<Option<L::Stream>> {
        Self::accept(self).await
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}
