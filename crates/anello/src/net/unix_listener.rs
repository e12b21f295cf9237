//! Unix stream listeners.

use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::family::Unix;
use super::listener::{BACKLOG, Listener};
use super::stream_listener::StreamListener;
use super::unix_stream::{with_address, with_path};
use crate::executor::current;

/// Listening Unix stream socket, bound to this thread's runtime.
///
/// Dropping the listener does not remove its socket file. The application that created the file must remove it, or
/// binding to the path again fails with `AddrInUse`. An abstract name is released when the last socket bound to it is
/// closed.
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
pub type UnixListener = StreamListener<Unix>;

impl StreamListener<Unix> {
    /// Binds to a path, which must not exist. See [`bind_addr`](Self::bind_addr).
    ///
    /// # Errors
    /// Returns the errors of [`bind_addr`](Self::bind_addr), and `InvalidInput` if the path is longer than the kernel
    /// supports (107 bytes).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        Self::bind_addr(&SocketAddr::from_pathname(path).map_err(|error| with_path(path, &error))?)
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
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.as_pathname().is_some() => {
                let hint = "in use, or a stale socket file (check with ss -xl; remove the file if stale)";
                Err(with_address(address, &io::Error::new(error.kind(), format!("{error}: {hint}"))))
            }
            Err(error) => Err(with_address(address, &error)),
        }
    }
}
