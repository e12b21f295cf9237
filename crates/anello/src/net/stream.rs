//! What the streams of every family are made of: the connection itself, its two halves, and its end from outside.
//!
//! [`TcpStream`](super::TcpStream) and [`UnixStream`](super::UnixStream) wrap one [`Inner`] each and say what is true of
//! theirs; whatever a stream does is done here, once.

use std::cell::Ref;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Chunk, LingerQueue, SendBuf};
#[cfg(doc)]
use super::{TcpStream, UnixStream};
use crate::driver::{Driver, Key, StreamOption, wake_all};
use crate::executor::{Shared, current};
use crate::fs::File;

/// Bytes of a file that are looked for in memory, and sent, at a time.
const FILE_PIECE_BYTES: u64 = 2 * 1024 * 1024;

/// A connection of this thread's runtime, of whichever family: a [`TcpStream`] or a [`UnixStream`].
///
/// For code that serves both. It receives and sends through the halves:
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
/// No other type can be one.
pub trait Stream: Sealed + Sized + Unpin + 'static {
    /// Lends the two directions to two futures of one task.
    fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        let stream: &Self = self;
        (ReadHalf(stream), WriteHalf(stream))
    }

    /// Makes the two directions independent, for two tasks. Dropping the write half shuts down the write direction behind
    /// the accepted bytes, unless [`forget`](OwnedWriteHalf::forget) was called: the peer then reads EOF. The connection
    /// is closed when both halves are dropped.
    fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        let stream = Rc::new(self);
        (ReadHalf(Rc::clone(&stream)), WriteHalf(OwnedWriter { stream, keeps_open: false }))
    }

    /// A handle through which others on this thread can end the connection while a task uses it.
    fn shutdown_handle(&self) -> ShutdownHandle {
        let Inner { shared, key } = self.inner();
        ShutdownHandle { shared: Rc::clone(shared), key: *key }
    }
}

/// Out of reach of other crates, which keeps [`Stream`] to the types of this one.
pub trait Sealed {
    fn inner(&self) -> &Inner;
}

impl<S: Sealed> Sealed for &mut S {
    #[inline]
    fn inner(&self) -> &Inner {
        (**self).inner()
    }
}

/// A connection: what the wrappers and their halves share.
pub struct Inner {
    shared: Rc<Shared>,
    key: Key,
}

/// Ends a connection from outside the task that uses it; see [`Stream::shutdown_handle`]. Does nothing once the connection is
/// closed.
#[derive(Clone)]
pub struct ShutdownHandle {
    shared: Rc<Shared>,
    key: Key,
}

impl ShutdownHandle {
    /// The address of the peer (`getpeername(2)`).
    ///
    /// # Errors
    /// When the connection is broken or closed, or not one of the internet.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.shared.driver.borrow().peer_address(self.key)
    }

    /// Ends the receiving side (`shutdown(2)` with `SHUT_RD`): the stream yields what has arrived, then its end.
    pub fn shutdown_read(&self) {
        // Refused only when the peer has ended the connection already, which the stream sees by itself.
        self.shared.driver.borrow().shutdown(self.key, Shutdown::Read).ok();
    }

    /// Closes the connection now, by a reset (`SO_LINGER` with zero): the peer of a TCP connection is told that what it got
    /// is not all. What it has not taken is dropped, and whoever uses the stream, or waits for it, gets an error.
    pub fn reset(&self) {
        let waiting = {
            let mut driver = self.shared.driver.borrow_mut();
            // Refused only when there is nobody left to be told.
            driver.set_option(self.key, StreamOption::Linger(Some(Duration::ZERO))).ok();
            let waiting = driver.take_wakers(self.key);
            driver.abort(self.key);
            waiting
        };
        // Not borrowed meanwhile: a waker may do anything.
        wake_all(waiting.into_iter().flatten());
    }

    /// Breaks the connection (`shutdown(2)` of both sides): whoever waits for it gets its end or an error.
    pub fn shutdown(&self) {
        // As above.
        self.shared.driver.borrow().shutdown(self.key, Shutdown::Both).ok();
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ShutdownHandle").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The receiving side of a stream; see [`Stream::split`].
#[derive(Debug)]
pub struct ReadHalf<P>(P);

/// The sending side of a stream; see [`Stream::split`].
#[derive(Debug)]
pub struct WriteHalf<P>(P);

/// The read half that [`Stream::into_split`] returns.
pub type OwnedReadHalf<S> = ReadHalf<Rc<S>>;

/// The write half that [`Stream::into_split`] returns. Dropping it shuts down the write direction.
pub type OwnedWriteHalf<S> = WriteHalf<OwnedWriter<S>>;

/// The share of a stream that an [`OwnedWriteHalf`] holds.
#[derive(Debug)]
pub struct OwnedWriter<S: Stream> {
    stream: Rc<S>,
    /// Dropped without a shutdown.
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
        // The last owner closes the connection, which sends what was accepted and a FIN behind it.
        if !self.keeps_open && Rc::strong_count(&self.stream) > 1 {
            self.stream.inner().shutdown_dropped();
        }
    }
}

impl<S: Stream> OwnedWriteHalf<S> {
    /// Drops the half without shutting down the write direction: the peer sees EOF when the connection is closed, which is
    /// when the read half is dropped, too.
    pub fn forget(mut self) {
        self.0.keeps_open = true;
    }
}

impl<P: Deref<Target: Stream>> ReadHalf<P> {
    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        self.0.inner()
    }

    /// As [`TcpStream::recv`] and [`UnixStream::recv`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.inner().recv()
    }

    /// As [`TcpStream::read`] and [`UnixStream::read`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().read(buffer)
    }

    /// As [`TcpStream::read_exact`] and [`UnixStream::read_exact`].
    ///
    /// # Errors
    /// As there.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.inner().read_exact(buffer).await
    }
}

impl<P: Deref<Target: Stream>> WriteHalf<P> {
    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        self.0.inner()
    }

    /// As [`TcpStream::send`] and [`UnixStream::send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner().send(bytes.into())
    }

    /// As [`TcpStream::write`] and [`UnixStream::write`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().write(bytes)
    }

    /// As [`TcpStream::write_vectored`] and [`UnixStream::write_vectored`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().write_vectored(slices)
    }

    /// As [`TcpStream::write_more`] and [`UnixStream::write_more`].
    ///
    /// # Errors
    /// As there.
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().write_more(bytes)
    }

    /// As [`TcpStream::write_all`] and [`UnixStream::write_all`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner().write_all(bytes).await
    }

    /// As [`TcpStream::flush`] and [`UnixStream::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner().flush()
    }

    /// As [`TcpStream::send_file`] and [`UnixStream::send_file`].
    ///
    /// # Errors
    /// As there.
    pub fn send_file<'a>(
        &'a mut self,
        file: &'a File,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = io::Result<u64>> + 'a {
        self.inner().send_file(file, offset, length, |_| {})
    }

    /// As [`send_file`](Self::send_file). `on_progress` is called each time that the kernel has taken some of it, with how many
    /// bytes: by this, a peer that reads slowly can be told from one that does not read, and it is known how much had gone
    /// when the connection breaks.
    ///
    /// # Errors
    /// As there.
    pub fn send_file_with_progress<'a>(
        &'a mut self,
        file: &'a File,
        offset: u64,
        length: u64,
        on_progress: impl FnMut(u64) + 'a,
    ) -> impl Future<Output = io::Result<u64>> + 'a {
        self.inner().send_file(file, offset, length, on_progress)
    }

    /// As [`TcpStream::shutdown`] and [`UnixStream::shutdown`].
    ///
    /// # Errors
    /// As there.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.inner().shutdown()
    }
}

impl Inner {
    pub(super) fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key }
    }

    /// Takes over a connected stream socket.
    pub fn import(descriptor: OwnedFd) -> io::Result<Self> {
        let shared = current();
        let key = shared.driver.borrow_mut().import_stream(descriptor)?;
        Ok(Self { shared, key })
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn driver(&self) -> Ref<'_, Driver> {
        self.shared.driver.borrow()
    }

    pub fn poll_connect(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.shared.driver.borrow_mut().poll_connect(self.key, context.waker())
    }

    #[inline]
    pub fn recv(&self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        poll_fn(move |context| {
            let mut chunk = None;
            self.poll_recv(&mut chunk, context).map_ok(|()| chunk)
        })
    }

    /// Puts the next bytes into what is `None`; it stays so at the end of the stream.
    #[inline(always)]
    pub fn poll_recv(&self, into: &mut Option<Chunk>, context: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let received = self.shared.driver.borrow_mut().poll_receive(self.key, into, context.waker());
        if let Some(chunk) = into {
            self.shared.spend_budget(chunk.len());
        }
        received
    }

    pub fn read<'a>(&'a self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| self.poll_read(buffer, context))
    }

    pub fn poll_read(&self, buffer: &mut [u8], context: &Context<'_>) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.polled(context, |driver, waker| driver.poll_read(self.key, buffer, waker))
    }

    /// Hands at most so many bytes to `copy`, once; none at the end of the stream. How many.
    pub fn poll_copy(
        &self,
        max_bytes: usize,
        copy: impl FnOnce(&[u8]),
        context: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if max_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        self.polled(context, |driver, waker| driver.poll_copy(self.key, max_bytes, copy, waker))
    }

    /// Polls for a count of bytes, which the running task is charged with.
    #[inline]
    fn polled(
        &self,
        context: &Context<'_>,
        poll: impl FnOnce(&mut Driver, &Waker) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let polled = poll(&mut self.shared.driver.borrow_mut(), context.waker());
        if let Poll::Ready(Ok(count)) = polled {
            self.shared.spend_budget(count);
        }
        polled
    }

    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
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
    pub fn send(&self, outgoing: SendBuf) -> impl Future<Output = io::Result<()>> + '_ {
        let mut outgoing = Some(outgoing);
        poll_fn(move |context| {
            let sent = self.poll_send(&mut outgoing, context);
            if matches!(sent, Poll::Ready(Err(_))) {
                // The owner of the bytes may panic while they are dropped: here the error is dropped then, too. When the
                // future is dropped behind its result, the compiler leaks the result.
                drop(outgoing.take());
            }
            sent
        })
    }

    #[inline(always)]
    pub fn poll_send(&self, outgoing: &mut Option<SendBuf>, context: &Context<'_>) -> Poll<io::Result<()>> {
        // Counted like receives: a peer that reads as fast as we send must not keep the others waiting.
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let bytes = outgoing.as_ref().map_or(0, |outgoing| outgoing.as_slice().len());
        let sent = self.shared.driver.borrow_mut().poll_send(self.key, outgoing, context.waker());
        if sent.is_ready() {
            self.shared.spend_budget(bytes);
        }
        sent
    }

    pub fn write<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| self.poll_write(&[IoSlice::new(bytes)], context))
    }

    pub fn write_vectored<'a>(
        &'a self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| self.poll_write(slices, context))
    }

    pub fn write_more<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        poll_fn(move |context| {
            self.polled(context, |driver, waker| driver.poll_write_more(self.key, bytes, waker))
        })
    }

    pub fn poll_write(&self, slices: &[IoSlice<'_>], context: &Context<'_>) -> Poll<io::Result<usize>> {
        self.polled(context, |driver, waker| driver.poll_write(self.key, slices, waker))
    }

    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.write(&bytes[written..]).await?;
        }
        Ok(())
    }

    pub fn flush(&self) -> impl Future<Output = io::Result<()>> + '_ {
        poll_fn(|context| self.poll_flush(context))
    }

    pub fn poll_flush(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.shared.driver.borrow_mut().poll_flush(self.key, context.waker())
    }

    /// Sends a part of a file, after everything accepted before; how many bytes. `on_progress` is called when the kernel has taken
    /// some, with how many.
    pub async fn send_file(
        &self,
        file: &File,
        offset: u64,
        length: u64,
        mut on_progress: impl FnMut(u64),
    ) -> io::Result<u64> {
        let mut sent = 0;
        while sent < length {
            let piece = (length - sent).min(FILE_PIECE_BYTES);
            // The kernel would wait for the disk in the middle of the call; a simulated one may.
            if !self.driver().is_simulated() {
                file.read_ahead(offset + sent, piece).await?;
            }
            let mut left = piece;
            while left > 0 {
                let at = offset + sent;
                match poll_fn(|context| self.poll_send_file(file, at, left as usize, context)).await? {
                    0 => return Ok(sent),
                    count => {
                        sent += count as u64;
                        left -= count as u64;
                        on_progress(count as u64);
                    }
                }
            }
        }
        Ok(sent)
    }

    fn poll_send_file(
        &self,
        file: &File,
        offset: u64,
        length: usize,
        context: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.polled(context, |driver, waker| {
            driver.poll_send_file(self.key, file.as_fd(), offset, length, waker)
        })
    }

    /// Ready when everything accepted is with the kernel, or goes to it with the next turns.
    pub fn poll_submitted(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.shared.driver.borrow_mut().poll_submitted(self.key, context.waker())
    }

    /// Shuts down the write direction behind what was accepted, without waiting for it.
    pub fn shutdown(&self) -> io::Result<()> {
        self.shared.driver.borrow_mut().shutdown_write(self.key)
    }

    /// The same when the write half was dropped. It fails only where the peer needs no FIN: the connection is broken.
    fn shutdown_dropped(&self) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            let (shared, key) = (Rc::downgrade(&self.shared), self.key);
            let later = async move {
                shared.upgrade().map(|shared| shared.driver.borrow_mut().shutdown_write(key).ok());
            };
            return self.shared.spawn(later).detach();
        };
        driver.shutdown_write(self.key).ok();
        drop(driver);
        // When the runtime runs again is unknown: the peer is told now.
        if !self.shared.is_current() {
            self.shared.flush_driver();
        }
    }

    pub(super) fn set(&self, option: StreamOption) -> io::Result<()> {
        self.driver().set_option(self.key, option)
    }

    pub fn abort(&self) {
        self.shared.driver.borrow_mut().abort(self.key);
    }

    /// Gives the socket up when everything accepted was sent, with the bytes that were received and not taken.
    pub async fn detach(&self) -> io::Result<(OwnedFd, Vec<u8>)> {
        let detaching =
            poll_fn(|context| self.shared.driver.borrow_mut().poll_detach(self.key, context.waker()));
        let (descriptor, chunks) = detaching.await?;
        Ok((descriptor, chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect()))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            return self.shared.release_deferred(self.key, Self::new);
        };
        let unsent = driver.release(self.key);
        drop(driver);
        // What was accepted is still sent, but a peer that never reads must not keep it for ever.
        if unsent && self.shared.linger_queue.borrow_mut().add(&self.shared, self.key) {
            self.shared.spawn(LingerQueue::abort_expired(Rc::clone(&self.shared))).detach();
        }
        // Nobody knows when the runtime runs again: the peer is told now.
        if !self.shared.is_current() {
            self.shared.flush_driver();
        }
    }
}
