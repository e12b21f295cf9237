//! Peeking, waiting for readiness, and operations that do not wait.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::family::StreamFamily;
use super::stream_socket::StreamSocket;
use crate::driver::{Chunk, Interest, Ready};

impl<F: StreamFamily> StreamSocket<F> {
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

    /// Polls like [`peek`](Self::peek). Only the task that polled last is woken.
    ///
    /// # Errors
    /// See [`peek`](Self::peek).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use std::future::poll_fn;
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.send("ciao").await?;
    /// let mut start = [0; 1];
    /// assert_eq!(poll_fn(|context| one.poll_peek(context, &mut start)).await?, 1);
    /// assert_eq!(one.read(&mut [0; 16]).await?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
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

    /// Polls like [`readable`](Self::readable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// See [`readable`](Self::readable).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use std::future::poll_fn;
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.send("ciao").await?;
    /// poll_fn(|context| one.poll_read_ready(context)).await?;
    /// assert_eq!(one.try_read(&mut [0; 16])?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UnixStream;
    /// let (one, mut other) = UnixStream::pair()?;
    /// one.writable().await?;
    /// assert_eq!(one.try_write(b"ciao")?, 4);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn writable(&self) -> io::Result<()> {
        self.connection.writable().await
    }

    /// Polls like [`writable`](Self::writable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// See [`writable`](Self::writable).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use std::future::poll_fn;
    /// # use anello::net::UnixStream;
    /// let (mut one, _other) = UnixStream::pair()?;
    /// poll_fn(|context| one.poll_write_ready(context)).await?;
    /// assert_eq!(one.try_write(b"ciao")?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn poll_write_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.poll_write_ready(context)
    }

    /// Waits until the stream is ready for any operation of the given interest, and returns the readiness. Several
    /// tasks can wait concurrently, and each is woken. Cancel-safe.
    ///
    /// See [`readable`](Self::readable) and [`writable`](Self::writable) for what readiness means. The result contains
    /// `READ_CLOSED` at EOF, `WRITE_CLOSED` after [`shutdown`](Self::shutdown), and `ERROR` with one of these if the next
    /// receive or send would return an error. Only the directions of the interest are reported.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::io::Interest;
    /// use anello::net::UnixStream;
    ///
    /// let (one, other) = UnixStream::pair()?;
    /// let ready = other.ready(Interest::READABLE | Interest::WRITABLE).await?;
    /// assert!(ready.is_writable() && !ready.is_readable());
    /// drop(one);
    /// assert!(other.ready(Interest::READABLE).await?.is_read_closed());
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns `InvalidInput` if the interest contains neither `READABLE` nor `WRITABLE`: urgent data is received in
    /// line, and errors make both directions ready. Otherwise, see [`readable`](Self::readable).
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.connection.ready(interest).await
    }

    /// Receives bytes like [`recv`](Self::recv), without waiting. Tasks that wait for the stream are not affected.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes have been received. On io_uring, bytes are received after the first call of any
    /// method that receives. See [`recv`](Self::recv) for other errors.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UnixStream;
    /// let (one, other) = UnixStream::pair()?;
    /// assert_eq!(one.try_recv().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// other.try_write(b"ciao")?;
    /// one.readable().await?;
    /// assert_eq!(one.try_recv()?.as_deref(), Some(&b"ciao"[..]));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_recv(&self) -> io::Result<Option<Chunk>> {
        self.connection.try_recv()
    }

    /// Copies received bytes into `buffer` like [`read`](Self::read), without waiting. See
    /// [`readable`](Self::readable) for an example.
    ///
    /// # Errors
    /// See [`try_recv`](Self::try_recv).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UnixStream;
    /// let (one, other) = UnixStream::pair()?;
    /// assert_eq!(one.try_read(&mut [0; 16]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// other.try_write(b"ciao")?;
    /// one.readable().await?;
    /// assert_eq!(one.try_read(&mut [0; 16])?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.try_read(buffer)
    }

    /// Writes bytes like [`write`](Self::write), without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the send queue is full. See [`send`](Self::send) for other errors.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UnixStream;
    /// let (one, _other) = UnixStream::pair()?;
    /// assert_eq!(one.try_write(b"ciao")?, 4);
    /// // The peer does not read, so the send queue becomes full.
    /// while one.try_write(&[0; 16 * 1024]).is_ok() {}
    /// assert_eq!(one.try_write(b"ciao").unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.try_write(&[IoSlice::new(bytes)])
    }

    /// Writes several slices as one message like [`write_vectored`](Self::write_vectored), without waiting.
    ///
    /// # Errors
    /// See [`try_write`](Self::try_write).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use std::io::IoSlice;
    /// # use anello::net::UnixStream;
    /// let (one, mut other) = UnixStream::pair()?;
    /// assert_eq!(one.try_write_vectored(&[IoSlice::new(b"head"), IoSlice::new(b"body")])?, 8);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"headbody"[..]));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection.try_write(slices)
    }
}
