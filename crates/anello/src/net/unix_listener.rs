//! Unix stream listeners.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::UnixStream;
use super::listener::{BACKLOG, Listener};
use super::unix_stream::{with_address, with_path};
use crate::driver::StreamOption;
use crate::executor::current;

/// Listening Unix stream socket, bound to this thread's runtime.
///
/// Dropping the listener does not remove its socket file. The application that created the file must remove it, or
/// binding to the path again fails with `AddrInUse`. An abstract name is released with the last socket bound to it.
///
/// ```
/// # let runtime = anello::Runtime::new()?;
/// # runtime.block_on(async {
/// use std::os::linux::net::SocketAddrExt;
/// use std::os::unix::net::SocketAddr;
///
/// use anello::net::{UnixListener, UnixStream};
///
/// let address = SocketAddr::from_abstract_name(format!("anello-{}", std::process::id()))?;
/// let listener = UnixListener::bind_addr(&address)?;
/// let mut client = UnixStream::connect_addr(&address).await?;
/// let mut server = listener.accept().await?;
/// assert_eq!(server.peer_cred()?.pid, Some(std::process::id()));
/// client.write_all(b"ciao").await?;
/// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct UnixListener {
    inner: Listener,
}

impl UnixListener {
    /// Binds to a path, which must not exist. See [`bind_addr`](Self::bind_addr).
    ///
    /// # Errors
    /// Returns the errors of [`bind_addr`](Self::bind_addr), and `InvalidInput` if the path is longer than the kernel
    /// supports (107 bytes).
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        Self::bind_addr(&SocketAddr::from_pathname(path).map_err(|error| with_path(path, &error))?)
    }

    /// Binds to a path or an abstract name and listens (`socket(2)`, `bind(2)`, `listen(2)`). The backlog is 4096,
    /// capped at `net.core.somaxconn`. The permissions of the socket file, which depend on the umask of the process,
    /// determine which users can connect.
    ///
    /// # Errors
    /// Returns `AddrInUse` if the path exists or the name is in use, even if no process listens on it. Returns other
    /// errors of `bind(2)` if the socket file cannot be created, and an error on the simulated driver.
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub fn bind_addr(address: &SocketAddr) -> io::Result<Self> {
        let shared = current();
        let listening = shared.driver.borrow_mut().listen_unix(address, BACKLOG);
        match listening {
            Ok(key) => Ok(Self { inner: Listener::new(shared, key) }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.as_pathname().is_some() => {
                let hint = "in use, or a stale socket file (check with ss -xl; remove the file if stale)";
                Err(with_address(address, &io::Error::new(error.kind(), format!("{error}: {hint}"))))
            }
            Err(error) => Err(with_address(address, &error)),
        }
    }

    /// Accepts the next connection (multishot accept on io_uring, Linux 5.19; `accept4(2)` otherwise).
    ///
    /// If the process has no descriptors left, the listener behaves like
    /// [`TcpListener::accept`](super::TcpListener::accept). Cancel-safe: if the future is dropped, the connection
    /// accepted for it is returned by the next call.
    ///
    /// # Errors
    /// Returns the error of `accept4(2)`, unless it concerns only a single client or exhausted descriptors.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let accepted = self.inner.accept().await?;
        // Unlike TCP sockets, Unix sockets do not inherit this option from the listener.
        accepted.set(StreamOption::UrgentInline)?;
        Ok(UnixStream::new(accepted))
    }

    /// Sets whether the driver may accept connections before [`accept`](Self::accept) is called. The default is
    /// `true`: io_uring then accepts all connections in the accept queue with one operation, and each holds a
    /// descriptor. With `false`, at most one accepted connection is open that `accept` has not returned. Use this for
    /// servers close to a descriptor limit.
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.inner.set_accept_ahead(accepts_ahead);
    }

    /// Returns the local address (`getsockname(2)`).
    ///
    /// # Errors
    /// Returns the error of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().listener_unix_address(self.inner.key())
    }

    /// Converts a listener of the standard library, for example one passed by a service manager.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be switched to non-blocking mode, or on the simulated driver.
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        Ok(Self { inner: Listener::import(OwnedFd::from(listener))? })
    }
}
