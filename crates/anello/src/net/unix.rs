//! Unix streams and listeners.

use std::future::poll_fn;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::connection::Connection;
use super::family::Unix;
use super::listener::{BACKLOG, Listener, StreamListener};
use super::stream_socket::StreamSocket;
use crate::driver::{Driver, PeerCredentials, with_context, with_text};
use crate::executor::current;
use crate::time::sleep;

/// Bounds for the delay before another attempt to connect to a listener with a full backlog.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);
pub(super) const MAX_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Remedy for `AddrInUse` if the address is a path.
const STALE_FILE_REMEDY: &str =
    " (in use, or the socket file is stale: check with ss -xl; if it is stale, remove it)";

/// Unix stream connection between two processes on the same machine (`AF_UNIX`, `SOCK_STREAM`), bound to this thread's
/// runtime.
///
/// [`StreamSocket`] documents the methods and guarantees of all streams. Urgent data is received in order with the
/// other data (`SO_OOBINLINE`). If the peer sends descriptors (`SCM_RIGHTS`), the kernel closes them, and the
/// accompanying bytes are received.
///
/// The simulated driver does not support Unix sockets.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::net::UnixStream;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// one.write_all(b"ciao").await?;
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type UnixStream = StreamSocket<Unix>;

impl StreamSocket<Unix> {
    /// Connects to the socket at a path. See [`connect_addr`](Self::connect_addr) for details and panics.
    ///
    /// # Errors
    /// Returns the errors of `connect_addr`, and `InvalidInput` if the path exceeds the kernel's limit of 107 bytes.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::connect_addr(&path_address(path.as_ref())?).await
    }

    /// Connects to a path or an abstract name. Both drivers call `connect(2)` directly, because connecting a Unix
    /// socket completes within the call. While the listener's backlog is full, the call is retried after delays of 1 to
    /// 50 ms, because the kernel does not report when the backlog has room. Cancel-safe: dropping the future abandons
    /// the connection.
    ///
    /// # Errors
    /// Returns the error from `connect(2)`: for example `NotFound` if the path does not exist, `ConnectionRefused` if
    /// no process is listening on the socket file, and `PermissionDenied` if the path is not accessible.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<Self> {
        let shared = current();
        let mut delay = MIN_RETRY_DELAY;
        loop {
            let connect = |driver: &mut Driver, _: &Waker| Poll::Ready(driver.connect_unix(address));
            match poll_fn(|context| shared.poll_driver(context, connect, |_| 0)).await {
                Ok(key) => return Ok(Self::new(Connection::new(shared, key))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(delay).await;
                    delay = (delay * 2).min(MAX_RETRY_DELAY);
                }
                Err(error) => {
                    return Err(with_context(format_args!("cannot connect to {}", name(address)), error));
                }
            }
        }
    }

    /// Creates two streams that are connected to each other (`socketpair(2)`).
    ///
    /// # Errors
    /// Returns the error from `socketpair(2)`, for example if no descriptors are left. Always fails on the simulated
    /// driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        Ok((Self::from_std(one)?, Self::from_std(other)?))
    }

    /// Returns the credentials of the peer (`getsockopt(2)` with `SO_PEERCRED`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        self.connection.driver().peer_credentials(self.connection.key)
    }
}

/// Listening Unix stream socket, bound to this thread's runtime.
///
/// Dropping the listener does not remove its socket file. The application that created the file must remove it, or
/// binding to the path again fails with `AddrInUse`. An abstract name is released when the last socket bound to it is
/// closed.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
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
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type UnixListener = StreamListener<Unix>;

impl StreamListener<Unix> {
    /// Binds to a path, which must not exist. See [`bind_addr`](Self::bind_addr) for details and panics.
    ///
    /// # Errors
    /// Returns the errors of `bind_addr`, and `InvalidInput` if the path exceeds the kernel's limit of 107 bytes.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_addr(&path_address(path.as_ref())?)
    }

    /// Binds to a path or an abstract name and listens (`socket(2)`, `bind(2)`, `listen(2)`). The backlog is 4096,
    /// capped at `net.core.somaxconn`. The permissions of the socket file, which depend on the umask of the process,
    /// determine which users can connect.
    ///
    /// # Errors
    /// Returns `AddrInUse` if the path exists or the name is in use, even if no process is listening on it. Returns
    /// other errors of `bind(2)` if the socket file cannot be created, and an error on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn bind_addr(address: &SocketAddr) -> io::Result<Self> {
        let shared = current();
        let listening = shared.driver.borrow_mut().listen_unix(address, BACKLOG);
        match listening {
            Ok(key) => Ok(Self::new(Listener::new(shared, key))),
            Err(error) => {
                let is_file = error.kind() == io::ErrorKind::AddrInUse && address.as_pathname().is_some();
                let remedy = if is_file { STALE_FILE_REMEDY } else { "" };
                let text = format!("cannot bind {}: {error}{remedy}", name(address));
                Err(with_text(error.kind(), text, error))
            }
        }
    }
}

/// Returns the address for messages: a path, or `@` and an abstract name.
pub(super) fn name(address: &SocketAddr) -> String {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(name)) => format!("@{}", name.escape_ascii()),
        (None, None) => "unnamed socket".to_owned(),
    }
}

pub(super) fn path_address(path: &Path) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(path)
        .map_err(|error| with_context(format_args!("cannot use path {}", path.display()), error))
}
