//! Common implementation of all streams: the connection, its two halves, and the handle that shuts it down.
//!
//! [`TcpStream`](super::TcpStream) and [`UnixStream`](super::UnixStream) are wrappers around [`Inner`]. They document
//! the properties of their family; the behaviour is implemented here.

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

use super::linger::linger;
use super::{Chunk, SendBuf};
#[cfg(doc)]
use super::{TcpStream, UnixStream};
use crate::driver::{Driver, Key, StreamOption, wake_all};
use crate::executor::{Shared, current};
use crate::fs::File;

/// Number of bytes of a file that are read ahead and then sent at a time.
const FILE_CHUNK_BYTES: u64 = 2 * 1024 * 1024;

/// Connection of this thread's runtime, of any family: a [`TcpStream`] or a [`UnixStream`].
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
    /// Lends the two directions to two futures of one task.
    fn split(&mut self) -> (ReadHalf<&Self>, WriteHalf<&Self>) {
        let stream: &Self = self;
        (ReadHalf(stream), WriteHalf(stream))
    }

    /// Splits the stream into two independent halves, for two tasks. Dropping the write half shuts down the write
    /// direction after the accepted bytes, unless [`forget`](OwnedWriteHalf::forget) was called, and the peer then
    /// reads EOF. The connection is closed when both halves are dropped.
    fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        let stream = Rc::new(self);
        (ReadHalf(Rc::clone(&stream)), WriteHalf(OwnedWriter { stream, keeps_open: false }))
    }

    /// Returns a handle that can shut down the connection from other tasks of this thread while a task uses it.
    fn shutdown_handle(&self) -> ShutdownHandle {
        let Inner { shared, key } = self.inner();
        ShutdownHandle { shared: Rc::clone(shared), key: *key }
    }
}

/// Supertrait that other crates cannot name, which seals [`Stream`].
pub trait Sealed {
    fn inner(&self) -> &Inner;
}

impl<S: Sealed> Sealed for &mut S {
    #[inline]
    fn inner(&self) -> &Inner {
        (**self).inner()
    }
}

/// Connection shared by a stream wrapper and its halves.
pub struct Inner {
    shared: Rc<Shared>,
    key: Key,
}

/// Handle that shuts down a connection from outside the task that uses it; see [`Stream::shutdown_handle`]. Has no
/// effect once the connection is closed.
#[derive(Clone)]
pub struct ShutdownHandle {
    shared: Rc<Shared>,
    key: Key,
}

impl ShutdownHandle {
    /// Returns the address of the peer (`getpeername(2)`).
    ///
    /// # Errors
    /// Returns an error if the connection is broken or closed, or is not an IP connection.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.shared.driver.borrow().peer_address(self.key)
    }

    /// Shuts down the read half (`shutdown(2)` with `SHUT_RD`). Buffered data is still returned, then EOF.
    pub fn shutdown_read(&self) {
        // Fails only if the peer has already terminated the connection, which the stream detects itself.
        self.shared.driver.borrow().shutdown(self.key, Shutdown::Read).ok();
    }

    /// Resets the connection and closes it (`SO_LINGER` with zero), so that a TCP peer detects that the data is
    /// incomplete. Bytes that the peer has not received are discarded. Tasks that use the stream, or wait for it, get
    /// an error.
    pub fn reset(&self) {
        let waiting = {
            let mut driver = self.shared.driver.borrow_mut();
            // Fails only if there is no peer left to receive the reset.
            driver.set_option(self.key, StreamOption::Linger(Some(Duration::ZERO))).ok();
            let waiting = driver.take_wakers(self.key);
            driver.abort(self.key);
            waiting
        };
        // The driver must not be borrowed here: a waker can run arbitrary code.
        wake_all(waiting.into_iter().flatten());
    }

    /// Shuts down both directions (`shutdown(2)` with `SHUT_RDWR`). Tasks that wait for the stream get EOF or an
    /// error.
    pub fn shutdown(&self) {
        // Fails only if the peer has already terminated the connection.
        self.shared.driver.borrow().shutdown(self.key, Shutdown::Both).ok();
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ShutdownHandle").field("key", &self.key).finish_non_exhaustive()
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
            self.stream.inner().shutdown_dropped();
        }
    }
}

impl<S: Stream> OwnedWriteHalf<S> {
    /// Drops the half without shutting down the write direction. The peer reads EOF when the read half is dropped,
    /// too, and the connection is closed.
    pub fn forget(mut self) {
        self.0.keeps_open = true;
    }
}

impl<P: Deref<Target: Stream>> ReadHalf<P> {
    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        self.0.inner()
    }

    /// See [`TcpStream::recv`] and [`UnixStream::recv`], also for errors and cancel safety.
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = io::Result<Option<Chunk>>> + '_ {
        self.inner().recv()
    }

    /// See [`TcpStream::read`] and [`UnixStream::read`], also for errors and cancel safety.
    #[inline]
    pub fn read<'a>(&'a mut self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().read(buffer)
    }

    /// See [`TcpStream::read_exact`] and [`UnixStream::read_exact`], also for errors and cancel safety.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.inner().read_exact(buffer).await
    }
}

impl<P: Deref<Target: Stream>> WriteHalf<P> {
    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        self.0.inner()
    }

    /// See [`TcpStream::send`] and [`UnixStream::send`], also for errors and cancel safety.
    #[inline]
    pub fn send(&mut self, bytes: impl Into<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner().send(bytes.into())
    }

    /// See [`TcpStream::write`] and [`UnixStream::write`], also for errors and cancel safety.
    #[inline]
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().write(bytes)
    }

    /// See [`TcpStream::write_vectored`] and [`UnixStream::write_vectored`], also for errors and cancel safety.
    #[inline]
    pub fn write_vectored<'a>(
        &'a mut self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().write_vectored(slices)
    }

    /// See [`TcpStream::write_more`] and [`UnixStream::write_more`], also for errors and cancel safety.
    pub fn write_more<'a>(&'a mut self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.inner().write_more(bytes)
    }

    /// See [`TcpStream::write_all`] and [`UnixStream::write_all`], also for errors and cancel safety.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner().write_all(bytes).await
    }

    /// See [`TcpStream::flush`] and [`UnixStream::flush`], also for errors and cancel safety.
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> + '_ {
        self.inner().flush()
    }

    /// See [`TcpStream::send_file`] and [`UnixStream::send_file`], also for errors and cancel safety.
    pub fn send_file<'a>(
        &'a mut self,
        file: &'a File,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = io::Result<u64>> + 'a {
        self.inner().send_file(file, offset, length, |_| {})
    }

    /// Sends a part of a file, like [`send_file`](Self::send_file). `on_progress` is called with the number of bytes
    /// each time the kernel has taken some. The caller can thus distinguish a peer that reads slowly from one that
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
        self.inner().send_file(file, offset, length, on_progress)
    }

    /// See [`TcpStream::shutdown`] and [`UnixStream::shutdown`], also for errors and cancel safety.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.inner().shutdown()
    }
}

impl Inner {
    pub(super) fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key }
    }

    /// Imports a connected stream socket.
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

    /// Stores the next bytes in `into`, which must be `None`. It stays `None` at EOF.
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

    /// Passes at most `max_bytes` bytes to one call of `copy`, and no bytes at EOF. Returns their number.
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

    /// Polls for a number of bytes and charges it to the budget of the running task.
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
                    let message = format!("unexpected EOF after {filled} of {} bytes", buffer.len());
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
                // The owner of the bytes may panic when they are dropped. Drop them here, where unwinding also drops
                // the error: if the future were dropped after returning its result, the compiler would leak the
                // result.
                drop(outgoing.take());
            }
            sent
        })
    }

    #[inline(always)]
    pub fn poll_send(&self, outgoing: &mut Option<SendBuf>, context: &Context<'_>) -> Poll<io::Result<()>> {
        // Sends count like receives: a peer that reads as fast as this side sends must not starve other tasks.
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

    /// Sends a part of a file after all accepted bytes, and returns the number of bytes sent. `on_progress` is called
    /// with the number of bytes each time the kernel has taken some.
    pub async fn send_file(
        &self,
        file: &File,
        offset: u64,
        length: u64,
        mut on_progress: impl FnMut(u64),
    ) -> io::Result<u64> {
        let mut sent = 0;
        while sent < length {
            let chunk_bytes = (length - sent).min(FILE_CHUNK_BYTES);
            // Otherwise the kernel would wait for the disk within `sendfile(2)`. The simulated kernel needs no
            // read-ahead.
            if !self.driver().is_simulated() {
                file.read_ahead(offset + sent, chunk_bytes).await?;
            }
            let mut left = chunk_bytes;
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

    /// Ready when all accepted bytes are with the kernel, or will be submitted with the next turns.
    pub fn poll_submitted(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.shared.driver.borrow_mut().poll_submitted(self.key, context.waker())
    }

    /// Shuts down the write direction after the accepted bytes, without waiting for them.
    pub fn shutdown(&self) -> io::Result<()> {
        self.shared.driver.borrow_mut().shutdown_write(self.key)
    }

    /// Shuts down the write direction when the write half is dropped. Fails only if the connection is broken, in which
    /// case the peer needs no FIN.
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
        // It is unknown when the runtime runs again, so the FIN is sent now.
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

    /// Waits until all accepted bytes are sent, and releases the socket. Also returns the bytes that were received and
    /// not taken.
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
        // Accepted bytes are still sent, but a peer that never reads must not keep the connection open without limit.
        if unsent {
            linger(&self.shared, self.key);
        }
        // It is unknown when the runtime runs again, so the connection is closed now.
        if !self.shared.is_current() {
            self.shared.flush_driver();
        }
    }
}
