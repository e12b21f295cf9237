//! Unix streams and listeners.

use std::future::poll_fn;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::connection::Connection;
use super::family::Unix;
use super::listener::{BACKLOG, Listener, StreamListener};
use super::stream_socket::StreamSocket;
pub(super) use crate::driver::unix_name as name;
use crate::driver::{Driver, PeerCredentials, log_event, log_span, with_context, with_text};
use crate::executor::current;
use crate::time::pause;

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
/// other data (`SO_OOBINLINE`). If the peer sends descriptors (`SCM_RIGHTS`), only
/// [`recv_with_fds`](StreamSocket::recv_with_fds) returns them; with other methods, the kernel closes them, and the
/// accompanying bytes are received.
///
/// On the simulated driver, a path is only a name: no file is created, and it is free again when the listener is
/// closed. All peers are in this process.
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// one.write_all(b"ciao").await?;
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
pub type UnixStream = StreamSocket<Unix>;

/// Result of [`UnixStream::recv_with_fds`](StreamSocket::recv_with_fds).
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// one.write_all(b"ciao").await?;
/// let info = other.recv_with_fds(&mut [0; 16], &mut Vec::new()).await?;
/// assert!(info.bytes == 4 && !info.are_fds_truncated);
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UnixStreamInfo {
    /// Number of bytes in the buffer. 0 means EOF, or that the buffer is empty.
    pub bytes: usize,
    /// True if the kernel has discarded descriptors (`MSG_CTRUNC`), for example because the process had no free
    /// descriptors.
    pub are_fds_truncated: bool,
}

impl StreamSocket<Unix> {
    /// Connects to the socket at a path, or with an abstract name if the path begins with a zero byte. See
    /// [`connect_addr`](Self::connect_addr) for details and panics.
    ///
    /// # Errors
    /// Returns the errors of `connect_addr`, and `InvalidInput` if the path exceeds the kernel's limit of 107 bytes.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{UnixListener, UnixStream};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("socket");
    /// let error = UnixStream::connect(&path).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// let listener = UnixListener::bind(&path)?;
    /// let client = UnixStream::connect(&path).await?;
    /// assert_eq!(client.peer_addr()?.as_pathname(), Some(&*path));
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use std::os::linux::net::SocketAddrExt;
    /// # use std::os::unix::net::SocketAddr;
    /// # use anello::net::{UnixListener, UnixStream};
    /// let name = format!("anello-connect-{}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(&name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// let client = UnixStream::connect_addr(&address).await?;
    /// assert_eq!(client.peer_addr()?.as_abstract_name(), Some(name.as_bytes()));
    /// # }
    /// ```
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<Self> {
        let span = log_span!("connect", peer = name(address));
        span.run(pin!(Self::connect_with_retries(address))).await
    }

    async fn connect_with_retries(address: &SocketAddr) -> io::Result<Self> {
        let shared = current();
        let mut delay = MIN_RETRY_DELAY;
        loop {
            let connect = |driver: &mut Driver, _: &Waker| Poll::Ready(driver.connect_unix(address));
            match poll_fn(|context| shared.poll_driver(context, connect, |_| 0)).await {
                Ok(key) => {
                    let stream = Self::new(Connection::new(shared, key));
                    log_event!(DEBUG, "connected");
                    return Ok(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    pause(delay).await;
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
    /// Returns the error from `socketpair(2)`, for example if no descriptors are left.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all(b"ciao").await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let shared = current();
        let (one, other) = shared.driver.borrow_mut().pair_unix()?;
        let stream = |key| Self::new(Connection::new(Rc::clone(&shared), key));
        Ok((stream(one), stream(other)))
    }

    /// Sends bytes together with descriptors (`sendmsg(2)` with `SCM_RIGHTS`). Returns the number of bytes sent, which is
    /// at least 1 and may be less than the length of `bytes`.
    ///
    /// Bytes that were accepted earlier are sent first. The receiver gets duplicates of the descriptors with the first
    /// byte; this process keeps its own. The peer must receive that byte with [`recv_with_fds`](Self::recv_with_fds) or
    /// `recvmsg(2)`. Cancel-safe: a future that is dropped before completion has sent nothing.
    ///
    /// ```
    /// # anello::example! {
    /// use std::io::Read as _;
    /// use std::os::fd::AsFd;
    ///
    /// use anello::net::UnixStream;
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let file = std::fs::File::open("/dev/zero")?;
    /// assert_eq!(one.send_with_fds(b"file", &[file.as_fd()]).await?, 4);
    /// let mut buffer = [0; 16];
    /// let mut fds = Vec::new();
    /// let info = other.recv_with_fds(&mut buffer, &mut fds).await?;
    /// assert_eq!((&buffer[..info.bytes], fds.len()), (&b"file"[..], 1));
    /// let mut bytes = [1; 4];
    /// std::fs::File::from(fds.remove(0)).read_exact(&mut bytes)?;
    /// assert_eq!(bytes, [0; 4]);
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns `InvalidInput` if `bytes` is empty or there are more than 253 descriptors, and `ETOOMANYREFS` if too many
    /// descriptors are in flight; the stream stays usable. See [`send`](Self::send) for other errors.
    pub async fn send_with_fds(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if bytes.is_empty() {
            let message = "cannot send descriptors: no bytes (send at least one byte with them)";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.connection.send_with_fds(bytes, descriptors).await
    }

    /// Receives bytes, and appends the descriptors that the peer has sent with them to `fds` (`recvmsg(2)` with
    /// `MSG_CMSG_CLOEXEC`). Returns the number of bytes, which is 0 at EOF or if `buffer` is empty, and whether
    /// descriptors are missing.
    ///
    /// Descriptors belong to the first byte with which they were sent, and a call returns the descriptors of at most one
    /// message. **Every other method that receives bytes closes their descriptors.** Use only this method while the peer
    /// may send descriptors; [`peek`](Self::peek) and [`readable`](Self::readable) are permitted. If bytes are left from
    /// an earlier receive by another method, they are returned first, without descriptors. See
    /// [`send_with_fds`](Self::send_with_fds) for an example. Cancel-safe.
    ///
    /// If the process has no free descriptors, the kernel closes the received descriptors that it cannot open, and this
    /// method returns the bytes with [`are_fds_truncated`](UnixStreamInfo::are_fds_truncated).
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::os::fd::AsFd;
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let (reader, _writer) = std::io::pipe()?;
    /// one.send_with_fds(b"pipe", &[reader.as_fd()]).await?;
    /// let mut buffer = [0; 16];
    /// let mut fds = Vec::new();
    /// let info = other.recv_with_fds(&mut buffer, &mut fds).await?;
    /// assert_eq!((&buffer[..info.bytes], fds.len()), (&b"pipe"[..], 1));
    /// assert!(!info.are_fds_truncated);
    /// # }
    /// ```
    pub async fn recv_with_fds(
        &mut self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<UnixStreamInfo> {
        if buffer.is_empty() {
            return Ok(UnixStreamInfo { bytes: 0, are_fds_truncated: false });
        }
        let (bytes, mut received) = self.connection.receive_with_fds(buffer).await?;
        fds.append(&mut received.fds);
        Ok(UnixStreamInfo { bytes, are_fds_truncated: received.are_truncated })
    }

    /// Returns a pidfd of the peer (`getsockopt(2)` with `SO_PEERPIDFD`, Linux 6.5). Unlike the process ID in
    /// [`peer_cred`](Self::peer_cred), it never refers to another process.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`: `ENOPROTOOPT` before Linux 6.5, and another error if the process has
    /// exited and been reaped.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, _other) = UnixStream::pair()?;
    /// match one.peer_pidfd() {
    ///     Ok(pidfd) => rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::WINCH)?,
    ///     Err(error) => assert_eq!(error.raw_os_error(), Some(92)), // ENOPROTOOPT
    /// }
    /// # }
    /// ```
    pub fn peer_pidfd(&self) -> io::Result<OwnedFd> {
        self.connection.driver().peer_pidfd(self.connection.key)
    }

    /// Returns the credentials of the peer (`getsockopt(2)` with `SO_PEERCRED`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, _other) = UnixStream::pair()?;
    /// let credentials = one.peer_cred()?;
    /// assert_eq!(credentials.pid, Some(std::process::id()));
    /// assert_eq!(credentials.uid, rustix::process::geteuid().as_raw());
    /// # }
    /// ```
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
/// # anello::example! {
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
/// # }
/// ```
pub type UnixListener = StreamListener<Unix>;

impl StreamListener<Unix> {
    /// Binds to a path, which must not exist, or to an abstract name if the path begins with a zero byte. See
    /// [`bind_addr`](Self::bind_addr) for details and panics.
    ///
    /// # Errors
    /// Returns the errors of `bind_addr`, and `InvalidInput` if the path exceeds the kernel's limit of 107 bytes.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{UnixListener, UnixStream};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("socket");
    /// let listener = UnixListener::bind(&path)?;
    /// let _client = UnixStream::connect(&path).await?;
    /// assert!(listener.accept().await?.peer_addr()?.is_unnamed());
    /// let error = UnixListener::bind(&path).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # }
    /// ```
    #[track_caller]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_addr(&path_address(path.as_ref())?)
    }

    /// Binds to a path or an abstract name and listens (`socket(2)`, `bind(2)`, `listen(2)`). The backlog is 4096,
    /// capped at `net.core.somaxconn`. The permissions of the socket file, which depend on the umask of the process,
    /// determine which users can connect.
    ///
    /// # Errors
    /// Returns `AddrInUse` if the path exists or the name is in use, even if no process is listening on it. Returns
    /// other errors of `bind(2)` if the socket file cannot be created.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::os::linux::net::SocketAddrExt;
    /// # use std::os::unix::net::SocketAddr;
    /// # use anello::net::UnixListener;
    /// let address = SocketAddr::from_abstract_name(format!("anello-bind-{}", std::process::id()))?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// assert!(UnixListener::bind_addr(&address).is_err());
    /// drop(listener);
    /// # }
    /// ```
    #[track_caller]
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

/// Returns the address of a path, or an abstract name if the path begins with a zero byte.
pub(super) fn path_address(path: &Path) -> io::Result<SocketAddr> {
    let address = match path.as_os_str().as_bytes().split_first() {
        Some((0, name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(path),
    };
    address.map_err(|error| with_context(format_args!("cannot use path {}", path.display()), error))
}
