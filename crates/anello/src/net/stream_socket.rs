//! Stream type shared by both families.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::marker::PhantomData;

use super::connection::{Connection, ShutdownHandle};
use super::family::StreamFamily;
use super::options::{SocketAccess, common_options, raw_descriptor};
use super::stream::{ByteStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, Sealed, WriteHalf};
use crate::driver::{Chunk, Driver, End, Family, SendBuf, Target};
use crate::fs::File;

/// Stream of the family `F`: a [`TcpStream`](super::TcpStream) or a [`UnixStream`](super::UnixStream), bound to this
/// thread's runtime.
///
/// Receiving and sending are independent: [`split`](ByteStream::split) and [`into_split`](ByteStream::into_split) return
/// one half for each direction. The futures of methods documented as "cancel-safe" can be dropped at any await point: no
/// received byte is lost, and every accepted byte is sent. A dropped stream continues to send accepted bytes, and is then
/// closed. If the kernel takes none for 30 seconds, because the peer does not read, a TCP connection is reset.
///
/// ```
/// # anello::example! {
/// use anello::net::{StreamFamily, StreamSocket, UnixStream};
///
/// /// Returns the length of the greeting, over TCP or Unix sockets.
/// async fn greeting_bytes<F: StreamFamily>(stream: &mut StreamSocket<F>) -> std::io::Result<usize> {
///     Ok(stream.recv().await?.map_or(0, |chunk| chunk.len()))
/// }
/// let (mut one, mut other) = UnixStream::pair()?;
/// other.write_all(b"ciao").await?;
/// assert_eq!(greeting_bytes(&mut one).await?, 4);
/// # }
/// ```
pub struct StreamSocket<F> {
    pub(super) connection: Connection,
    family: PhantomData<fn() -> F>,
}

impl<F: StreamFamily> StreamSocket<F> {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, family: PhantomData }
    }

    /// Receives bytes and returns them in the buffer that the kernel filled. Returns `None` at EOF.
    ///
    /// This is the fastest way to receive, because the bytes are not copied ([`recv` and `read`](super#recv-and-read)).
    /// On io_uring, TCP streams use a multishot receive into a buffer ring (Linux 6.0). Otherwise `recv(2)` receives
    /// into memory that is still in the CPU cache; for Unix streams on io_uring, a multishot poll (Linux 5.13) reports
    /// when the socket is readable. A stream stops receiving if its received data is not taken. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the connection is broken, for example reset or timed out. A Unix stream is broken if the
    /// peer closed it before reading all bytes.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.send("ciao").await?;
    /// drop(other);
    /// let mut text = Vec::new();
    /// while let Some(chunk) = one.recv().await? {
    ///     text.extend_from_slice(&chunk);
    /// }
    /// assert_eq!(text, b"ciao");
    /// # }
    /// ```
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.connection.recv()
    }

    /// Copies received bytes into `buffer` and returns the number of bytes copied. Returns 0 at EOF or if `buffer` is
    /// empty. Cancel-safe.
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.send("ciao").await?;
    /// drop(other);
    /// let mut buffer = [0; 16];
    /// assert_eq!(one.read(&mut buffer).await?, 4);
    /// assert_eq!(&buffer[..4], b"ciao");
    /// assert_eq!(one.read(&mut buffer).await?, 0, "EOF");
    /// # }
    /// ```
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection.read(buffer)
    }

    /// Fills `buffer`. Not cancel-safe: bytes already copied stay in `buffer`, but the number of bytes copied is lost.
    ///
    /// # Errors
    /// See [`recv`](Self::recv). Returns `UnexpectedEof` if the stream ends before `buffer` is full.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.send("headtail").await?;
    /// drop(other);
    /// let (mut head, mut rest) = ([0; 4], [0; 100]);
    /// one.read_exact(&mut head).await?;
    /// assert_eq!(&head, b"head");
    /// let error = one.read_exact(&mut rest).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    /// # }
    /// ```
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.connection.read_exact(buffer).await
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.send("ciao").await?;
    /// let chunk = other.recv().await?.expect("bytes");
    /// // The chunk is sent from the buffer in which it was received.
    /// other.send(chunk).await?;
    /// assert_eq!(one.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection.send(bytes.into())
    }

    /// Queues several owned buffers to be sent in order, and returns once all are accepted. For example, sends a header
    /// and a body without copying the body.
    ///
    /// Short buffers are copied into one, which is sent like that of [`send`](Self::send). Longer ones are passed to
    /// the kernel immediately, in one system call for up to 1024 buffers (`sendmsg(2)`); only buffers that the kernel
    /// does not take are queued. If one of the buffers is long enough for a
    /// [zero-copy](crate::DriverOptions::zero_copy) send, they are queued one by one. Like a single large buffer, the
    /// buffers can exceed the limit of the queue. Cancel-safe: a future that is dropped before completion has accepted
    /// nothing.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{SendBuf, UnixStream};
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let body = vec![b'x'; 50_000];
    /// one.send_vectored([SendBuf::from("length: 50000\n"), body.into()]).await?;
    /// let mut received = vec![0; 50_014];
    /// other.read_exact(&mut received).await?;
    /// assert!(received.starts_with(b"length: 50000\nxxx"));
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn send_vectored(
        &mut self,
        buffers: impl IntoIterator<Item: Into<SendBuf>>,
    ) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection.send_vectored(buffers.into_iter().map(Into::into).collect())
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// assert_eq!(one.write(b"ciao").await?, 4);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSlice;
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let slices = [IoSlice::new(b"head"), IoSlice::new(b"body")];
    /// assert_eq!(one.write_vectored(&slices).await?, 8);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"headbody"[..]));
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let mut client = TcpStream::connect(listener.local_addr()?).await?;
    /// let mut server = listener.accept().await?;
    /// assert_eq!(server.write_more(b"head").await?, 4);
    /// server.write_all(b"body").await?;
    /// let mut message = [0; 8];
    /// client.read_exact(&mut message).await?;
    /// assert_eq!(&message, b"headbody");
    /// # }
    /// ```
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection.write_more(bytes)
    }

    /// Writes all of `bytes`, waiting for room in the send queue as needed. Not cancel-safe: the number of accepted
    /// bytes is lost.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// // More than the send queue can hold.
    /// let writing = anello::spawn(async move { one.write_all(&[7; 1 << 20]).await });
    /// let mut received = 0;
    /// while let Some(chunk) = other.recv().await? {
    ///     received += chunk.len();
    /// }
    /// assert_eq!(received, 1 << 20);
    /// writing.await.expect("the task does not panic")?;
    /// # }
    /// ```
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.write_all(bytes).await
    }

    /// Waits until the kernel has taken all accepted bytes. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.send("ciao").await?;
    /// one.flush().await?;
    /// // The kernel has the bytes, so they are received even if this end is aborted.
    /// one.abort();
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("page");
    /// anello::fs::write(&path, "ciao, mondo").await?;
    /// let file = anello::fs::File::open(&path).await?;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// assert_eq!(one.send_file(&file, 6, 100).await?, 5);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"mondo"[..]));
    /// # }
    /// ```
    pub async fn send_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        self.connection.send_file(file, offset, length, |_| {}).await
    }

    /// Shuts down the write direction: calls `shutdown(2)` with `SHUT_WR` once the kernel has taken all accepted bytes.
    /// The peer then reads EOF. Does not wait for the peer to read. [`flush`](Self::flush), called before or after,
    /// waits until the kernel has taken the bytes. Later writes fail with `BrokenPipe`. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send). Also returns an error if the peer has already closed or reset the connection.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.send("request").await?;
    /// one.shutdown().await?;
    /// while other.recv().await?.is_some() {}
    /// // The other direction is still open.
    /// other.send("response").await?;
    /// assert_eq!(one.recv().await?.as_deref(), Some(&b"response"[..]));
    /// # }
    /// ```
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.connection.shutdown()
    }

    /// Borrows the stream as two halves, for two futures in one task. See [`ByteStream::split`].
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.send("ciao").await?;
    /// let (mut reader, mut writer) = one.split();
    /// writer.send(reader.recv().await?.expect("bytes")).await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        ByteStream::split(self)
    }

    /// Splits the stream into two independent halves, for two tasks. See [`ByteStream::into_split`].
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, mut other) = UnixStream::pair()?;
    /// let (mut reader, mut writer) = one.into_split();
    /// anello::spawn(async move { writer.send("ciao").await });
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// drop(other);
    /// assert!(reader.recv().await?.is_none());
    /// # }
    /// ```
    pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        ByteStream::into_split(self)
    }

    /// Returns the address of the peer (`getpeername(2)`). Clients of a Unix listener usually have an unnamed address.
    ///
    /// # Errors
    /// Returns the error from `getpeername(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.connection.address::<F>(End::Peer)
    }

    /// Returns the local address (`getsockname(2)`).
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(listener.accept().await?.peer_addr()?, stream.local_addr()?);
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.connection.address::<F>(End::Local)
    }

    /// Returns a handle that can shut down the connection from other tasks on this thread. See
    /// [`ByteStream::shutdown_handle`].
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, _other) = UnixStream::pair()?;
    /// let handle = one.shutdown_handle();
    /// anello::spawn(async move { handle.shutdown() });
    /// assert!(one.recv().await?.is_none());
    /// # }
    /// ```
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ByteStream::shutdown_handle(self)
    }

    /// Closes the connection immediately. Accepted bytes are discarded, and a TCP connection is reset (`SO_LINGER` with
    /// zero), so that the peer knows that the data may be incomplete. The peer of a Unix stream receives the bytes that
    /// the kernel has taken, and then EOF.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, mut other) = UnixStream::pair()?;
    /// one.abort();
    /// assert!(other.recv().await?.is_none());
    /// # }
    /// ```
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

impl<F: StreamFamily> ByteStream for StreamSocket<F> {}

impl<F: StreamFamily> AsRef<Self> for StreamSocket<F> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<F: StreamFamily> Sealed for StreamSocket<F> {
    const FAMILY: Family = F::FAMILY;

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
