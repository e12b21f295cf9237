//! Receiving and sending with the halves of a stream.

use std::future::Future;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::task::{Context, Poll};

use super::connection::Connection;
use super::family::StreamFamily;
use super::stream::{ByteStream, ReadHalf, Sealed as _, WriteHalf};
use super::stream_socket::StreamSocket;
use crate::driver::{Chunk, End, Interest, Ready, SendBuf};
use crate::fs::File;

impl<P: Deref<Target: ByteStream>> ReadHalf<P> {
    #[inline(always)]
    pub(crate) fn connection(&self) -> &Connection {
        self.0.connection()
    }

    /// Receives bytes in the buffer that the kernel filled. See [`StreamSocket::recv`](super::StreamSocket::recv) for
    /// details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"ciao").await?;
    /// let (mut reader, _writer) = one.split();
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.connection().recv()
    }

    /// Copies received bytes without removing them from the stream. See
    /// [`StreamSocket::peek`](super::StreamSocket::peek) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"ciao").await?;
    /// let (mut reader, _writer) = one.split();
    /// assert_eq!(reader.peek(&mut [0; 16]).await?, 4);
    /// assert_eq!(reader.read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection().peek(buffer).await
    }

    /// Polls like [`peek`](Self::peek), which describes the errors. Only the task that polled last is woken.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"ciao").await?;
    /// let (mut reader, _writer) = one.split();
    /// assert_eq!(poll_fn(|context| reader.poll_peek(context, &mut [0; 16])).await?, 4);
    /// # }
    /// ```
    pub fn poll_peek(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.connection().poll_peek(buffer, context)
    }

    /// Waits until a receive would return bytes, EOF or an error. See
    /// [`StreamSocket::readable`](super::StreamSocket::readable) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"ciao").await?;
    /// let (reader, _writer) = one.split();
    /// reader.readable().await?;
    /// assert_eq!(reader.try_recv()?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub async fn readable(&self) -> io::Result<()> {
        self.connection().readable().await
    }

    /// Waits until the stream is ready for any operation of the given interest, and returns the readiness. See
    /// [`StreamSocket::ready`](super::StreamSocket::ready) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::io::Interest;
    /// use anello::net::UnixStream;
    ///
    /// let (one, mut other) = UnixStream::pair()?;
    /// let (reader, _writer) = other.split();
    /// drop(one);
    /// assert!(reader.ready(Interest::READABLE).await?.is_read_closed());
    /// # }
    /// ```
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.connection().ready(interest).await
    }

    /// Receives bytes without waiting. See [`StreamSocket::try_recv`](super::StreamSocket::try_recv) for details and
    /// errors.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, _other) = UnixStream::pair()?;
    /// let (reader, _writer) = one.split();
    /// assert_eq!(reader.try_recv().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// # }
    /// ```
    pub fn try_recv(&self) -> io::Result<Option<Chunk>> {
        self.connection().try_recv()
    }

    /// Copies received bytes into `buffer` without waiting. See
    /// [`StreamSocket::try_read`](super::StreamSocket::try_read) for details and errors.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, other) = UnixStream::pair()?;
    /// let (reader, _writer) = one.split();
    /// assert_eq!(reader.try_read(&mut [0; 16]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// drop(other);
    /// reader.readable().await?;
    /// assert_eq!(reader.try_read(&mut [0; 16])?, 0);
    /// # }
    /// ```
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection().try_read(buffer)
    }

    /// Copies received bytes into `buffer`. See [`StreamSocket::read`](super::StreamSocket::read) for details, errors
    /// and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"ciao").await?;
    /// let mut buffer = [0; 16];
    /// let count = one.split().0.read(&mut buffer).await?;
    /// assert_eq!(&buffer[..count], b"ciao");
    /// # }
    /// ```
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().read(buffer)
    }

    /// Fills `buffer`. See [`StreamSocket::read_exact`](super::StreamSocket::read_exact) for details, errors and cancel
    /// safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"headbody").await?;
    /// let (mut reader, _writer) = one.split();
    /// let mut head = [0; 4];
    /// reader.read_exact(&mut head).await?;
    /// assert_eq!(&head, b"head");
    /// # }
    /// ```
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.connection().read_exact(buffer).await
    }
}

impl<P: Deref<Target: ByteStream>> WriteHalf<P> {
    #[inline(always)]
    pub(crate) fn connection(&self) -> &Connection {
        self.0.connection()
    }

    /// Queues owned bytes to be sent, without a copy. See [`StreamSocket::send`](super::StreamSocket::send) for
    /// details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let (_reader, mut writer) = one.split();
    /// writer.send("ciao".to_owned().into_bytes()).await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection().send(bytes.into())
    }

    /// Sends several owned buffers in order, with one system call. See
    /// [`StreamSocket::send_vectored`](super::StreamSocket::send_vectored) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let (_reader, mut writer) = one.split();
    /// writer.send_vectored(["head", "body"]).await?;
    /// let mut bytes = [0; 8];
    /// other.read_exact(&mut bytes).await?;
    /// assert_eq!(&bytes, b"headbody");
    /// # }
    /// ```
    pub fn send_vectored(
        &mut self,
        buffers: impl IntoIterator<Item: Into<SendBuf>>,
    ) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection().send_vectored(buffers.into_iter().map(Into::into).collect())
    }

    /// Waits until a write would accept bytes or return an error. See
    /// [`StreamSocket::writable`](super::StreamSocket::writable) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, _other) = UnixStream::pair()?;
    /// let (_reader, writer) = one.split();
    /// writer.writable().await?;
    /// assert_eq!(writer.try_write(b"ciao")?, 4);
    /// # }
    /// ```
    pub async fn writable(&self) -> io::Result<()> {
        self.connection().writable().await
    }

    /// Waits until the stream is ready for any operation of the given interest, and returns the readiness. See
    /// [`StreamSocket::ready`](super::StreamSocket::ready) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::io::Interest;
    /// use anello::net::UnixStream;
    ///
    /// let (_one, mut other) = UnixStream::pair()?;
    /// let (_reader, writer) = other.split();
    /// assert!(writer.ready(Interest::WRITABLE).await?.is_writable());
    /// # }
    /// ```
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.connection().ready(interest).await
    }

    /// Writes bytes without waiting. See [`StreamSocket::try_write`](super::StreamSocket::try_write) for details and
    /// errors.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// assert_eq!(one.split().1.try_write(b"ciao")?, 4);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.connection().try_write(&[IoSlice::new(bytes)])
    }

    /// Writes several slices as one message without waiting. See
    /// [`StreamSocket::try_write_vectored`](super::StreamSocket::try_write_vectored) for details and errors.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSlice;
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let slices = [IoSlice::new(b"head"), IoSlice::new(b"body")];
    /// assert_eq!(one.split().1.try_write_vectored(&slices)?, 8);
    /// other.read_exact(&mut [0; 8]).await?;
    /// # }
    /// ```
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection().try_write(slices)
    }

    /// Accepts as many of `bytes` as fit into the send queue. See [`StreamSocket::write`](super::StreamSocket::write)
    /// for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// assert_eq!(one.split().1.write(b"ciao").await?, 4);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().write(bytes)
    }

    /// Writes several slices as one message. See [`StreamSocket::write_vectored`](super::StreamSocket::write_vectored)
    /// for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSlice;
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let slices = [IoSlice::new(b"head"), IoSlice::new(b"body")];
    /// assert_eq!(one.split().1.write_vectored(&slices).await?, 8);
    /// other.read_exact(&mut [0; 8]).await?;
    /// # }
    /// ```
    #[inline]
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().write_vectored(slices)
    }

    /// Writes bytes that are followed by more bytes, a file or a shutdown. See
    /// [`StreamSocket::write_more`](super::StreamSocket::write_more) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let (_reader, mut writer) = one.split();
    /// assert_eq!(writer.write_more(b"head").await?, 4);
    /// writer.write_all(b"body").await?;
    /// other.read_exact(&mut [0; 8]).await?;
    /// # }
    /// ```
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.connection().write_more(bytes)
    }

    /// Writes all of `bytes`. See [`StreamSocket::write_all`](super::StreamSocket::write_all) for details, errors and
    /// cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.split().1.write_all(b"ciao").await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection().write_all(bytes).await
    }

    /// Waits until the kernel has taken all accepted bytes. See [`StreamSocket::flush`](super::StreamSocket::flush) for
    /// details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, other) = UnixStream::pair()?;
    /// let (_reader, mut writer) = one.split();
    /// writer.send("ciao").await?;
    /// writer.flush().await?;
    /// other.readable().await?;
    /// assert_eq!(other.try_read(&mut [0; 16])?, 4);
    /// # }
    /// ```
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.connection().flush()
    }

    /// Sends part of a file without copying it through user space. See
    /// [`StreamSocket::send_file`](super::StreamSocket::send_file) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("page");
    /// anello::fs::write(&path, "headbody").await?;
    /// let file = anello::fs::File::open(&path).await?;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// assert_eq!(one.split().1.send_file(&file, 4, 4).await?, 4);
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"body"[..]));
    /// # }
    /// ```
    pub async fn send_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        self.connection().send_file(file, offset, length, |_| {}).await
    }

    /// Sends part of a file, like [`send_file`](Self::send_file). Each time the kernel takes bytes, `on_progress` is
    /// called with the number of bytes taken. The caller can thus distinguish a peer that reads slowly from one that
    /// does not read, and knows how many bytes were sent if the connection fails.
    ///
    /// # Errors
    /// See [`send_file`](Self::send_file).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("page");
    /// anello::fs::write(&path, "ciao").await?;
    /// let file = anello::fs::File::open(&path).await?;
    /// let (mut one, _other) = UnixStream::pair()?;
    /// let (_reader, mut writer) = one.split();
    /// let mut sent = 0;
    /// writer.send_file_with_progress(&file, 0, 4, |bytes| sent += bytes).await?;
    /// assert_eq!(sent, 4);
    /// # }
    /// ```
    pub fn send_file_with_progress<'a>(
        &'a mut self,
        file: &'a File,
        offset: u64,
        length: u64,
        on_progress: impl FnMut(u64) + 'a,
    ) -> impl Future<Output = io::Result<u64>> + 'a {
        self.connection().send_file(file, offset, length, on_progress)
    }

    /// Shuts down the write direction, once all accepted bytes are sent. See
    /// [`StreamSocket::shutdown`](super::StreamSocket::shutdown) for details, errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let (_reader, mut writer) = one.split();
    /// writer.shutdown().await?;
    /// assert!(other.recv().await?.is_none());
    /// assert_eq!(writer.write(b"ciao").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    /// # }
    /// ```
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.connection().shutdown()
    }
}

impl<F: StreamFamily, P: Deref<Target = StreamSocket<F>>> AsRef<StreamSocket<F>> for ReadHalf<P> {
    fn as_ref(&self) -> &StreamSocket<F> {
        &self.0
    }
}

impl<F: StreamFamily, P: Deref<Target = StreamSocket<F>>> ReadHalf<P> {
    /// Returns the address of the peer. See [`StreamSocket::peer_addr`].
    ///
    /// # Errors
    /// Returns the error from `getpeername(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut stream = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(stream.split().0.peer_addr()?, listener.local_addr()?);
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Peer)
    }

    /// Returns the local address. See [`StreamSocket::local_addr`].
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut stream = TcpStream::connect(listener.local_addr()?).await?;
    /// assert!(stream.split().0.local_addr()?.ip().is_loopback());
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Local)
    }
}

impl<F: StreamFamily, P: Deref<Target = StreamSocket<F>>> AsRef<StreamSocket<F>> for WriteHalf<P> {
    fn as_ref(&self) -> &StreamSocket<F> {
        &self.0
    }
}

impl<F: StreamFamily, P: Deref<Target = StreamSocket<F>>> WriteHalf<P> {
    /// Returns the address of the peer. See [`StreamSocket::peer_addr`].
    ///
    /// # Errors
    /// Returns the error from `getpeername(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut stream = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(stream.split().1.peer_addr()?, listener.local_addr()?);
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Peer)
    }

    /// Returns the local address. See [`StreamSocket::local_addr`].
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut stream = TcpStream::connect(listener.local_addr()?).await?;
    /// assert!(stream.split().1.local_addr()?.ip().is_loopback());
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.connection().address::<F>(End::Local)
    }
}
