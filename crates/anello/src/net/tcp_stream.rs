//! A TCP connection.

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

/// A TCP connection of this thread's runtime. `TCP_NODELAY` is on by default. Urgent data comes in order among the rest
/// (`SO_OOBINLINE`); on io_uring it may come only with the peer's next bytes, see
/// [`one_shot_receive`](crate::DriverOptions::one_shot_receive).
///
/// Receiving and sending are independent: [`split`](Self::split) lends both sides to different tasks. Every future of
/// it may be dropped at any await point (the methods say "cancel-safe"): no byte received is lost, and every byte
/// accepted is sent. Dropping the stream sends what was accepted, for up to 30 seconds, then closes it.
pub struct TcpStream {
    inner: Inner,
}

impl TcpStream {
    pub(super) fn new(inner: Inner) -> Self {
        Self { inner }
    }

    /// Connects to the first address that answers (`IORING_OP_CONNECT`, Linux 5.5; `connect(2)` on epoll).
    ///
    /// A name is resolved by a thread for work that blocks, an address needs none. Of several addresses, families are tried
    /// in turn, each when the attempt before has failed or has taken 250 ms; the first that succeeds cancels the others
    /// (Happy Eyeballs, RFC 8305). Cancel-safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// When no address can be resolved, or all attempts fail: the error names all addresses.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_to_any(None, address).await
    }

    /// Connects to the first address that answers, from an address of this machine (`bind(2)`, then as
    /// [`connect`](Self::connect)).
    ///
    /// With a port of zero in `source`, the kernel chooses the port when it knows the peer (`IP_BIND_ADDRESS_NO_PORT`,
    /// Linux 4.2), so that one port serves connections to different peers. Cancel-safe: dropping the future abandons the
    /// connection.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). Also `InvalidInput` when `source` is no address of this machine, and
    /// `AddrNotAvailable` when no port is left from there to the peer.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
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
        let key = started.map_err(|error| named(peer, source, error))?;
        let stream = Self::new(Inner::new(shared, key));
        let inner = &stream.inner;
        let connected = poll_fn(|context| inner.poll_connect(context)).await;
        connected.map_err(|error| named(peer, source, error))?;
        Ok(stream)
    }

    /// Waits for bytes and returns them where the kernel put them; `None` when the peer has ended its side.
    ///
    /// The fastest way to receive: no copy (multishot receive into a buffer ring on io_uring, Linux 6.0; `recv(2)`
    /// otherwise). A stream of which nothing is taken stops receiving. Cancel-safe.
    ///
    /// # Errors
    /// When the connection is broken: reset, timed out.
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

    /// Hands owned bytes over to be sent, without a copy; returns once they were accepted.
    ///
    /// They are accepted while less than [`max_send_queue_bytes`](crate::DriverOptions::max_send_queue_bytes) wait to be taken
    /// by the kernel, and are then sent in order, whatever happens to this future (`IORING_OP_SEND`, Linux 5.6, with the
    /// runtime's next system call; `send(2)` on epoll, at once or, small and where many sockets were ready, with the
    /// runtime's next turn). [`flush`](Self::flush) waits until the kernel has taken them. Cancel-safe: a future dropped
    /// before it was ready has accepted nothing.
    ///
    /// # Errors
    /// When the connection is broken, by this or an earlier send: what was accepted and not yet taken is then lost.
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

    /// As [`write`](Self::write), of bytes that others follow at once, a file, or the end of the stream: what they leave of
    /// a segment is sent together with that (`send(2)` with `MSG_MORE`), which spares a packet. If nothing follows, the
    /// kernel keeps what does not fill a segment for 200 ms. Cancel-safe.
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
    /// As [`send`](Self::send), and when the peer has already broken the connection.
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

    /// The address of the peer (`getpeername(2)`).
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().peer_address(self.inner.key())
    }

    /// The address of this side (`getsockname(2)`).
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.driver().local_address(self.inner.key())
    }

    /// Whether small messages are sent at once instead of collected (`TCP_NODELAY`).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.inner.set(StreamOption::NoDelay(on))
    }

    /// After how long without traffic the kernel probes the peer (`SO_KEEPALIVE`, `TCP_KEEPIDLE`); `None` never does.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        self.inner.set(StreamOption::KeepAlive(idle))
    }

    /// How the kernel closes (`SO_LINGER`): zero resets the connection.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.inner.set(StreamOption::Linger(linger))
    }

    /// The kernel's receive buffer in bytes (`SO_RCVBUF`; the kernel doubles it).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.inner.set(StreamOption::ReceiveBufferBytes(bytes))
    }

    /// The kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles it).
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
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        Ok(Self::new(Inner::import(OwnedFd::from(stream))?))
    }

    /// Gives the connection up to the standard library, in blocking mode, when everything accepted was sent; with the
    /// bytes that were received and not yet taken.
    ///
    /// # Errors
    /// When the connection is gone, or on the simulated driver.
    pub async fn into_std(self) -> io::Result<(std::net::TcpStream, Vec<u8>)> {
        let (descriptor, received) = self.inner.detach().await?;
        Ok((descriptor.into(), received))
    }
}

/// The error of a connect, with the addresses that it is about; one of the source alone has named it already.
fn named(peer: SocketAddr, source: Option<SocketAddr>, error: io::Error) -> io::Error {
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
