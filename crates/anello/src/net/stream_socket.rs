//! Stream type shared by both families.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::ops::Deref;
use std::task::{Context, Poll};

use super::connection::{Connection, ShutdownHandle};
use super::family::StreamFamily;
use super::options::{SocketAccess, common_options, raw_descriptor};
use super::stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, Sealed, Stream, WriteHalf};
use crate::driver::buffer::Chunk;
use crate::driver::{Driver, End, SendBuf, Target};
use crate::fs::File;

/// Stream of the family `F`: a [`TcpStream`](super::TcpStream) or a [`UnixStream`](super::UnixStream), bound to this
/// thread's runtime.
///
/// Receiving and sending are independent: [`split`](Stream::split) and [`into_split`](Stream::into_split) return one
/// half for each direction. The futures of methods documented as "cancel-safe" can be dropped at any await point: no
/// received byte is lost, and every accepted byte is sent. A dropped stream continues to send accepted bytes for up to
/// 30 seconds and is then closed.
pub struct StreamSocket<F> {
    pub(super) connection: Connection,
    family: PhantomData<fn() -> F>,
}

impl<F: StreamFamily> StreamSocket<F> {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, family: PhantomData }
    }

    /// Receives bytes and returns them in the buffer that the kernel filled. Returns `None` at EOF.
    ///
    /// This is the fastest way to receive, because the bytes are not copied. On io_uring, TCP streams use a multishot
    /// receive into a buffer ring (Linux 6.0). Otherwise `recv(2)` receives into memory that is still in the CPU cache;
    /// for Unix streams on io_uring, a multishot poll (Linux 5.13) reports when the socket is readable. A stream stops
    /// receiving if its received data is not taken. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the connection is broken, for example reset or timed out. A Unix stream is broken if the
    /// peer closed it before reading all bytes.
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.connection.recv()
    }

    /// Copies received bytes into `buffer` and returns the number of bytes copied. Returns 0 at EOF or if `buffer` is
    /// empty. Cancel-safe.
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection.read(buffer)
    }

    /// Fills `buffer`. Not cancel-safe: bytes already copied stay in `buffer`, but the number of bytes copied is lost.
    ///
    /// # Errors
    /// See [`recv`](Self::recv). Returns `UnexpectedEof` if the stream ends before `buffer` is full.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.connection.read_exact(buffer).await
    }

    /// Copies received bytes into `buffer` without removing them from the stream, and returns the number of bytes copied.
    /// Returns 0 at EOF or if `buffer` is empty. The next receive returns the same bytes.
    ///
    /// Bytes that the driver has already received are copied from its memory, and the others from the socket (`recv(2)`
    /// with `MSG_PEEK`). Calling this method again returns immediately, even if no more bytes have arrived. Several
    /// tasks can wait concurrently. Cancel-safe.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UnixStream;
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all(b"GET /").await?;
    /// let mut start = [0; 3];
    /// assert_eq!(other.peek(&mut start).await?, 3);
    /// assert_eq!((&start, other.recv().await?.as_deref()), (b"GET", Some(&b"GET /"[..])));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`recv`](Self::recv). The next receive returns the error again.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.peek(buffer).await
    }

    /// Polls like [`peek`](Self::peek). Only the task that has polled last is woken.
    ///
    /// # Errors
    /// See [`peek`](Self::peek).
    pub fn poll_peek(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.connection.poll_peek(buffer, context)
    }

    /// Waits until a receive would return bytes, EOF or an error. Several tasks can wait concurrently, and each is woken.
    /// Usually followed by [`try_read`](Self::try_read) or [`try_recv`](Self::try_recv), which may still fail with
    /// `WouldBlock` if another task has taken the bytes. Cancel-safe.
    ///
    /// On io_uring, the bytes are already in the driver's memory when this method returns.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UnixStream;
    ///
    /// let (one, other) = UnixStream::pair()?;
    /// assert_eq!(one.try_write(b"ciao")?, 4);
    /// let mut buffer = [0; 16];
    /// let count = loop {
    ///     other.readable().await?;
    ///     match other.try_read(&mut buffer) {
    ///         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
    ///         result => break result?,
    ///     }
    /// };
    /// assert_eq!(&buffer[..count], b"ciao");
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error only if the runtime has been dropped or the connection was reset through a handle. Errors of the
    /// connection are returned by the next receive.
    pub async fn readable(&self) -> io::Result<()> {
        self.connection.readable().await
    }

    /// Polls like [`readable`](Self::readable). Only the task that has polled last is woken.
    ///
    /// # Errors
    /// See [`readable`](Self::readable).
    pub fn poll_read_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.poll_read_ready(context)
    }

    /// Waits until a write would accept bytes or return an error, that is, until the send queue has room. Several tasks
    /// can wait concurrently, and each is woken. Usually followed by [`try_write`](Self::try_write). Cancel-safe.
    ///
    /// Unlike in tokio, a stream is also writable while the kernel's buffer is full, as long as the send queue has room
    /// ([`max_send_queue_bytes`](crate::DriverOptions::max_send_queue_bytes)).
    ///
    /// # Errors
    /// Returns an error only if the runtime has been dropped or the connection was reset through a handle. Errors of the
    /// connection are returned by the next write.
    pub async fn writable(&self) -> io::Result<()> {
        self.connection.writable().await
    }

    /// Polls like [`writable`](Self::writable). Only the task that has polled last is woken.
    ///
    /// # Errors
    /// See [`writable`](Self::writable).
    pub fn poll_write_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.poll_write_ready(context)
    }

    /// Receives bytes like [`recv`](Self::recv), without waiting. Tasks that wait for the stream are not affected.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes have been received. On io_uring, bytes are received after the first call of any
    /// method that receives. See [`recv`](Self::recv) for other errors.
    pub fn try_recv(&self) -> io::Result<Option<Chunk>> {
        self.connection.try_recv()
    }

    /// Copies received bytes into `buffer` like [`read`](Self::read), without waiting. See
    /// [`readable`](Self::readable) for an example.
    ///
    /// # Errors
    /// See [`try_recv`](Self::try_recv).
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.try_read(buffer)
    }

    /// Writes bytes like [`write`](Self::write), without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the send queue is full. See [`send`](Self::send) for other errors.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.try_write(&[IoSlice::new(bytes)])
    }

    /// Writes several slices as one message like [`write_vectored`](Self::write_vectored), without waiting.
    ///
    /// # Errors
    /// See [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection.try_write(slices)
    }

    /// Queues owned bytes to be sent, without a copy, and returns once they are accepted.
    ///
    /// Bytes are accepted while fewer than [`max_send_queue_bytes`](crate::DriverOptions::max_send_queue_bytes) bytes
    /// are waiting in the send queue. Accepted bytes are sent in order, even if this future is dropped. io_uring
    /// submits them (`IORING_OP_SEND`, Linux 5.6) with the runtime's next system call. epoll calls `send(2)`
    /// immediately, or in the runtime's next turn if there are few bytes and many sockets were ready.
    /// [`flush`](Self::flush) waits until the kernel has taken the bytes. Unix sockets do not support zero-copy sends,
    /// so the zero-copy options have no effect on them. Cancel-safe: a future that is dropped before completion has
    /// accepted nothing.
    ///
    /// # Errors
    /// Returns an error if this send or an earlier one failed because the connection is broken (no signal is raised).
    /// Bytes that the kernel has not taken are lost.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection.send(bytes.into())
    }

    /// Accepts as many of `bytes` as fit into the send queue, and returns the number of bytes accepted.
    ///
    /// The bytes are passed to the kernel directly (`send(2)`). Bytes that the kernel does not take are copied and
    /// queued. While copied bytes are queued, later bytes are also copied. Writes of at most 4096 bytes that are also
    /// below [`direct_send_threshold_bytes`](crate::DriverOptions::direct_send_threshold_bytes) are copied and sent in
    /// the runtime's next turn. On epoll, this applies only if many sockets were ready. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection.write(bytes)
    }

    /// Writes several slices as one message, like [`write`](Self::write). Short messages are copied into one buffer on
    /// both drivers. Longer messages are passed to the kernel without a copy (`sendmsg(2)`). At most the first 1024
    /// slices are used. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    #[inline]
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection.write_vectored(slices)
    }

    /// Writes bytes like [`write`](Self::write). Use this method when more bytes, a file or a shutdown will follow
    /// immediately. A partial segment is sent together with the following data (`send(2)` with `MSG_MORE`), which saves
    /// a packet. If nothing follows, the kernel delays a partial segment by 200 ms. On Unix sockets, this method is
    /// equivalent to `write`. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection.write_more(bytes)
    }

    /// Writes all of `bytes`, waiting for room in the send queue as needed. Not cancel-safe: the number of accepted
    /// bytes is lost.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.write_all(bytes).await
    }

    /// Waits until the kernel has taken all accepted bytes. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection.flush()
    }

    /// Sends `length` bytes of a file, starting at `offset`, without copying them through user space (`sendfile(2)`).
    /// Bytes accepted earlier are sent first. Returns the number of bytes sent, which is less than `length` if the file
    /// ends earlier.
    ///
    /// Returns when the kernel has taken the bytes. The kernel may still refer to the file, so the peer may receive
    /// data that is written to the file afterwards. Parts that are not in the page cache, and were not found there in
    /// the last 100 ms, are first read by a blocking-pool thread ([`File::read_ahead`](crate::fs::File::read_ahead)),
    /// so the worker does not wait for the disk. If the peer has closed the connection, the kernel raises `SIGPIPE`,
    /// which Rust programs ignore by default.
    ///
    /// Not cancel-safe: the number of bytes sent is lost.
    ///
    /// # Errors
    /// See [`send`](Self::send). Also returns an error if the file cannot be read, or does not support `sendfile(2)`,
    /// for example because it is a directory or a pipe. The connection stays usable in this case.
    pub async fn send_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        self.connection.send_file(file, offset, length, |_| {}).await
    }

    /// Shuts down the write direction: calls `shutdown(2)` with `SHUT_WR` once the kernel has taken all accepted bytes.
    /// The peer then reads EOF. Does not wait for the peer to read. [`flush`](Self::flush), called before or after,
    /// waits until the kernel has taken the bytes. Later writes fail with `BrokenPipe`. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send). Also returns an error if the peer has already closed or reset the connection.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.connection.shutdown()
    }

    /// See [`Stream::split`].
    pub fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        Stream::split(self)
    }

    /// See [`Stream::into_split`].
    pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        Stream::into_split(self)
    }

    /// Returns the address of the peer (`getpeername(2)`). Clients of a Unix listener usually have an unnamed address.
    ///
    /// # Errors
    /// Returns the error from `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.connection.address::<F>(End::Peer)
    }

    /// Returns the local address (`getsockname(2)`).
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.connection.address::<F>(End::Local)
    }

    /// See [`Stream::shutdown_handle`].
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        Stream::shutdown_handle(self)
    }

    /// Closes the connection immediately. Accepted bytes that the kernel has not taken are discarded.
    pub fn abort(self) {
        self.connection.shared.driver.borrow_mut().abort(self.connection.key);
    }
}

impl<F: StreamFamily> SocketAccess for StreamSocket<F> {
    fn access<T>(&self, call: impl FnOnce(&Driver, Target<'_>) -> io::Result<T>) -> io::Result<T> {
        call(&self.connection.driver(), self.connection.target())
    }

    fn access_mut<T>(&self, call: impl FnOnce(&mut Driver, Target<'_>) -> io::Result<T>) -> io::Result<T> {
        call(&mut self.connection.shared.driver.borrow_mut(), self.connection.target())
    }
}

common_options!([<F: StreamFamily>] StreamSocket<F>);
raw_descriptor!([<F: StreamFamily>] StreamSocket<F>);

impl<F: StreamFamily, P: Deref<Target = StreamSocket<F>>> ReadHalf<P> {
    /// See [`StreamSocket::peer_addr`].
    ///
    /// # Errors
    /// Returns the error from `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Peer)
    }

    /// See [`StreamSocket::local_addr`].
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Local)
    }
}

impl<F: StreamFamily, P: Deref<Target = StreamSocket<F>>> WriteHalf<P> {
    /// See [`StreamSocket::peer_addr`].
    ///
    /// # Errors
    /// Returns the error from `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Peer)
    }

    /// See [`StreamSocket::local_addr`].
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Local)
    }
}

impl<F: StreamFamily> Stream for StreamSocket<F> {}

impl<F: StreamFamily> Sealed for StreamSocket<F> {
    #[inline(always)]
    fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl<F: StreamFamily> fmt::Debug for StreamSocket<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct(F::STREAM).field("key", &self.connection).finish_non_exhaustive()
    }
}
