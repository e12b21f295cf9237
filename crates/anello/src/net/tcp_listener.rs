//! TCP listeners.

use std::io;
use std::net::SocketAddr;

use super::family::Tcp;
use super::listener::{BACKLOG, Listener};
use super::resolve::ToSocketAddrs;
use super::stream_listener::StreamListener;
use crate::driver::ListenOptions;
use crate::executor::current;

/// Listening TCP socket, bound to this thread's runtime.
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
pub type TcpListener = StreamListener<Tcp>;

/// Builder for a [`TcpListener`] with options; see [`TcpListener::builder`].
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
    /// Sets the number of connections that the kernel queues until they are accepted. The default is 4096; the kernel
    /// caps the value at `net.core.somaxconn`.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets `SO_REUSEPORT`: several listeners share the address, and the kernel distributes the connections. The
    /// default is `false`.
    pub fn reuse_port(mut self, reuse_port: bool) -> Self {
        self.reuse_port = reuse_port;
        self
    }

    /// Sets whether accepted connections send small messages without delay (`TCP_NODELAY`). The default is `true`.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// Binds and listens (`socket(2)`, `bind(2)`, `listen(2)`) with `SO_REUSEADDR`, on the first address that can be
    /// bound. Accepts only addresses. To bind to a host name, use [`bind_host`](Self::bind_host), which resolves it
    /// without blocking.
    ///
    /// # Errors
    /// Returns the error of the last address if no address can be bound, for example because it is in use, not
    /// permitted or not local. Returns `InvalidInput` for a name.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        self.bind_to_first(address.to_host()?.without_resolution()?)
    }

    /// Binds like [`bind`](Self::bind), and also accepts a name, which is resolved on a thread in the blocking pool.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved or no address can be bound.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub async fn bind_host(&self, host: impl ToSocketAddrs) -> io::Result<TcpListener> {
        self.bind_to_first(host.to_host()?.resolve().await?)
    }

    fn bind_to_first(&self, addresses: Vec<SocketAddr>) -> io::Result<TcpListener> {
        let shared = current();
        let options =
            ListenOptions { backlog: self.backlog, reuse_port: self.reuse_port, nodelay: self.nodelay };
        let mut last_error = None;
        for address in addresses {
            let listening = shared.driver.borrow_mut().listen(address, &options);
            match listening {
                Ok(key) => return Ok(TcpListener::new(Listener::new(shared, key))),
                Err(error) => last_error = Some(io::Error::new(error.kind(), format!("{address}: {error}"))),
            }
        }
        Err(last_error
            .unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "host has no addresses")))
    }
}

impl StreamListener<Tcp> {
    /// Binds with the default options. See [`TcpListenerBuilder::bind`].
    ///
    /// # Errors
    /// See [`TcpListenerBuilder::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind(address)
    }

    /// Binds with the default options. See [`TcpListenerBuilder::bind_host`].
    ///
    /// # Errors
    /// See [`TcpListenerBuilder::bind_host`].
    pub async fn bind_host(host: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind_host(host).await
    }

    /// Returns a builder with the default options.
    pub fn builder() -> TcpListenerBuilder {
        TcpListenerBuilder::default()
    }
}
