//! A TCP connection.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Chunk, Lingering, Outgoing};
use crate::driver::{Key, StreamOption};
use crate::executor::{Shared, current, with_current};

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

/// What the stream and its halves share.
pub(super) struct Inner {
    shared: Rc<Shared>,
    key: Key,
}

impl TcpStream {
    pub(super) fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { inner: Inner { shared, key } }
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Connects to the first address that answers (`IORING_OP_CONNECT`, Linux 5.5; `connect(2)` on epoll).
    ///
    /// Cancel-safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// When no address can be resolved or reached. Resolving a name blocks the thread; give an address where that
    /// matters.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let mut failed = None;
        for peer in address.to_socket_addrs()? {
            let shared = current();
            let started = shared.driver.borrow_mut().connect(peer);
            let connected = match started {
                Ok(key) => {
                    let stream = Self::new(shared, key);
                    let inner = &stream.inner;
                    poll_fn(|context| {
                        inner.shared.driver.borrow_mut().poll_connect(inner.key, context.waker())
                    })
                    .await
                    .map(|()| stream)
                }
                Err(error) => Err(error),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = Some(io::Error::new(error.kind(), format!("{peer}: {error}"))),
            }
        }
        Err(failed
            .unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the address names no host")))
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
    /// They are accepted while less than [`send_queue_bytes`](crate::DriverOptions::send_queue_bytes) wait to be taken
    /// by the kernel, and are then sent in order, whatever happens to this future (`IORING_OP_SEND`, Linux 5.6, with the
    /// runtime's next system call; `send(2)` at once on epoll). [`flush`](Self::flush) waits until the kernel has taken
    /// them. Cancel-safe: a future dropped before it was ready has accepted nothing.
    ///
    /// # Errors
    /// When the connection is broken, by this or an earlier send: what was accepted and not yet taken is then lost.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<Outgoing>) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner.send(bytes.into())
    }

    /// Copies as much of `bytes` as there is room for, and returns how much. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner.write(bytes)
    }

    /// Copies all of `bytes`, waiting for room as often as needed. Not cancel-safe: how much was accepted is not known.
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

    /// Flushes, then ends this side (`shutdown(2)` with `SHUT_WR`); the peer sees the end of the stream. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send), and when the peer has already broken the connection.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown().await
    }

    /// Lends the two directions to two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        let stream: &Self = self;
        (ReadHalf(stream), WriteHalf(stream))
    }

    /// Makes the two directions independent, for two tasks. The connection is closed when both are dropped.
    pub fn into_split(self) -> (ReadHalf<Rc<Self>>, WriteHalf<Rc<Self>>) {
        let stream = Rc::new(self);
        (ReadHalf(Rc::clone(&stream)), WriteHalf(stream))
    }

    /// The address of the peer (`getpeername(2)`).
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.shared.driver.borrow().peer_address(self.inner.key)
    }

    /// The address of this side (`getsockname(2)`).
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.shared.driver.borrow().local_address(self.inner.key)
    }

    /// Whether small messages are sent at once instead of collected (`TCP_NODELAY`).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_no_delay(&self, on: bool) -> io::Result<()> {
        self.inner.set(StreamOption::NoDelay(on))
    }

    /// After how long without traffic the kernel probes the peer (`SO_KEEPALIVE`, `TCP_KEEPIDLE`); `None` never does.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_keep_alive(&self, idle: Option<Duration>) -> io::Result<()> {
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
    pub fn set_receive_buffer_bytes(&self, bytes: usize) -> io::Result<()> {
        self.inner.set(StreamOption::ReceiveBufferBytes(bytes))
    }

    /// The kernel's send buffer in bytes (`SO_SNDBUF`; the kernel doubles it).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_send_buffer_bytes(&self, bytes: usize) -> io::Result<()> {
        self.inner.set(StreamOption::SendBufferBytes(bytes))
    }

    /// A handle through which others on this thread can end the connection while a task uses it.
    pub fn closer(&self) -> Closer {
        Closer { shared: Rc::clone(&self.inner.shared), key: self.inner.key }
    }

    /// Closes the connection now: what was accepted and not yet taken by the kernel is dropped.
    pub fn abort(self) {
        self.inner.shared.driver.borrow_mut().abort(self.inner.key);
    }

    /// Takes over a stream of the standard library.
    ///
    /// # Errors
    /// When its mode cannot be set, or on the simulated driver.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        Self::from_descriptor(OwnedFd::from(stream))
    }

    /// Takes over any connected stream socket, for example one end of a pair.
    ///
    /// # Errors
    /// As [`from_std`](Self::from_std).
    pub(crate) fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let shared = current();
        let key = shared.driver.borrow_mut().import_stream(descriptor)?;
        Ok(Self::new(shared, key))
    }

    /// Gives the connection up to the standard library, in blocking mode, when everything accepted was sent; with the
    /// bytes that were received and not yet taken.
    ///
    /// # Errors
    /// When the connection is gone, or on the simulated driver.
    pub async fn into_std(self) -> io::Result<(std::net::TcpStream, Vec<u8>)> {
        self.flush_for_detach().await?;
        let inner = &self.inner;
        let (descriptor, chunks) =
            poll_fn(|context| inner.shared.driver.borrow_mut().poll_detach(inner.key, context.waker()))
                .await?;
        Ok((
            std::net::TcpStream::from(descriptor),
            chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect(),
        ))
    }

    async fn flush_for_detach(&self) -> io::Result<()> {
        self.inner.flush().await
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TcpStream").field("key", &self.inner.key).finish_non_exhaustive()
    }
}

/// Ends a connection from outside the task that uses it; see [`TcpStream::closer`]. Does nothing once the connection is
/// closed.
#[derive(Clone)]
pub struct Closer {
    shared: Rc<Shared>,
    key: Key,
}

impl Closer {
    /// Ends the receiving side (`shutdown(2)` with `SHUT_RD`): the stream yields what has arrived, then its end.
    pub fn end_receiving(&self) {
        // Refused only when the peer has ended the connection already, which the stream sees by itself.
        self.shared.driver.borrow_mut().shutdown(self.key, Shutdown::Read).ok();
    }

    /// Breaks the connection (`shutdown(2)` of both sides): whoever waits for it gets its end or an error.
    pub fn end(&self) {
        // As above.
        self.shared.driver.borrow_mut().shutdown(self.key, Shutdown::Both).ok();
    }
}

impl fmt::Debug for Closer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Closer").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The receiving side of a stream; see [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<S>(S);

/// The sending side of a stream; see [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<S>(S);

impl<S: AsRef<TcpStream>> ReadHalf<S> {
    /// As [`TcpStream::recv`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.0.as_ref().inner.recv()
    }

    /// As [`TcpStream::read`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.as_ref().inner.read(buffer)
    }

    /// As [`TcpStream::read_exact`].
    ///
    /// # Errors
    /// As there.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.0.as_ref().inner.read_exact(buffer).await
    }
}

impl<S: AsRef<TcpStream>> WriteHalf<S> {
    /// As [`TcpStream::send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<Outgoing>) -> impl Future<Output = io::Result<()>> + '_ {
        self.0.as_ref().inner.send(bytes.into())
    }

    /// As [`TcpStream::write`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.as_ref().inner.write(bytes)
    }

    /// As [`TcpStream::write_all`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.as_ref().inner.write_all(bytes).await
    }

    /// As [`TcpStream::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.0.as_ref().inner.flush()
    }

    /// As [`TcpStream::shutdown`].
    ///
    /// # Errors
    /// As there.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.0.as_ref().inner.shutdown().await
    }
}

/// A stream stands for itself, so that halves can borrow or share it.
impl AsRef<Self> for TcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Inner {
    #[inline]
    fn recv(&self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        poll_fn(move |context| {
            let mut chunk = None;
            self.poll_recv(&mut chunk, context).map_ok(|()| chunk)
        })
    }

    /// Puts the next bytes into what is `None`; it stays so at the end of the stream.
    #[inline(always)]
    pub(super) fn poll_recv(&self, into: &mut Option<Chunk>, context: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.shared.may_proceed(context) {
            return Poll::Pending;
        }
        let received = self.shared.driver.borrow_mut().poll_receive(self.key, into, context.waker());
        if let Some(chunk) = into {
            self.shared.spend(chunk.len());
        }
        received
    }

    fn read<'a>(&'a self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| {
            if buffer.is_empty() {
                return Poll::Ready(Ok(0));
            }
            if !self.shared.may_proceed(context) {
                return Poll::Pending;
            }
            let read = self.shared.driver.borrow_mut().poll_read(self.key, buffer, context.waker());
            if let Poll::Ready(Ok(count)) = read {
                self.shared.spend(count);
            }
            read
        })
    }

    async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => {
                    let message =
                        format!("the peer ended the stream after {filled} of {} bytes", buffer.len());
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
                }
                count => filled += count,
            }
        }
        Ok(())
    }

    #[inline]
    fn send(&self, outgoing: Outgoing) -> impl Future<Output = io::Result<()>> + '_ {
        let mut outgoing = Some(outgoing);
        poll_fn(move |context| self.poll_send(&mut outgoing, context))
    }

    #[inline(always)]
    pub(super) fn poll_send(
        &self,
        outgoing: &mut Option<Outgoing>,
        context: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        // Counted like receives: a peer that reads as fast as we send must not keep the others waiting.
        if !self.shared.may_proceed(context) {
            return Poll::Pending;
        }
        let bytes = outgoing.as_ref().map_or(0, |outgoing| outgoing.as_slice().len());
        let sent = self.shared.driver.borrow_mut().poll_send(self.key, outgoing, context.waker());
        if sent.is_ready() {
            self.shared.spend(bytes);
        }
        sent
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| {
            if !self.shared.may_proceed(context) {
                return Poll::Pending;
            }
            let written = self.shared.driver.borrow_mut().poll_write(self.key, bytes, context.waker());
            if let Poll::Ready(Ok(count)) = written {
                self.shared.spend(count);
            }
            written
        })
    }

    async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.write(&bytes[written..]).await?;
        }
        Ok(())
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + '_ {
        poll_fn(|context| self.poll_flush(context))
    }

    pub(super) fn poll_flush(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.shared.driver.borrow_mut().poll_flush(self.key, context.waker())
    }

    async fn shutdown(&self) -> io::Result<()> {
        self.flush().await?;
        self.shared.driver.borrow_mut().shutdown(self.key, Shutdown::Write)
    }

    fn set(&self, option: StreamOption) -> io::Result<()> {
        self.shared.driver.borrow_mut().set_option(self.key, option)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let unsent = self.shared.driver.borrow_mut().release(self.key);
        if !unsent {
            return;
        }
        // What was accepted is still sent, but a peer that never reads must not keep it for ever.
        with_current(|current| {
            if std::ptr::eq(current, Rc::as_ptr(&self.shared))
                && current.lingering.borrow_mut().add(current, self.key)
            {
                current.spawn(Lingering::end_in_time(Rc::clone(&self.shared))).detach();
            }
        });
    }
}
