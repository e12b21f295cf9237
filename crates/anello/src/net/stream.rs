//! Streams of all families, and their halves.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::rc::Rc;

use super::connection::{Connection, ShutdownHandle};
use crate::driver::SendBuf;
use crate::driver::buffer::Chunk;
use crate::fs::File;

/// Connection of any family, bound to this thread's runtime: a [`TcpStream`](super::TcpStream) or a
/// [`UnixStream`](super::UnixStream).
///
/// Use this trait for code that supports both. Bytes are received and sent through the halves:
///
/// ```
/// use anello::net::{Stream, TcpStream, UnixStream};
///
/// async fn greet(mut stream: impl Stream) -> std::io::Result<()> {
///     let (mut reader, mut writer) = stream.split();
///     writer.write_all(b"ciao").await?;
///     while reader.recv().await?.is_some() {}
///     Ok(())
/// }
/// # async fn both(tcp: TcpStream, unix: UnixStream) -> std::io::Result<()> {
/// greet(tcp).await?;
/// greet(unix).await
/// # }
/// ```
///
/// This trait is sealed.
pub trait Stream: Sealed + Sized + Unpin + 'static {
    /// Borrows the stream as two halves, for two futures in one task.
    fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        let stream: &Self = self;
        (ReadHalf(stream), WriteHalf(stream))
    }

    /// Splits the stream into two independent halves, for two tasks. Unless [`forget`](OwnedWriteHalf::forget) was
    /// called, dropping the write half shuts down the write direction once the accepted bytes are sent, and the peer
    /// then reads EOF. The connection is closed when both halves are dropped.
    fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        let stream = Rc::new(self);
        (ReadHalf(Rc::clone(&stream)), WriteHalf(OwnedWriter { stream, keeps_open: false }))
    }

    /// Returns a handle that can shut down the connection from other tasks on this thread while a task is using it.
    fn shutdown_handle(&self) -> ShutdownHandle {
        self.connection().shutdown_handle()
    }
}

/// Supertrait that other crates cannot name, which seals [`Stream`].
pub trait Sealed {
    fn connection(&self) -> &Connection;
}

impl<S: Sealed> Sealed for &mut S {
    #[inline]
    fn connection(&self) -> &Connection {
        (**self).connection()
    }
}

/// Read half of a stream; see [`Stream::split`].
#[derive(Debug)]
pub struct ReadHalf<P>(P);

/// Write half of a stream; see [`Stream::split`].
#[derive(Debug)]
pub struct WriteHalf<P>(P);

/// Owned read half returned by [`Stream::into_split`].
pub type OwnedReadHalf<S> = ReadHalf<Rc<S>>;

/// Owned write half returned by [`Stream::into_split`]. Dropping it shuts down the write direction.
pub type OwnedWriteHalf<S> = WriteHalf<OwnedWriter<S>>;

/// Reference to the stream held by an [`OwnedWriteHalf`].
#[derive(Debug)]
pub struct OwnedWriter<S: Stream> {
    stream: Rc<S>,
    /// If `true`, dropping the half does not shut down the write direction.
    keeps_open: bool,
}

impl<S: Stream> Deref for OwnedWriter<S> {
    type Target = S;

    #[inline(always)]
    fn deref(&self) -> &S {
        &self.stream
    }
}

impl<S: Stream> Drop for OwnedWriter<S> {
    fn drop(&mut self) {
        // The last owner closes the connection, which sends the accepted bytes and then a FIN.
        if !self.keeps_open && Rc::strong_count(&self.stream) > 1 {
            self.stream.connection().shutdown_dropped();
        }
    }
}

impl<S: Stream> OwnedReadHalf<S> {
    /// Restores the stream from its two halves. The write direction is not shut down.
    ///
    /// Borrowed halves need no such method: the stream can be used again when they are dropped.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UnixStream;
    ///
    /// let (one, mut other) = UnixStream::pair()?;
    /// let (reader, mut writer) = one.into_split();
    /// writer.write_all(b"ciao, ").await?;
    /// let mut one = reader.reunite(writer).expect("halves of one stream");
    /// one.write_all(b"mondo").await?;
    /// let mut text = [0; 11];
    /// other.read_exact(&mut text).await?;
    /// assert_eq!(&text, b"ciao, mondo");
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns both halves if they do not belong to the same stream.
    pub fn reunite(self, mut write: OwnedWriteHalf<S>) -> Result<S, ReuniteError<S>> {
        if !Rc::ptr_eq(&self.0, &write.0.stream) {
            return Err(ReuniteError { read: self, write });
        }
        write.0.keeps_open = true;
        drop(write);
        Ok(Rc::into_inner(self.0).expect("a stream has one read half and one write half"))
    }
}

/// Error of [`OwnedReadHalf::reunite`](ReadHalf::reunite): the halves belong to different streams.
#[derive(Debug)]
pub struct ReuniteError<S: Stream> {
    /// The read half.
    pub read: OwnedReadHalf<S>,
    /// The write half.
    pub write: OwnedWriteHalf<S>,
}

impl<S: Stream> fmt::Display for ReuniteError<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("cannot reunite halves: they belong to different streams")
    }
}

impl<S: Stream + fmt::Debug> std::error::Error for ReuniteError<S> {}

impl<S: Stream> OwnedWriteHalf<S> {
    /// Restores the stream from its two halves. See [`OwnedReadHalf::reunite`](ReadHalf::reunite).
    ///
    /// # Errors
    /// Returns both halves if they do not belong to the same stream.
    pub fn reunite(self, read: OwnedReadHalf<S>) -> Result<S, ReuniteError<S>> {
        read.reunite(self)
    }

    /// Drops the half without shutting down the write direction. The peer reads EOF once the read half is also dropped,
    /// which closes the connection.
    pub fn forget(mut self) {
        self.0.keeps_open = true;
    }
}

impl<P: Deref<Target: Stream>> ReadHalf<P> {
    #[inline(always)]
    pub(crate) fn connection(&self) -> &Connection {
        self.0.connection()
    }

    /// See [`StreamSocket::recv`](super::StreamSocket::recv) for details, errors and cancel safety.
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.connection().recv()
    }

    /// See [`StreamSocket::peek`](super::StreamSocket::peek) for details, errors and cancel safety.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection().peek(buffer).await
    }

    /// See [`StreamSocket::readable`](super::StreamSocket::readable) for details, errors and cancel safety.
    pub async fn readable(&self) -> io::Result<()> {
        self.connection().readable().await
    }

    /// See [`StreamSocket::try_recv`](super::StreamSocket::try_recv) for details and errors.
    pub fn try_recv(&self) -> io::Result<Option<Chunk>> {
        self.connection().try_recv()
    }

    /// See [`StreamSocket::try_read`](super::StreamSocket::try_read) for details and errors.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection().try_read(buffer)
    }

    /// See [`StreamSocket::read`](super::StreamSocket::read) for details, errors and cancel safety.
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().read(buffer)
    }

    /// See [`StreamSocket::read_exact`](super::StreamSocket::read_exact) for details, errors and cancel safety.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.connection().read_exact(buffer).await
    }
}

impl<P: Deref<Target: Stream>> WriteHalf<P> {
    #[inline(always)]
    pub(crate) fn connection(&self) -> &Connection {
        self.0.connection()
    }

    /// See [`StreamSocket::send`](super::StreamSocket::send) for details, errors and cancel safety.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection().send(bytes.into())
    }

    /// See [`StreamSocket::writable`](super::StreamSocket::writable) for details, errors and cancel safety.
    pub async fn writable(&self) -> io::Result<()> {
        self.connection().writable().await
    }

    /// See [`StreamSocket::try_write`](super::StreamSocket::try_write) for details and errors.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.connection().try_write(&[IoSlice::new(bytes)])
    }

    /// See [`StreamSocket::try_write_vectored`](super::StreamSocket::try_write_vectored) for details and errors.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection().try_write(slices)
    }

    /// See [`StreamSocket::write`](super::StreamSocket::write) for details, errors and cancel safety.
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().write(bytes)
    }

    /// See [`StreamSocket::write_vectored`](super::StreamSocket::write_vectored) for details, errors and cancel safety.
    #[inline]
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().write_vectored(slices)
    }

    /// See [`StreamSocket::write_more`](super::StreamSocket::write_more) for details, errors and cancel safety.
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().write_more(bytes)
    }

    /// See [`StreamSocket::write_all`](super::StreamSocket::write_all) for details, errors and cancel safety.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection().write_all(bytes).await
    }

    /// See [`StreamSocket::flush`](super::StreamSocket::flush) for details, errors and cancel safety.
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection().flush()
    }

    /// See [`StreamSocket::send_file`](super::StreamSocket::send_file) for details, errors and cancel safety.
    pub async fn send_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        self.connection().send_file(file, offset, length, |_| {}).await
    }

    /// Sends part of a file, like [`send_file`](Self::send_file). Each time the kernel takes bytes, `on_progress` is
    /// called with the number of bytes taken. The caller can thus distinguish a peer that reads slowly from one that
    /// does not read, and knows how many bytes were sent if the connection fails.
    ///
    /// # Errors
    /// See [`send_file`](Self::send_file).
    pub fn send_file_with_progress<'a>(
        &'a mut self,
        file: &'a File,
        offset: u64,
        length: u64,
        on_progress: impl FnMut(u64) + 'a,
    ) -> impl Future<Output = io::Result<u64>> + 'a {
        self.connection().send_file(file, offset, length, on_progress)
    }

    /// See [`StreamSocket::shutdown`](super::StreamSocket::shutdown) for details, errors and cancel safety.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.connection().shutdown()
    }
}
