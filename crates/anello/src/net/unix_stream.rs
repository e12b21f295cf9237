//! A Unix stream connection.

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

/// How long to wait before a full listener is tried again: first, and at most.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A connection between two processes of this machine (`AF_UNIX`, `SOCK_STREAM`), of this thread's runtime.
///
/// The same calls as [`TcpStream`](super::TcpStream), with the same promises: receiving and sending are independent,
/// every future may be dropped at any await point, and dropping the stream sends what was accepted, for up to 30
/// seconds, then closes it. Urgent data comes in order among the rest (`SO_OOBINLINE`). Descriptors that the peer sends
/// along (`SCM_RIGHTS`) are closed by the kernel, and the bytes beside them arrive.
///
/// Not on the simulated driver, whose network has none.
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

    /// Connects to the socket at a path; see [`connect_addr`](Self::connect_addr).
    ///
    /// # Errors
    /// As there; `InvalidInput` when the path is longer than the kernel takes (107 bytes).
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let address = SocketAddr::from_pathname(path).map_err(|error| with_path(path, &error))?;
        Self::connect_addr(&address).await
    }

    /// Connects to a path or an abstract name (`connect(2)` at once, on either driver: a Unix connect ends within the
    /// call). While the listener's backlog is full, it is tried again, after pauses of 1 to 50 ms: the kernel tells of no
    /// room. Cancel-safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// When nobody listens there (`NotFound`: no such path; `ConnectionRefused`: the socket file is left of a server that
    /// has ended), or the path may not be used.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<Self> {
        let shared = current();
        let mut pause = MIN_RETRY_DELAY;
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
                    sleep(pause).await;
                    pause = (pause * 2).min(MAX_RETRY_DELAY);
                }
                Err(error) => return Err(at(address, &error)),
            }
        }
    }

    /// Two streams that are connected to each other (`socketpair(2)`).
    ///
    /// # Errors
    /// When there are no descriptors left, or on the simulated driver.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        Ok((Self::from_std(one)?, Self::from_std(other)?))
    }

    /// Waits for bytes and returns them where the kernel put them; `None` when the peer has ended its side.
    ///
    /// No copy (`recv(2)` into memory that is still in the cache; on io_uring when a multishot poll, Linux 5.13, says
    /// that there is something). A stream of which nothing is taken stops receiving. Cancel-safe.
    ///
    /// # Errors
    /// When the connection is broken: the peer closed it with bytes unread.
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.inner.recv()
    }

    /// Copies bytes into `buffer` and returns how many; 0 when the peer has ended its side or `buffer` is empty.
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.read(buffer)
    }

    /// Fills `buffer`. Not cancel-safe: bytes already copied into it are in it, but how many is not known.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); `UnexpectedEof` when the peer ends before `buffer` is full.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(buffer).await
    }

    /// Hands owned bytes over to be sent; returns once they were accepted.
    ///
    /// They are accepted while less than [`max_send_queue_bytes`](crate::DriverOptions::max_send_queue_bytes) wait to be taken
    /// by the kernel, and are then sent in order, whatever happens to this future (`IORING_OP_SEND`, Linux 5.6, with the
    /// runtime's next system call; `send(2)` on epoll, at once or, small and where many sockets were ready, with the
    /// runtime's next turn). [`flush`](Self::flush) waits until the kernel has taken them: they are then with the peer's
    /// socket. Zero-copy sends do not exist on Unix sockets, whatever the options say. Cancel-safe: a future dropped
    /// before it was ready has accepted nothing.
    ///
    /// # Errors
    /// When the connection is broken (`BrokenPipe`, never a signal), by this or an earlier send: what was accepted and
    /// not yet taken is then lost.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner.send(bytes.into())
    }

    /// Accepts as much of `bytes` as there is room for, and returns how much.
    ///
    /// The kernel is asked to take them at once from where they lie (`send(2)`); what it refuses is copied, and what comes
    /// behind such. Up to 4096 bytes, but less than [`direct_send_threshold_bytes`](crate::DriverOptions::direct_send_threshold_bytes), are
    /// rather copied and sent with the runtime's next turn: on io_uring always, on epoll where many sockets were ready.
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.write(bytes)
    }

    /// As [`write`](Self::write), of several slices as one message: up to 4096 bytes in all, but less than
    /// [`direct_send_threshold_bytes`](crate::DriverOptions::direct_send_threshold_bytes), are copied together on either driver, longer ones
    /// are taken from where they lie (`sendmsg(2)`). At most 1024 slices are looked at. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.write_vectored(slices)
    }

    /// As [`write`](Self::write), of bytes that others follow at once, or the end of the stream. On TCP these may go out
    /// together; here there is no difference. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.write_more(bytes)
    }

    /// Writes all of `bytes`, waiting for room as often as needed. Not cancel-safe: how much was accepted is not known.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes).await
    }

    /// Waits until the kernel has taken everything that was accepted. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner.flush()
    }

    /// Sends `length` bytes of a file from `offset` on, without a copy through the program (`sendfile(2)`), after everything
    /// that was accepted before; returns how many were sent: fewer when the file has ended.
    ///
    /// Returns when the kernel has taken them. It may still read the file: what is written to the file meanwhile may be
    /// what the peer gets. What is not in memory, nor was in the last 100 ms, is first read by a thread for file
    /// operations ([`File::read_ahead`](crate::fs::File::read_ahead)), so that the worker does not wait for the disk. Where
    /// a peer has gone, the kernel raises SIGPIPE, which programs in Rust ignore unless they change that.
    ///
    /// Not cancel-safe: how much was sent is not known.
    ///
    /// # Errors
    /// As [`send`](Self::send). Also when the file cannot be read or sent from, such as a folder or a pipe: the connection
    /// is then as it was.
    pub fn send_file<'a>(
        &'a mut self,
        file: &'a File,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = io::Result<u64>> + 'a {
        self.inner.send_file(file, offset, length, |_| {})
    }

    /// Shuts down the write direction behind the accepted bytes (`shutdown(2)` with `SHUT_WR` when the kernel has taken
    /// them); the peer then reads EOF. Does not wait for the peer to read: [`flush`](Self::flush), before or after, waits
    /// until the kernel has taken the bytes. Later writes fail with `BrokenPipe`. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown()
    }

    /// Lends the two directions to two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        Stream::split(self)
    }

    /// Makes the two directions independent, for two tasks. Dropping the write half shuts down the write direction behind
    /// the accepted bytes, unless [`forget`](OwnedWriteHalf::forget) was called: the peer then reads EOF. The connection
    /// is closed when both halves are dropped.
    pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        Stream::into_split(self)
    }

    /// The address of the peer (`getpeername(2)`): unnamed for clients, as a rule.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().peer_unix_address(self.inner.key())
    }

    /// The address of this side (`getsockname(2)`).
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().local_unix_address(self.inner.key())
    }

    /// Who is at the other end (`getsockopt(2)` with `SO_PEERCRED`).
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        self.inner.driver().peer_credentials(self.inner.key())
    }

    /// The kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles it): what is on its way to the peer at most.
    /// There is no receive buffer beside the peer's send buffer.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.inner.set(StreamOption::SendBufferBytes(bytes))
    }

    /// A handle through which others on this thread can end the connection while a task uses it.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        Stream::shutdown_handle(self)
    }

    /// Closes the connection now: what was accepted and not yet taken by the kernel is dropped.
    pub fn abort(self) {
        self.inner.abort();
    }

    /// Takes over a stream of the standard library.
    ///
    /// # Errors
    /// When its mode cannot be set, or on the simulated driver.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        Ok(Self::new(Inner::import(OwnedFd::from(stream))?))
    }

    /// Gives the connection up to the standard library, in blocking mode, when everything accepted was sent; with the
    /// bytes that were received and not yet taken.
    ///
    /// # Errors
    /// When the connection is gone.
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

/// The error, with the address that it is about: a path, or `@` and an abstract name.
pub(super) fn at(address: &SocketAddr, error: &io::Error) -> io::Error {
    let name = match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(name)) => format!("@{}", name.escape_ascii()),
        (None, None) => "an unnamed socket".to_owned(),
    };
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// The error, with a path that is no address.
pub(super) fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
