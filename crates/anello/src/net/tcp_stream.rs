//! TCP connections.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::ToSocketAddrs;
use super::happy_eyeballs::connect_to_first;
use super::resolve::Host;
use super::stream::{Inner, Sealed};
use super::{Chunk, OwnedReadHalf, OwnedWriteHalf, ReadHalf, SendBuf, ShutdownHandle, Stream, WriteHalf};
use crate::driver::StreamOption;
use crate::executor::current;
use crate::fs::File;

/// TCP connection, bound to this thread's runtime. `TCP_NODELAY` is on by default. Urgent data is received in order
/// with the other data (`SO_OOBINLINE`). On io_uring, it may be delayed until the peer sends further bytes, see
/// [`one_shot_receive`](crate::DriverOptions::one_shot_receive).
///
/// Receiving and sending are independent: [`split`](Self::split) and [`into_split`](Self::into_split) return one half
/// for each direction. The futures of methods documented as "cancel-safe" can be dropped at any await point: no
/// received byte is lost, and every accepted byte is sent. Dropping the stream sends the accepted bytes for up to 30
/// seconds and then closes the stream.
pub struct TcpStream {
    inner: Inner,
}

impl TcpStream {
    pub(super) fn new(inner: Inner) -> Self {
        Self { inner }
    }

    /// Connects to the first address that responds (`IORING_OP_CONNECT`, Linux 5.5; `connect(2)` on epoll).
    ///
    /// A name is resolved on a thread of the blocking pool. If there are several addresses, attempts alternate between
    /// the address families. Each attempt starts when the previous one has failed or has been pending for 250 ms. The
    /// first successful attempt cancels the others (Happy Eyeballs, RFC 8305). Cancel-safe: dropping the future
    /// abandons the connection.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved, or if all attempts fail. The error includes all addresses.
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_to_any(None, address).await
    }

    /// Connects from a local address (`bind(2)`), otherwise like [`connect`](Self::connect).
    ///
    /// If the port in `source` is 0, the kernel selects the port when the peer is known (`IP_BIND_ADDRESS_NO_PORT`,
    /// Linux 4.2), so one local port can be used for connections to different peers. Cancel-safe: dropping the future
    /// abandons the connection.
    ///
    /// # Errors
    /// See [`connect`](Self::connect). Also returns `InvalidInput` if `source` is not a local address, and
    /// `AddrNotAvailable` if no local port is left for the peer.
    ///
    /// # Panics
    /// If no runtime runs on this thread.
    pub async fn connect_from(source: SocketAddr, address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_to_any(Some(source), address).await
    }

    async fn connect_to_any(source: Option<SocketAddr>, address: impl ToSocketAddrs) -> io::Result<Self> {
        match address.to_host()? {
            Host::Address(peer) => Self::connect_to(source, peer).await,
            host => connect_to_first(host.resolve().await?, |peer| Self::connect_to(source, peer)).await,
        }
    }

    async fn connect_to(source: Option<SocketAddr>, peer: SocketAddr) -> io::Result<Self> {
        let shared = current();
        let started = shared.driver.borrow_mut().connect(peer, source);
        let key = started.map_err(|error| with_addresses(peer, source, error))?;
        let stream = Self::new(Inner::new(shared, key));
        let inner = &stream.inner;
        let connected = poll_fn(|context| inner.poll_connect(context)).await;
        connected.map_err(|error| with_addresses(peer, source, error))?;
        Ok(stream)
    }

    /// Receives bytes and returns them in the buffer that the kernel filled. Returns `None` at EOF.
    ///
    /// This is the fastest way to receive, because the bytes are not copied (multishot receive into a buffer ring on
    /// io_uring, Linux 6.0; `recv(2)` otherwise). A stream whose data is not taken stops receiving. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the connection is broken, for example reset or timed out.
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

    /// Queues owned bytes to be sent, without a copy, and returns once they are accepted.
    ///
    /// Bytes are accepted while fewer than [`max_send_queue_bytes`](crate::DriverOptions::max_send_queue_bytes) bytes
    /// wait in the send queue. Accepted bytes are sent in order, even if this future is dropped. io_uring submits them
    /// (`IORING_OP_SEND`, Linux 5.6) with the runtime's next system call. epoll calls `send(2)` immediately, or with
    /// the runtime's next turn if the bytes are few and many sockets were ready. [`flush`](Self::flush) waits until
    /// the kernel has taken the bytes. Cancel-safe: a future that is dropped before completion has accepted nothing.
    ///
    /// # Errors
    /// Returns an error if this send or an earlier one failed because the connection is broken. Bytes that the kernel
    /// has not taken are lost.
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

    /// Writes bytes like [`write`](Self::write), if more bytes, a file or the shutdown of the stream follow
    /// immediately. A partial segment is sent together with the following data (`send(2)` with `MSG_MORE`), which
    /// saves a packet. If nothing follows, the kernel delays a partial segment by 200 ms. Cancel-safe.
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
    /// See [`send`](Self::send). Also returns an error if the peer has already closed or reset the connection.
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

    /// Returns the address of the peer (`getpeername(2)`).
    ///
    /// # Errors
    /// Returns the error of `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().peer_address(self.inner.key())
    }

    /// Returns the local address (`getsockname(2)`).
    ///
    /// # Errors
    /// Returns the error of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().local_address(self.inner.key())
    }

    /// Sets whether small messages are sent immediately instead of being coalesced (`TCP_NODELAY`).
    ///
    /// # Errors
    /// Returns the error of `setsockopt(2)`.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.inner.set(StreamOption::NoDelay(on))
    }

    /// Sets the idle time after which the kernel probes the peer (`SO_KEEPALIVE`, `TCP_KEEPIDLE`). `None` disables
    /// probes.
    ///
    /// # Errors
    /// Returns the error of `setsockopt(2)`.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        self.inner.set(StreamOption::KeepAlive(idle))
    }

    /// Sets how the kernel closes the connection (`SO_LINGER`). A duration of zero resets it.
    ///
    /// # Errors
    /// Returns the error of `setsockopt(2)`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.inner.set(StreamOption::Linger(linger))
    }

    /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles the value).
    ///
    /// # Errors
    /// Returns the error of `setsockopt(2)`.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.inner.set(StreamOption::ReceiveBufferBytes(bytes))
    }

    /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles the value).
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
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        Ok(Self::new(Inner::import(OwnedFd::from(stream))?))
    }

    /// Converts the stream into one of the standard library, in blocking mode, once all accepted bytes are sent. Also
    /// returns the bytes that were received and not yet taken.
    ///
    /// # Errors
    /// Returns an error if the connection is broken, or on the simulated driver.
    pub async fn into_std(self) -> io::Result<(std::net::TcpStream, Vec<u8>)> {
        let (descriptor, received) = self.inner.detach().await?;
        Ok((descriptor.into(), received))
    }
}

/// Prefixes the error of a connect with its addresses. An error that concerns only the source already includes it.
fn with_addresses(peer: SocketAddr, source: Option<SocketAddr>, error: io::Error) -> io::Error {
    let text = match source {
        Some(_) if error.get_ref().is_some() => return error,
        None => format!("{peer}: {error}"),
        Some(source) if source.port() == 0 => format!("{peer} from {}: {error}", source.ip()),
        Some(source) => format!("{peer} from {source}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

impl Stream for TcpStream {}

impl Sealed for TcpStream {
    #[inline(always)]
    fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TcpStream").field("key", &self.inner.key()).finish_non_exhaustive()
    }
}
