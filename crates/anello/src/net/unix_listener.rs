//! Listening for connections of this machine.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::UnixStream;
use super::listener::{BACKLOG, Listener};
use super::unix_stream::{at, with_path};
use crate::driver::StreamOption;
use crate::executor::current;

/// A listening Unix stream socket of this thread's runtime.
///
/// Its file stays when it is dropped, as the kernel has it: who made it removes it, or a later server at the same path
/// finds the address in use. Abstract names go with the last socket that has them.
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
    /// Listens at a path, which must not exist; see [`bind_addr`](Self::bind_addr).
    ///
    /// # Errors
    /// As there; `InvalidInput` when the path is longer than the kernel takes (107 bytes).
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        Self::bind_addr(&SocketAddr::from_pathname(path).map_err(|error| with_path(path, &error))?)
    }

    /// Listens at a path or an abstract name (`socket(2)`, `bind(2)`, `listen(2)`), with a backlog of 4096, capped by
    /// `net.core.somaxconn`. Who may connect is up to the permissions of the file, which follow the process's umask.
    ///
    /// # Errors
    /// `AddrInUse` when the path exists or the name is taken, whether or not anybody still listens; others when the path
    /// may not be made, or on the simulated driver.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn bind_addr(address: &SocketAddr) -> io::Result<Self> {
        let shared = current();
        let listening = shared.driver.borrow_mut().listen_unix(address, BACKLOG);
        match listening {
            Ok(key) => Ok(Self { inner: Listener::new(shared, key) }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.as_pathname().is_some() => {
                let remedy = "a server listens there, or one that has ended left the file: if nobody listens \
                              (ss -xl tells), remove it";
                Err(at(address, &io::Error::new(error.kind(), format!("{error}; {remedy}"))))
            }
            Err(error) => Err(at(address, &error)),
        }
    }

    /// The next connection (multishot accept on io_uring, Linux 5.19; `accept4(2)` otherwise).
    ///
    /// When the process has no descriptors left, it does as [`TcpListener::accept`](super::TcpListener::accept) does.
    /// Cancel-safe: a connection accepted for a dropped future goes to the next call.
    ///
    /// # Errors
    /// When the kernel refuses for a reason that is not one client's own.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let accepted = self.inner.accept().await?;
        // Unlike TCP, this is not inherited from the listener.
        accepted.set(StreamOption::UrgentInline)?;
        Ok(UnixStream::new(accepted))
    }

    /// Sets whether the driver may accept connections before [`accept`](Self::accept) is called for them; it does by
    /// default. io_uring then takes all that wait in the backlog by one operation, and each holds a descriptor. Without
    /// it at most one connection is open that `accept` has not returned: for servers that are near a limit.
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.inner.set_accept_ahead(accepts_ahead);
    }

    /// The address it listens at (`getsockname(2)`).
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().listener_unix_address(self.inner.key())
    }

    /// Takes over a listener of the standard library, for example one that was handed over by a service manager.
    ///
    /// # Errors
    /// When its mode cannot be set, or on the simulated driver.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        Ok(Self { inner: Listener::import(OwnedFd::from(listener))? })
    }
}
