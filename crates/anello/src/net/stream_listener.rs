//! Listener type shared by both families.

use std::fmt;
use std::io;
use std::marker::PhantomData;

use super::family::StreamFamily;
use super::listener::Listener;
use super::stream_socket::StreamSocket;

/// Listening socket of the family `F`: a [`TcpListener`](super::TcpListener) or a
/// [`UnixListener`](super::UnixListener), bound to this thread's runtime.
pub struct StreamListener<F> {
    listener: Listener,
    family: PhantomData<fn() -> F>,
}

impl<F: StreamFamily> StreamListener<F> {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, family: PhantomData }
    }

    /// Accepts the next connection (multishot accept on io_uring, Linux 5.19; `accept4(2)` otherwise).
    ///
    /// If the process has no descriptors left, the listener uses a reserved descriptor to reject pending clients, and
    /// then pauses for 100 ms. It never returns `EMFILE` or `ENFILE`. Several tasks can wait concurrently; they accept
    /// in turn. Cancel-safe: if the future is dropped, the connection accepted for it is returned by the next call.
    ///
    /// # Errors
    /// Returns the error from `accept4(2)`, unless it concerns only a single client or is caused by descriptor
    /// exhaustion.
    pub async fn accept(&self) -> io::Result<StreamSocket<F>> {
        StreamSocket::accepted(self.listener.accept().await?)
    }

    /// Sets whether the driver may accept connections before [`accept`](Self::accept) is called. The default is `true`:
    /// io_uring then accepts all connections in the accept queue with one operation, and each connection holds a
    /// descriptor. With `false`, at most one connection that `accept` has not yet returned is open. Use this for
    /// servers that run close to a descriptor limit.
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.listener.set_accept_ahead(accepts_ahead);
    }

    /// Returns the local address (`getsockname(2)`), with the assigned port if the listener was bound to port 0.
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.listener.address::<F>()
    }

    /// Converts a standard library listener, for example one passed by a service manager.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be switched to non-blocking mode, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn from_std(listener: F::StdListener) -> io::Result<Self> {
        Ok(Self::new(Listener::import(listener.into())?))
    }
}

impl<F: StreamFamily> fmt::Debug for StreamListener<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple(F::LISTENER).field(&self.listener).finish()
    }
}
