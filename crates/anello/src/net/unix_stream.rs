//! Unix stream connections.

use std::future::poll_fn;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use super::connection::Connection;
use super::family::Unix;
use super::stream_socket::StreamSocket;
use crate::driver::PeerCredentials;
use crate::executor::current;
use crate::time::sleep;

/// Bounds for the delay before retrying a connect to a listener with a full backlog.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(50);

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
/// # let runtime = anello::Runtime::new()?;
/// # runtime.block_on(async {
/// use anello::net::UnixStream;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// one.write_all(b"ciao").await?;
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type UnixStream = StreamSocket<Unix>;

impl StreamSocket<Unix> {
    /// Connects to the socket at a path. See [`connect_addr`](Self::connect_addr).
    ///
    /// # Errors
    /// Returns the errors of [`connect_addr`](Self::connect_addr), and `InvalidInput` if the path is longer than the
    /// kernel supports (107 bytes).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let address = SocketAddr::from_pathname(path).map_err(|error| with_path(path, &error))?;
        Self::connect_addr(&address).await
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
            let connected = poll_fn(|context| {
                if !shared.has_budget_or_yield(context) {
                    return Poll::Pending;
                }
                Poll::Ready(shared.driver.borrow_mut().connect_unix(address))
            })
            .await;
            shared.spend_budget(0);
            match connected {
                Ok(key) => return Ok(Self::new(Connection::new(shared, key))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(delay).await;
                    delay = (delay * 2).min(MAX_RETRY_DELAY);
                }
                Err(error) => return Err(with_address(address, &error)),
            }
        }
    }

    /// Creates two streams that are connected to each other (`socketpair(2)`).
    ///
    /// # Errors
    /// Returns the error from `socketpair(2)`, for example if no descriptors are left, or an error on the simulated
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
        self.connection.peer_credentials()
    }
}

/// Prefixes the error with the address: a path, or `@` and an abstract name.
pub(super) fn with_address(address: &SocketAddr, error: &io::Error) -> io::Error {
    let name = match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(name)) => format!("@{}", name.escape_ascii()),
        (None, None) => "unnamed socket".to_owned(),
    };
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// Prefixes the error with a path that is not a valid address.
pub(super) fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
