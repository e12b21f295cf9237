//! Halves of in-memory streams.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::traits::{AsyncRecv, AsyncSend};
use crate::driver::{SendBuf, unexpected_eof, wake_all};
use crate::executor::poll_cooperatively;

/// One direction of an in-memory stream.
#[derive(Debug)]
struct Pipe {
    buffers: VecDeque<Bytes>,
    /// Total length of the buffers.
    bytes: usize,
    /// Bytes are accepted while the total length is less than this.
    max_bytes: usize,
    is_shut_down: bool,
    is_reader_dropped: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    /// Returns the error of a write if no bytes can be accepted any more.
    fn check_open(&self) -> io::Result<()> {
        let cause = match (self.is_shut_down, self.is_reader_dropped) {
            (true, _) => "the writer is shut down",
            (false, true) => "the reader was dropped",
            (false, false) => return Ok(()),
        };
        let message = format!("cannot write to in-memory stream: {cause}");
        Err(io::Error::new(io::ErrorKind::BrokenPipe, message))
    }
}

type SharedPipe = Arc<Mutex<Pipe>>;

/// Read half of an in-memory stream; see [`DuplexStream::into_split`](super::DuplexStream::into_split).
///
/// ```
/// # anello::example! {
/// use anello::io::DuplexReadHalf;
///
/// async fn count(mut reader: DuplexReadHalf) -> std::io::Result<usize> {
///     let mut bytes = 0;
///     while let Some(received) = reader.recv().await? {
///         bytes += received.len();
///     }
///     Ok(bytes)
/// }
/// let (mut client, server) = anello::io::duplex(64);
/// client.send("ciao").await?;
/// drop(client);
/// assert_eq!(count(server.into_split().0).await?, 4);
/// # }
/// ```
#[derive(Debug)]
pub struct DuplexReadHalf {
    pipe: SharedPipe,
}

/// Write half of an in-memory stream; see [`DuplexStream::into_split`](super::DuplexStream::into_split). Dropping it
/// shuts down the write direction.
///
/// ```
/// # anello::example! {
/// use anello::io::DuplexWriteHalf;
///
/// async fn greet(mut writer: DuplexWriteHalf) -> std::io::Result<()> {
///     writer.send("ciao").await
/// }
/// let (mut client, server) = anello::io::duplex(64);
/// let (_reader, writer) = server.into_split();
/// greet(writer).await?;
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// assert!(client.recv().await?.is_none());
/// # }
/// ```
#[derive(Debug)]
pub struct DuplexWriteHalf {
    pipe: SharedPipe,
}

/// Creates one direction of an in-memory stream. Its writer accepts bytes while fewer than `max_bytes` are waiting to be
/// received.
pub(super) fn pipe(max_bytes: usize) -> (DuplexReadHalf, DuplexWriteHalf) {
    let pipe = Arc::new(Mutex::new(Pipe {
        buffers: VecDeque::new(),
        bytes: 0,
        max_bytes,
        is_shut_down: false,
        is_reader_dropped: false,
        reader: None,
        writer: None,
    }));
    (DuplexReadHalf { pipe: Arc::clone(&pipe) }, DuplexWriteHalf { pipe })
}

fn lock(pipe: &SharedPipe) -> MutexGuard<'_, Pipe> {
    // No application code runs while the lock is held, so a panic cannot poison it.
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DuplexReadHalf {
    /// Calls `take` with the pipe if it contains bytes. Returns 0 for an empty pipe at EOF.
    fn poll_take<T: Default>(
        &mut self,
        context: &mut Context<'_>,
        take: impl FnOnce(&mut Pipe) -> T,
        count: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        let poll = |context: &mut Context<'_>| {
            let waker = context.waker().clone();
            let mut pipe = lock(&self.pipe);
            if pipe.bytes == 0 && !pipe.is_shut_down {
                let replaced = pipe.reader.replace(waker);
                drop(pipe);
                drop(replaced);
                return Poll::Pending;
            }
            let taken = if pipe.bytes == 0 { T::default() } else { take(&mut pipe) };
            let writer = if pipe.bytes < pipe.max_bytes { pipe.writer.take() } else { None };
            drop(pipe);
            wake_all(writer);
            Poll::Ready(Ok(taken))
        };
        poll_cooperatively(context, poll, |taken: &io::Result<T>| taken.as_ref().map_or(0, count))
    }

    /// Calls `copy` at most once, with up to `max_bytes` bytes. Returns their number, which is 0 at EOF.
    pub(crate) fn poll_copy(
        &mut self,
        max_bytes: usize,
        copy: impl FnOnce(&[u8]),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if max_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut first = None;
        let taken = self.poll_take(
            context,
            |pipe| {
                let buffer = pipe.buffers.front_mut().map(|front| front.split_to(front.len().min(max_bytes)));
                if pipe.buffers.front().is_some_and(Bytes::is_empty) {
                    pipe.buffers.pop_front();
                }
                let count = buffer.as_ref().map_or(0, Bytes::len);
                pipe.bytes -= count;
                first = buffer;
                count
            },
            |count| *count,
        );
        // The destructor of the bytes is application code, which runs without the lock.
        if let Some(bytes) = &first {
            copy(bytes);
        }
        taken
    }

    /// Receives the next bytes, in the buffer in which they were sent. Returns `None` at EOF. Cancel-safe.
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(64);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// writer.send("uno").await?;
    /// writer.send("due").await?;
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"uno"[..]));
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"due"[..]));
    /// # }
    /// ```
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>> {
        poll_fn(|context| self.poll_recv(context))
    }

    /// Copies received bytes into `buffer` and returns their number. Returns 0 at EOF or if `buffer` is empty.
    /// Cancel-safe.
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(64);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// writer.send("ciao").await?;
    /// let mut buffer = [0; 3];
    /// assert_eq!(reader.read(&mut buffer).await?, 3);
    /// assert_eq!(reader.read(&mut buffer).await?, 1);
    /// # }
    /// ```
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| {
            let length = buffer.len();
            self.poll_copy(length, |bytes| buffer[..bytes.len()].copy_from_slice(bytes), context)
        })
    }

    /// Fills `buffer`. Not cancel-safe: the number of bytes already copied is lost.
    ///
    /// # Errors
    /// Returns `UnexpectedEof` if the stream ends before `buffer` is full.
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(64);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// writer.send("uno").await?;
    /// writer.send("due").await?;
    /// let mut buffer = [0; 6];
    /// reader.read_exact(&mut buffer).await?;
    /// assert_eq!(&buffer, b"unodue");
    /// # }
    /// ```
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(unexpected_eof(filled, buffer.len())),
                count => filled += count,
            }
        }
        Ok(())
    }
}

impl DuplexWriteHalf {
    /// Appends the bytes that `make` returns for the free number of bytes.
    fn poll_append(
        &mut self,
        context: &mut Context<'_>,
        make: impl FnOnce(usize) -> Bytes,
    ) -> Poll<io::Result<usize>> {
        let poll = |context: &mut Context<'_>| {
            let waker = context.waker().clone();
            let mut pipe = lock(&self.pipe);
            pipe.check_open()?;
            let room = pipe.max_bytes.saturating_sub(pipe.bytes);
            if room == 0 {
                let replaced = pipe.writer.replace(waker);
                drop(pipe);
                drop(replaced);
                return Poll::Pending;
            }
            drop(pipe);
            // Only this writer appends bytes, so the room can only grow while the lock is released.
            let bytes = make(room);
            let count = bytes.len();
            let mut pipe = lock(&self.pipe);
            let reader = pipe.reader.take();
            if pipe.is_reader_dropped || count == 0 {
                // No task will receive the bytes. Their destructor is application code, which runs without the lock.
                drop(pipe);
                drop(bytes);
            } else {
                pipe.bytes += count;
                pipe.buffers.push_back(bytes);
                drop(pipe);
            }
            wake_all(reader);
            Poll::Ready(Ok(count))
        };
        poll_cooperatively(context, poll, |count| count.as_ref().map_or(0, |count| *count))
    }

    pub(crate) fn poll_write(
        &mut self,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(lock(&self.pipe).check_open().map(|()| 0));
        }
        self.poll_append(context, |room| {
            let mut bytes = Vec::new();
            for slice in slices {
                bytes.extend_from_slice(&slice[..slice.len().min(room - bytes.len())]);
            }
            bytes.into()
        })
    }

    /// Sends owned bytes, and returns once they are accepted. Cancel-safe: a dropped future has accepted nothing.
    ///
    /// # Errors
    /// Returns `BrokenPipe` if the reader has been dropped or the writer is shut down.
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(64);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// writer.send(vec![1, 2, 3]).await?;
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&[1, 2, 3][..]));
    /// # }
    /// ```
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> {
        AsyncSend::send(self, bytes)
    }

    /// Copies as many of `bytes` as can be accepted, and returns their number. Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(3);
    /// # let ((_reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// assert_eq!(writer.write(b"ciao").await?, 3);
    /// # }
    /// ```
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| self.poll_write(&[IoSlice::new(bytes)], context))
    }

    /// Writes several slices as one buffer, like [`write`](Self::write). Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSlice;
    /// # let (client, server) = anello::io::duplex(64);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// let slices = [IoSlice::new(b"head"), IoSlice::new(b"body")];
    /// assert_eq!(writer.write_vectored(&slices).await?, 8);
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"headbody"[..]));
    /// # }
    /// ```
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| self.poll_write(slices, context))
    }

    /// Writes all of `bytes`. Not cancel-safe: the number of accepted bytes is lost.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(3);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// // More than the stream can hold.
    /// let writing = anello::spawn(async move { writer.write_all(b"ciao").await });
    /// let mut text = [0; 4];
    /// reader.read_exact(&mut text).await?;
    /// assert_eq!(&text, b"ciao");
    /// writing.await.expect("the task does not panic")?;
    /// # }
    /// ```
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.write(&bytes[written..]).await?;
        }
        Ok(())
    }

    /// Does nothing, because accepted bytes can be received immediately.
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(64);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// writer.send("ciao").await?;
    /// writer.flush().await?;
    /// assert_eq!(reader.read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Shuts down the writer: the reader receives the accepted bytes, then EOF.
    ///
    /// # Errors
    /// Returns no errors.
    ///
    /// ```
    /// # anello::example! {
    /// # let (client, server) = anello::io::duplex(64);
    /// # let ((mut reader, _), (_, mut writer)) = (client.into_split(), server.into_split());
    /// writer.send("ciao").await?;
    /// writer.shutdown().await?;
    /// assert_eq!(reader.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// assert!(reader.recv().await?.is_none());
    /// assert!(writer.send("ciao").await.is_err());
    /// # }
    /// ```
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.close();
        Ok(())
    }

    pub(crate) fn close(&mut self) {
        let mut pipe = lock(&self.pipe);
        pipe.is_shut_down = true;
        let reader = pipe.reader.take();
        drop(pipe);
        wake_all(reader);
    }
}

impl Drop for DuplexReadHalf {
    fn drop(&mut self) {
        let mut pipe = lock(&self.pipe);
        pipe.is_reader_dropped = true;
        pipe.bytes = 0;
        let (buffers, writer, own) = (mem::take(&mut pipe.buffers), pipe.writer.take(), pipe.reader.take());
        drop(pipe);
        drop(own);
        wake_all(writer);
        drop(buffers);
    }
}

impl Drop for DuplexWriteHalf {
    fn drop(&mut self) {
        let own = lock(&self.pipe).writer.take();
        drop(own);
        self.close();
    }
}

impl AsyncRecv for DuplexReadHalf {
    type Buf = Bytes;

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let take = |pipe: &mut Pipe| {
            let buffer = pipe.buffers.pop_front();
            pipe.bytes -= buffer.as_ref().map_or(0, Bytes::len);
            buffer
        };
        self.poll_take(context, take, |buffer| buffer.as_ref().map_or(0, Bytes::len))
    }
}

impl AsyncSend for DuplexWriteHalf {
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.poll_append(context, |_| bytes.take().map(Bytes::from).unwrap_or_default());
        if sent.is_ready() {
            drop(bytes.take());
        }
        sent.map_ok(|_| ())
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}
