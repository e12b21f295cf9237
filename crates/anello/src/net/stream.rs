//! Streams of all families, and their halves. The methods of the halves are in `halves.rs`.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use super::connection::{Connection, ShutdownHandle};
use crate::driver::Family;

/// Connection of any family, bound to this thread's runtime: a [`TcpStream`](super::TcpStream) or a
/// [`UnixStream`](super::UnixStream).
///
/// Use this trait for code that supports both. Bytes are received and sent through the halves:
///
/// ```no_run
/// use anello::net::{ByteStream, TcpStream, UnixStream};
///
/// async fn greet(mut stream: impl ByteStream) -> std::io::Result<()> {
///     let (mut reader, mut writer) = stream.split();
///     writer.write_all(b"ciao").await?;
///     while reader.recv().await?.is_some() {}
///     Ok(())
/// }
///
/// # anello::example! {
/// greet(TcpStream::connect("127.0.0.1:7000").await?).await?;
/// greet(UnixStream::connect("/run/server").await?).await?;
/// # }
/// ```
///
/// This trait is sealed.
pub trait ByteStream: Sealed + Sized + Unpin + 'static {
    /// Borrows the stream as two halves, for two futures in one task.
    ///
    /// ```
    /// use anello::net::{ByteStream, UnixStream};
    ///
    /// async fn greet(mut stream: impl ByteStream) -> std::io::Result<()> {
    ///     let (mut reader, mut writer) = stream.split();
    ///     writer.write_all(b"ciao").await?;
    ///     reader.read_exact(&mut [0; 4]).await
    /// }
    /// # anello::example! {
    /// let (one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"ciao").await?;
    /// greet(one).await?;
    /// # }
    /// ```
    fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        let stream: &Self = self;
        (ReadHalf(stream), WriteHalf(stream))
    }

    /// Splits the stream into two independent halves, for two tasks. Unless [`forget`](OwnedWriteHalf::forget) was
    /// called, dropping the write half shuts down the write direction once the accepted bytes are sent, and the peer
    /// then reads EOF. The connection is closed when both halves are dropped.
    ///
    /// ```
    /// use anello::net::{ByteStream, UnixStream};
    ///
    /// /// Sends in another task while the caller receives.
    /// async fn exchange(stream: impl ByteStream) -> std::io::Result<()> {
    ///     let (mut reader, mut writer) = stream.into_split();
    ///     anello::spawn(async move { writer.write_all(b"ciao").await });
    ///     while reader.recv().await?.is_some() {}
    ///     Ok(())
    /// }
    /// # anello::example! {
    /// let (one, mut other) = UnixStream::pair()?;
    /// other.shutdown().await?;
    /// exchange(one).await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        let stream = Rc::new(self);
        (ReadHalf(Rc::clone(&stream)), WriteHalf(OwnedWriter { stream, keeps_open: false }))
    }

    /// Returns a handle that can shut down the connection from other tasks on this thread while a task is using it.
    ///
    /// ```
    /// use anello::net::{ByteStream, UnixStream};
    ///
    /// async fn read_until_shutdown(mut stream: impl ByteStream) -> std::io::Result<()> {
    ///     let handle = stream.shutdown_handle();
    ///     anello::spawn(async move { handle.shutdown_read() });
    ///     while stream.split().0.recv().await?.is_some() {}
    ///     Ok(())
    /// }
    /// # anello::example! {
    /// let (one, _other) = UnixStream::pair()?;
    /// read_until_shutdown(one).await?;
    /// # }
    /// ```
    fn shutdown_handle(&self) -> ShutdownHandle {
        self.connection().shutdown_handle()
    }
}

/// Supertrait that other crates cannot name, which seals [`ByteStream`].
pub trait Sealed {
    const FAMILY: Family;

    fn connection(&self) -> &Connection;
}

impl<S: Sealed> Sealed for &mut S {
    const FAMILY: Family = S::FAMILY;

    #[inline]
    fn connection(&self) -> &Connection {
        (**self).connection()
    }
}

/// Read half of a stream; see [`ByteStream::split`].
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// other.write_all(b"ciao").await?;
/// let (mut reader, mut writer) = one.split();
/// let chunk = reader.recv().await?.expect("bytes");
/// writer.send(chunk).await?;
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
#[derive(Debug)]
pub struct ReadHalf<P>(pub(super) P);

/// Write half of a stream; see [`ByteStream::split`].
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// let (_reader, mut writer) = one.split();
/// writer.write_all(b"ciao").await?;
/// writer.shutdown().await?;
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// assert!(other.recv().await?.is_none());
/// # }
/// ```
#[derive(Debug)]
pub struct WriteHalf<P>(pub(super) P);

/// Owned read half returned by [`ByteStream::into_split`].
///
/// ```
/// use anello::net::{OwnedReadHalf, UnixStream};
///
/// async fn count(mut reader: OwnedReadHalf<UnixStream>) -> std::io::Result<usize> {
///     let mut bytes = 0;
///     while let Some(chunk) = reader.recv().await? {
///         bytes += chunk.len();
///     }
///     Ok(bytes)
/// }
/// # anello::example! {
/// let (one, mut other) = UnixStream::pair()?;
/// let (reader, _writer) = one.into_split();
/// let counting = anello::spawn(count(reader));
/// other.write_all(b"ciao").await?;
/// drop(other);
/// assert_eq!(counting.await.expect("the task does not panic")?, 4);
/// # }
/// ```
pub type OwnedReadHalf<S> = ReadHalf<Rc<S>>;

/// Owned write half returned by [`ByteStream::into_split`]. Dropping it shuts down the write direction.
///
/// ```
/// use anello::net::{OwnedWriteHalf, UnixStream};
///
/// async fn greet(mut writer: OwnedWriteHalf<UnixStream>) -> std::io::Result<()> {
///     writer.write_all(b"ciao").await
/// }
/// # anello::example! {
/// let (one, mut other) = UnixStream::pair()?;
/// let (_reader, writer) = one.into_split();
/// anello::spawn(greet(writer));
/// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// // The task has dropped the write half.
/// assert!(other.recv().await?.is_none());
/// # }
/// ```
pub type OwnedWriteHalf<S> = WriteHalf<OwnedWriter<S>>;

/// Reference to the stream held by an [`OwnedWriteHalf`].
///
/// ```
/// # anello::example! {
/// use anello::net::{OwnedWriteHalf, OwnedWriter, UnixStream, WriteHalf};
///
/// let (one, _other) = UnixStream::pair()?;
/// let (_reader, writer) = one.into_split();
/// // The alias and the type that it stands for.
/// let writer: WriteHalf<OwnedWriter<UnixStream>> = writer;
/// let writer: OwnedWriteHalf<UnixStream> = writer;
/// assert_eq!(writer.try_write(b"ciao")?, 4);
/// # }
/// ```
#[derive(Debug)]
pub struct OwnedWriter<S: ByteStream> {
    stream: Rc<S>,
    /// If `true`, dropping the half does not shut down the write direction.
    keeps_open: bool,
}

impl<S: ByteStream> Deref for OwnedWriter<S> {
    type Target = S;

    #[inline(always)]
    fn deref(&self) -> &S {
        &self.stream
    }
}

impl<S: ByteStream> Drop for OwnedWriter<S> {
    fn drop(&mut self) {
        // The last owner closes the connection, which sends the accepted bytes and then a FIN.
        if !self.keeps_open && Rc::strong_count(&self.stream) > 1 {
            self.stream.connection().shutdown_dropped();
        }
    }
}

impl<S: ByteStream> OwnedReadHalf<S> {
    /// Restores the stream from its two halves. The write direction is not shut down.
    ///
    /// Borrowed halves need no such method: the stream can be used again when they are dropped.
    ///
    /// ```
    /// # anello::example! {
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
    /// # }
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
///
/// ```
/// # anello::example! {
/// use anello::net::{ReuniteError, UnixStream};
///
/// let (one, other) = UnixStream::pair()?;
/// let ((one_reader, _one_writer), (_other_reader, other_writer)) = (one.into_split(), other.into_split());
/// let ReuniteError { read, mut write } = one_reader.reunite(other_writer).unwrap_err();
/// write.write_all(b"ciao").await?;
/// assert_eq!(read.peek(&mut [0; 16]).await?, 4);
/// # }
/// ```
#[derive(Debug)]
pub struct ReuniteError<S: ByteStream> {
    /// The read half.
    pub read: OwnedReadHalf<S>,
    /// The write half.
    pub write: OwnedWriteHalf<S>,
}

impl<S: ByteStream> fmt::Display for ReuniteError<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("cannot reunite halves: they belong to different streams")
    }
}

impl<S: ByteStream + fmt::Debug> std::error::Error for ReuniteError<S> {}

impl<S: ByteStream> OwnedWriteHalf<S> {
    /// Restores the stream from its two halves. See [`OwnedReadHalf::reunite`](ReadHalf::reunite).
    ///
    /// # Errors
    /// Returns both halves if they do not belong to the same stream.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, mut other) = UnixStream::pair()?;
    /// let (reader, writer) = one.into_split();
    /// let mut one = writer.reunite(reader).expect("halves of one stream");
    /// one.write_all(b"ciao").await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn reunite(self, read: OwnedReadHalf<S>) -> Result<S, ReuniteError<S>> {
        read.reunite(self)
    }

    /// Drops the half without shutting down the write direction. The peer reads EOF once the read half is also dropped,
    /// which closes the connection.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (one, mut other) = UnixStream::pair()?;
    /// let (reader, mut writer) = one.into_split();
    /// writer.write_all(b"ciao").await?;
    /// writer.forget();
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// assert!(other.try_recv().is_err(), "the write direction is open");
    /// drop(reader);
    /// assert!(other.recv().await?.is_none());
    /// # }
    /// ```
    pub fn forget(mut self) {
        self.0.keeps_open = true;
    }
}
