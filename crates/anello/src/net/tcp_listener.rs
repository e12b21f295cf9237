//! Listening for TCP connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::listener::{BACKLOG, Listener};
use super::{TcpStream, ToSocketAddrs};
use crate::driver::ListenOptions;
use crate::executor::current;

/// A listening TCP socket of this thread's runtime.
///
/// ```
/// # let runtime = anello::Runtime::new()?;
/// # runtime.block_on(async {
/// use anello::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// let mut server = listener.accept().await?;
/// client.write_all(b"ciao").await?;
/// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TcpListener {
    inner: Listener,
}

/// How to listen; see [`TcpListener::builder`].
#[derive(Clone, Debug)]
pub struct TcpListenerBuilder {
    backlog: u32,
    reuse_port: bool,
    nodelay: bool,
}

impl Default for TcpListenerBuilder {
    fn default() -> Self {
        Self { backlog: BACKLOG, reuse_port: false, nodelay: true }
    }
}

impl TcpListenerBuilder {
    /// Connections that the kernel keeps until they are accepted; 4096 by default, capped by `net.core.somaxconn`.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Whether several listeners share the address, and the kernel spreads the connections (`SO_REUSEPORT`).
    pub fn reuse_port(mut self, reuse_port: bool) -> Self {
        self.reuse_port = reuse_port;
        self
    }

    /// Whether accepted connections send small messages at once (`TCP_NODELAY`); they do by default.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// Binds and listens (`socket(2)`, `bind(2)`, `listen(2)`) with `SO_REUSEADDR`, on the first address that works. Takes
    /// addresses only: resolving a name, which [`bind_host`](Self::bind_host) does, takes time.
    ///
    /// # Errors
    /// When no address can be bound (in use, not permitted, not of this machine). `InvalidInput` for a name.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        self.bind_to_first(address.to_host()?.known()?)
    }

    /// As [`bind`](Self::bind), also of a name, which is resolved by a thread for work that blocks.
    ///
    /// # Errors
    /// When no address can be resolved or bound.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub async fn bind_host(&self, host: impl ToSocketAddrs) -> io::Result<TcpListener> {
        self.bind_to_first(host.to_host()?.resolve().await?)
    }

    fn bind_to_first(&self, addresses: Vec<SocketAddr>) -> io::Result<TcpListener> {
        let shared = current();
        let options =
            ListenOptions { backlog: self.backlog, reuse_port: self.reuse_port, nodelay: self.nodelay };
        let mut failed = None;
        for address in addresses {
            let listening = shared.driver.borrow_mut().listen(address, &options);
            match listening {
                Ok(key) => return Ok(TcpListener { inner: Listener::new(shared, key) }),
                Err(error) => failed = Some(io::Error::new(error.kind(), format!("{address}: {error}"))),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the host has no address")))
    }
}

impl TcpListener {
    /// Binds with the default options; see [`TcpListenerBuilder::bind`].
    ///
    /// # Errors
    /// As [`TcpListenerBuilder::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind(address)
    }

    /// Binds with the default options; see [`TcpListenerBuilder::bind_host`].
    ///
    /// # Errors
    /// As [`TcpListenerBuilder::bind_host`].
    pub async fn bind_host(host: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind_host(host).await
    }

    /// Options for listening.
    pub fn builder() -> TcpListenerBuilder {
        TcpListenerBuilder::default()
    }

    /// The next connection (multishot accept on io_uring, Linux 5.19; `accept4(2)` otherwise).
    ///
    /// When the process has no descriptors left, waiting clients are refused with the one kept in reserve, and
    /// listening pauses for a moment: this never returns `EMFILE` or `ENFILE`. Several tasks may wait, and take turns.
    /// Cancel-safe: a connection accepted for a dropped future goes to the next call.
    ///
    /// # Errors
    /// When the kernel refuses for a reason that is not one client's own.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        Ok(TcpStream::new(self.inner.accept().await?))
    }

    /// Sets whether the driver may accept connections before [`accept`](Self::accept) is called for them; it does by
    /// default. io_uring then takes all that wait in the backlog by one operation, and each holds a descriptor. Without
    /// it at most one connection is open that `accept` has not returned: for servers that are near a limit.
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.inner.set_accept_ahead(accepts_ahead);
    }

    /// The address it listens on: with the port that was assigned for port 0.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().listener_address(self.inner.key())
    }

    /// Takes over a listener of the standard library, for example one that was handed over by a service manager.
    ///
    /// # Errors
    /// When its mode cannot be set, or on the simulated driver.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self { inner: Listener::import(OwnedFd::from(listener))? })
    }
}
