//! Unix stream connections.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use super::stream::{Inner, Sealed};
use super::{
    Chunk, OwnedReadHalf, OwnedWriteHalf, PeerCredentials, ReadHalf, SendBuf, ShutdownHandle, Stream,
    WriteHalf,
};
use crate::driver::StreamOption;
use crate::executor::current;
use crate::fs::File;
use crate::time::sleep;

/// Minimum and maximum delay before connecting to a listener with a full backlog is retried.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Unix stream connection between two processes of the same machine (`AF_UNIX`, `SOCK_STREAM`), bound to this thread's
/// runtime.
///
/// Offers the same methods as [`TcpStream`](super::TcpStream), with the same guarantees. Receiving and sending are
/// independent. Every future can be dropped at any await point unless its method is documented as not cancel-safe.
/// Dropping the stream sends the accepted bytes for up to 30 seconds and then closes the stream. Urgent data is
/// received in order with the other data (`SO_OOBINLINE`). If the peer sends descriptors (`SCM_RIGHTS`), the kernel
/// closes them, and the accompanying bytes are received.
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
pub struct UnixStream {
    inner: Inner,
}

impl UnixStream {
    pub(super) fn new(inner: Inner) -> Self {
        Self { inner }
    }

    /// Connects to the socket at a path. See [`connect_addr`](Self::connect_addr).
    ///
    /// # Errors
    /// Returns the errors of [`connect_addr`](Self::connect_addr), and `InvalidInput` if the path is longer than the
    /// kernel supports (107 bytes).
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let address = SocketAddr::from_pathname(path).map_err(|error| with_path(path, &error))?;
        Self::connect_addr(&address).await
    }

    /// Connects to a path or an abstract name. Both drivers call `connect(2)` directly, because connecting a Unix
    /// socket never takes longer than the call. While the listener's backlog is full, the call is retried after delays
    /// of 1 to 50 ms, because the kernel does not report when the backlog has room. Cancel-safe: dropping the future
    /// abandons the connection.
    ///
    /// # Errors
    /// Returns the error of `connect(2)`: for example `NotFound` if the path does not exist, `ConnectionRefused` if no
    /// process listens on the socket file, and `PermissionDenied` if the path is not accessible.
    ///
    /// # Panics
    /// If no runtime runs on this thread.
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
                Ok(key) => return Ok(Self::new(Inner::new(shared, key))),
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
    /// Returns the error of `socketpair(2)`, for example if no descriptors are left, or an error on the simulated
    /// driver.
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        Ok((Self::from_std(one)?, Self::from_std(other)?))
    }

    /// Receives bytes and returns them in the buffer that the kernel filled. Returns `None` at EOF.
    ///
    /// The bytes are not copied. The kernel writes them by `recv(2)` into memory that is still in the CPU cache. On
    /// io_uring, a multishot poll (Linux 5.13) reports when the socket is readable. A stream whose data is not taken
    /// stops receiving. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the connection is broken: the peer closed it with unread bytes.
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.inner.recv()
    }

    /// Copies received bytes into `buffer` and returns their number. Returns 0 at EOF or if `buffer` is empty.
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.read(buffer)
    }

    /// Fills `buffer`. Not cancel-safe: bytes already copied stay in `buffer`, but their number is lost.
    ///
    /// # Errors
    /// See [`recv`](Self::recv). Returns `UnexpectedEof` if the stream ends before `buffer` is full.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(buffer).await
    }

    /// Queues owned bytes to be sent, and returns once they are accepted.
    ///
    /// Bytes are accepted while fewer than [`max_send_queue_bytes`](crate::DriverOptions::max_send_queue_bytes) bytes
    /// wait in the send queue. Accepted bytes are sent in order, even if this future is dropped. io_uring submits them
    /// (`IORING_OP_SEND`, Linux 5.6) with the runtime's next system call. epoll calls `send(2)` immediately, or with
    /// the runtime's next turn if the bytes are few and many sockets were ready. [`flush`](Self::flush) waits until
    /// the kernel has taken the bytes: they are then in the receive queue of the peer's socket. Unix sockets do not
    /// support zero-copy sends, so the options for these have no effect. Cancel-safe: a future that is dropped before
    /// completion has accepted nothing.
    ///
    /// # Errors
    /// Returns an error if this send or an earlier one failed because the connection is broken (`BrokenPipe`; no
    /// signal is raised). Bytes that the kernel has not taken are lost.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner.send(bytes.into())
    }

    /// Accepts as many of `bytes` as fit into the send queue, and returns their number.
    ///
    /// The bytes are passed to the kernel directly (`send(2)`). Bytes that the kernel does not take are copied, and so
    /// are later bytes while copied ones are still queued. Short writes, of at most 4096 bytes and fewer than
    /// [`direct_send_threshold_bytes`](crate::DriverOptions::direct_send_threshold_bytes), are copied and sent with
    /// the runtime's next turn: on io_uring always, on epoll if many sockets were ready. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.write(bytes)
    }

    /// Writes several slices as one message, like [`write`](Self::write). Up to 4096 bytes in total, if fewer than
    /// [`direct_send_threshold_bytes`](crate::DriverOptions::direct_send_threshold_bytes), are copied into one buffer
    /// on either driver. More bytes are passed to the kernel without a copy (`sendmsg(2)`). At most the first 1024
    /// slices are used. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    #[inline]
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.write_vectored(slices)
    }

    /// Writes bytes like [`write`](Self::write), if more bytes or the shutdown of the stream follow immediately. On
    /// TCP, both may be sent together. On Unix sockets, there is no difference from `write`. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.write_more(bytes)
    }

    /// Writes all of `bytes`, waiting for room in the send queue as needed. Not cancel-safe: the number of accepted
    /// bytes is lost.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes).await
    }

    /// Waits until the kernel has taken all accepted bytes. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner.flush()
    }

    /// Sends `length` bytes of a file, starting at `offset`, without copying them through user space (`sendfile(2)`).
    /// Bytes accepted earlier are sent first. Returns the number of bytes sent, which is lower than `length` if the
    /// file ends earlier.
    ///
    /// Returns when the kernel has taken the bytes. The kernel may still refer to the file, so the peer may receive
    /// data that is written to the file afterwards. Parts that are not in the page cache, and have not been in the
    /// last 100 ms, are first read by a thread for file operations
    /// ([`File::read_ahead`](crate::fs::File::read_ahead)), so the worker does not wait for the disk. If the peer has
    /// closed the connection, the kernel raises `SIGPIPE`, which Rust programs ignore by default.
    ///
    /// Not cancel-safe: the number of bytes sent is lost.
    ///
    /// # Errors
    /// See [`send`](Self::send). Also returns an error if the file cannot be read or does not support `sendfile(2)`,
    /// such as a directory or a pipe. The connection stays usable in this case.
    pub fn send_file<'a>(
        &'a mut self,
        file: &'a File,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = io::Result<u64>> + 'a {
        self.inner.send_file(file, offset, length, |_| {})
    }

    /// Shuts down the write direction after the accepted bytes: calls `shutdown(2)` with `SHUT_WR` once the kernel has
    /// taken them. The peer then reads EOF. Does not wait for the peer to read. [`flush`](Self::flush), called before
    /// or after, waits until the kernel has taken the bytes. Later writes fail with `BrokenPipe`. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown()
    }

    /// Lends the two directions to two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        Stream::split(self)
    }

    /// Splits the stream into two independent halves, for two tasks. Dropping the write half shuts down the write
    /// direction after the accepted bytes, unless [`forget`](OwnedWriteHalf::forget) was called, and the peer then
    /// reads EOF. The connection is closed when both halves are dropped.
    pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        Stream::into_split(self)
    }

    /// Returns the address of the peer (`getpeername(2)`). Clients usually have an unnamed address.
    ///
    /// # Errors
    /// Returns the error of `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().peer_unix_address(self.inner.key())
    }

    /// Returns the local address (`getsockname(2)`).
    ///
    /// # Errors
    /// Returns the error of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().local_unix_address(self.inner.key())
    }

    /// Returns the credentials of the peer (`getsockopt(2)` with `SO_PEERCRED`).
    ///
    /// # Errors
    /// Returns the error of `getsockopt(2)`.
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        self.inner.driver().peer_credentials(self.inner.key())
    }

    /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles the value). It limits the
    /// bytes in flight to the peer: Unix sockets have no separate receive buffer.
    ///
    /// # Errors
    /// Returns the error of `setsockopt(2)`.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.inner.set(StreamOption::SendBufferBytes(bytes))
    }

    /// Returns a handle that can shut down the connection from other tasks of this thread while a task uses it.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        Stream::shutdown_handle(self)
    }

    /// Closes the connection immediately. Accepted bytes that the kernel has not taken are discarded.
    pub fn abort(self) {
        self.inner.abort();
    }

    /// Converts a stream of the standard library.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be switched to non-blocking mode, or on the simulated driver.
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        Ok(Self::new(Inner::import(OwnedFd::from(stream))?))
    }

    /// Converts the stream into one of the standard library, in blocking mode, once all accepted bytes are sent. Also
    /// returns the bytes that were received and not yet taken.
    ///
    /// # Errors
    /// Returns an error if the connection is broken.
    pub async fn into_std(self) -> io::Result<(std::os::unix::net::UnixStream, Vec<u8>)> {
        let (descriptor, received) = self.inner.detach().await?;
        Ok((descriptor.into(), received))
    }
}

impl Stream for UnixStream {}

impl Sealed for UnixStream {
    #[inline(always)]
    fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl fmt::Debug for UnixStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("UnixStream").field("key", &self.inner.key()).finish_non_exhaustive()
    }
}

/// Prefixes the error with its address: a path, or `@` and an abstract name.
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
