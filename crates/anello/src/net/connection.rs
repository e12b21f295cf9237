//! Stream operations for all address families, and the handle that shuts down a stream.

use std::cell::Ref;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::family::{Sealed as _, StreamFamily, Tcp};
use super::linger::linger;
use crate::driver::{
    Chunk, DetachedSocket, Driver, End, FileRange, Interest, Key, OpenCount, PollIo, Ready, ReceivedFds,
    SendBuf, Target, display_field, log_event, unexpected_eof, wake_all,
};
use crate::executor::{Shared, WaitQueue, current};
use crate::fs::File;

/// Number of file bytes read ahead and then sent in one step.
const FILE_CHUNK_BYTES: u64 = 2 * 1024 * 1024;

/// Connection owned by a stream or shared by its halves.
pub struct Connection {
    pub(super) shared: Rc<Shared>,
    pub(crate) key: Key,
}

/// Handle that shuts down a connection from outside the task that uses it; see
/// [`ByteStream::shutdown_handle`](super::ByteStream::shutdown_handle). Has no effect once the connection is closed.
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
///
/// let (mut one, _other) = UnixStream::pair()?;
/// let handle = one.shutdown_handle();
/// let reader = anello::spawn(async move { one.recv().await });
/// handle.shutdown();
/// assert!(reader.await.expect("the task does not panic")?.is_none());
/// # }
/// ```
#[derive(Clone)]
pub struct ShutdownHandle {
    shared: Rc<Shared>,
    key: Key,
}

impl ShutdownHandle {
    /// Returns the address of the peer (`getpeername(2)`, or `SO_PEERNAME` if the connection is broken).
    ///
    /// # Errors
    /// Returns an error if the stream has been dropped, or is not an IP connection.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// let server = listener.accept().await?;
    /// assert_eq!(server.shutdown_handle().peer_addr()?, client.local_addr()?);
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Tcp::address(&self.shared.driver.borrow().address(Target::Stream(self.key), End::Peer)?)
    }

    /// Returns whether the peer sends no more bytes: it has shut down its write direction or closed the connection, or
    /// the connection is broken or closed (the state of the connection in `TCP_INFO`). Bytes that the peer sent before may
    /// not have been received yet. The peer of a Unix stream must have closed it (`POLLHUP`).
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixStream;
    ///
    /// let (one, other) = UnixStream::pair()?;
    /// let handle = one.shutdown_handle();
    /// assert!(!handle.is_peer_closed());
    /// drop(other);
    /// assert!(handle.is_peer_closed());
    /// # }
    /// ```
    pub fn is_peer_closed(&self) -> bool {
        self.shared.driver.borrow().is_peer_closed(self.key)
    }

    /// Returns whether the connection is broken, for example because the peer has reset it, or closed in both directions.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?).await?;
    /// let server = listener.accept().await?;
    /// let handle = client.shutdown_handle();
    /// assert!(!handle.is_broken());
    /// server.abort();
    /// assert!(client.recv().await.is_err() && handle.is_broken());
    /// # }
    /// ```
    pub fn is_broken(&self) -> bool {
        self.shared.driver.borrow().is_broken(self.key)
    }

    /// Shuts down the read half (`shutdown(2)` with `SHUT_RD`). Buffered data is still returned, then EOF.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixStream;
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// other.write_all(b"ciao").await?;
    /// other.flush().await?;
    /// one.shutdown_handle().shutdown_read();
    /// assert_eq!(one.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// assert!(one.recv().await?.is_none());
    /// # }
    /// ```
    pub fn shutdown_read(&self) {
        // Fails only if the peer has already terminated the connection. The stream detects this itself.
        self.shared.driver.borrow().shutdown(self.key, Shutdown::Read).ok();
    }

    /// Resets the connection and closes it (`SO_LINGER` with zero), so that a TCP peer detects that the data is
    /// incomplete. Bytes that the peer has not received are discarded. Tasks that are using the stream or waiting for
    /// it get an error.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?).await?;
    /// let server = listener.accept().await?;
    /// server.shutdown_handle().reset();
    /// let error = client.recv().await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    /// # }
    /// ```
    pub fn reset(&self) {
        let waiting = {
            let mut driver = self.shared.driver.borrow_mut();
            let waiting = driver.take_wakers(self.key);
            driver.abort(self.key);
            waiting
        };
        // The driver must not be borrowed here: a waker can run arbitrary code.
        wake_all(waiting.into_iter().flatten());
    }

    /// Shuts down both directions (`shutdown(2)` with `SHUT_RDWR`), the write direction once the kernel has taken all
    /// accepted bytes. Tasks that wait to receive get EOF, and tasks that wait to send get an error. If the kernel takes no
    /// bytes for 30 seconds, the connection is reset, as that of a dropped stream.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixStream;
    ///
    /// let (one, mut other) = UnixStream::pair()?;
    /// one.shutdown_handle().shutdown();
    /// // The peer reads EOF, although `one` still exists.
    /// assert!(other.recv().await?.is_none());
    /// # }
    /// ```
    pub fn shutdown(&self) {
        let (waiting, has_unsent) = self.shared.driver.borrow_mut().shutdown_both(self.key);
        if has_unsent {
            linger(&self.shared, self.key);
        }
        // The driver must not be borrowed here: a waker can run arbitrary code.
        wake_all(waiting.into_iter().flatten());
    }
}

/// Future of [`Connection::recv`]. A type of its own, like [`Sending`], because the closure of a `poll_fn` would not be
/// inlined into tasks of other crates.
pub struct Receiving<'a>(&'a Connection);

impl Future for Receiving<'_> {
    type Output = io::Result<Option<Chunk>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut chunk = None;
        self.0.poll_recv(&mut chunk, context).map_ok(|()| chunk)
    }
}

/// Future of [`Connection::send`].
pub struct Sending<'a> {
    connection: &'a Connection,
    outgoing: Option<SendBuf>,
}

impl Future for Sending<'_> {
    type Output = io::Result<()>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PollIo<()> {
        let Self { connection, outgoing } = &mut *self;
        let sent = connection.poll_send(outgoing, context);
        if matches!(sent, Poll::Ready(Err(_))) {
            // The destructor of the bytes may panic, so they are dropped here, where unwinding also drops the error. If
            // they were dropped with the completed future instead, a panic would leak the result.
            drop(outgoing.take());
        }
        sent
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(formatter)
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ShutdownHandle").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key }
    }

    /// Sends an event with the address of an accepted connection to `tracing`.
    #[inline]
    pub(crate) fn trace_accepted(&self) {
        log_event!(DEBUG, peer = self.peer().map(display_field), "connection accepted");
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.driver().address(self.target(), End::Peer).ok()?.as_socket()
    }

    pub(crate) fn import(shared: Rc<Shared>, socket: impl Into<DetachedSocket>) -> io::Result<Self> {
        let key = shared.driver.borrow_mut().import_stream(socket.into())?;
        Ok(Self { shared, key })
    }

    /// Counts the connection until it is closed or detached.
    pub(crate) fn hold_open_count(&self, open_count: OpenCount) {
        self.shared.driver.borrow_mut().hold_open_count(self.key, open_count);
    }

    pub(crate) fn take_open_count(&self) -> Option<OpenCount> {
        self.shared.driver.borrow_mut().take_open_count(self.key)
    }

    #[track_caller]
    pub fn import_with(descriptor: OwnedFd, received: &[u8]) -> io::Result<Self> {
        let shared = current();
        let key = shared.driver.borrow_mut().import_stream_with(descriptor, received)?;
        Ok(Self { shared, key })
    }

    pub(crate) fn driver(&self) -> Ref<'_, Driver> {
        self.shared.driver.borrow()
    }

    pub(super) fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle { shared: Rc::clone(&self.shared), key: self.key }
    }

    pub(super) fn address<F: StreamFamily>(&self, end: End) -> io::Result<F::Address> {
        F::address(&self.driver().address(self.target(), end)?)
    }

    #[inline]
    pub fn recv(&self) -> Receiving<'_> {
        Receiving(self)
    }

    /// Stores the next bytes in `into`, which must be `None`. At EOF, `into` stays `None`.
    #[inline(always)]
    pub fn poll_recv(&self, into: &mut Option<Chunk>, context: &Context<'_>) -> PollIo<()> {
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

    pub fn poll_read(&self, buffer: &mut [u8], context: &Context<'_>) -> PollIo<usize> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.polled(context, |driver, waker| driver.poll_read(self.key, buffer, waker))
    }

    /// Calls `copy` at most once, with up to `max_bytes` bytes. Returns the number of bytes, which is 0 at EOF.
    pub fn poll_copy(
        &self,
        max_bytes: usize,
        copy: impl FnOnce(&[u8]),
        context: &Context<'_>,
    ) -> PollIo<usize> {
        if max_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        self.polled(context, |driver, waker| driver.poll_copy(self.key, max_bytes, copy, waker))
    }

    /// Calls `poll`, which returns a number of bytes, and charges that number to the running task's budget.
    #[inline]
    fn polled(
        &self,
        context: &Context<'_>,
        poll: impl FnOnce(&mut Driver, &Waker) -> PollIo<usize>,
    ) -> PollIo<usize> {
        self.shared.poll_driver(context, poll, |count| *count)
    }

    /// Waits until `poll` is ready. Several futures can wait for each direction, because the driver stores the waker of
    /// only one of them. The `&mut self` methods of the streams need no queue.
    async fn wait_in_queue<T>(
        &self,
        is_write: bool,
        mut poll: impl FnMut(&mut Driver, &Waker) -> PollIo<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> io::Result<T> {
        // Usually, nothing waits.
        let first =
            |context: &mut Context<'_>| Poll::Ready(self.shared.poll_driver(context, &mut poll, &bytes));
        if let Poll::Ready(result) = poll_fn(first).await {
            return result;
        }
        let slot = (self.key, is_write);
        let queue = Rc::clone(self.shared.sockets.ready_queues.borrow_mut().entry(slot).or_default());
        let guard = QueueGuard { shared: &self.shared, slot, queue };
        let mut ticket = guard.queue.ticket();
        poll_fn(|context| ticket.poll(context, |context| self.shared.poll_driver(context, &mut poll, &bytes)))
            .await
    }

    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.wait_in_queue(false, |driver, waker| driver.poll_peek(self.key, buffer, waker), |count| *count)
            .await
    }

    pub fn poll_peek(&self, buffer: &mut [u8], context: &Context<'_>) -> PollIo<usize> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.polled(context, |driver, waker| driver.poll_peek(self.key, buffer, waker))
    }

    pub async fn readable(&self) -> io::Result<()> {
        self.wait_in_queue(false, |driver, waker| driver.poll_read_ready(self.key, waker), |()| 0).await
    }

    pub fn poll_read_ready(&self, context: &Context<'_>) -> PollIo<()> {
        self.shared.poll_driver(context, |driver, waker| driver.poll_read_ready(self.key, waker), |()| 0)
    }

    pub async fn writable(&self) -> io::Result<()> {
        self.wait_in_queue(true, |driver, waker| driver.poll_write_ready(self.key, waker), |()| 0).await
    }

    pub fn poll_write_ready(&self, context: &Context<'_>) -> PollIo<()> {
        self.shared.poll_driver(context, |driver, waker| driver.poll_write_ready(self.key, waker), |()| 0)
    }

    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if !interest.is_readable() && !interest.is_writable() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "cannot wait for stream: the interest is neither READABLE nor WRITABLE",
            ));
        }
        let mut reading = pin!(interest.is_readable().then(|| self.readable()));
        let mut writing = pin!(interest.is_writable().then(|| self.writable()));
        poll_fn(|context| {
            let mut ready = Ready::EMPTY;
            if let Some(reading) = reading.as_mut().as_pin_mut()
                && reading.poll(context)?.is_ready()
            {
                ready |= self.read_readiness();
            }
            if let Some(writing) = writing.as_mut().as_pin_mut()
                && writing.poll(context)?.is_ready()
            {
                ready |= self.write_readiness();
            }
            if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(ready)) }
        })
        .await
    }

    /// Returns the readiness of a stream that is readable.
    fn read_readiness(&self) -> Ready {
        let mut driver = self.shared.driver.borrow_mut();
        match driver.poll_now(self.key, |driver, waker| driver.poll_peek(self.key, &mut [0], waker)) {
            Ok(0) => Ready::READABLE | Ready::READ_CLOSED,
            Ok(_) => Ready::READABLE,
            Err(_) => Ready::READABLE | Ready::READ_CLOSED | Ready::ERROR,
        }
    }

    /// Returns the readiness of a stream that is writable.
    fn write_readiness(&self) -> Ready {
        let mut driver = self.shared.driver.borrow_mut();
        // A write of nothing returns the error of an earlier send.
        if driver.poll_now(self.key, |driver, waker| driver.poll_write(self.key, &[], waker)).is_err() {
            Ready::WRITABLE | Ready::WRITE_CLOSED | Ready::ERROR
        } else if driver.is_write_open(self.key) {
            Ready::WRITABLE
        } else {
            Ready::WRITABLE | Ready::WRITE_CLOSED
        }
    }

    pub fn try_recv(&self) -> io::Result<Option<Chunk>> {
        let mut chunk = None;
        self.shared
            .driver
            .borrow_mut()
            .poll_now(self.key, |driver, waker| driver.poll_receive(self.key, &mut chunk, waker))?;
        Ok(chunk)
    }

    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut driver = self.shared.driver.borrow_mut();
        driver.poll_now(self.key, |driver, waker| driver.poll_read(self.key, buffer, waker))
    }

    pub fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut driver = self.shared.driver.borrow_mut();
        driver.poll_now(self.key, |driver, waker| driver.poll_write(self.key, slices, waker))
    }

    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(unexpected_eof(filled, buffer.len())),
                count => filled += count,
            }
        }
        Ok(())
    }

    #[inline]
    pub fn send(&self, outgoing: SendBuf) -> Sending<'_> {
        Sending { connection: self, outgoing: Some(outgoing) }
    }

    #[inline(always)]
    pub fn poll_send(&self, outgoing: &mut Option<SendBuf>, context: &Context<'_>) -> PollIo<()> {
        // Sending also consumes budget: a peer that reads as fast as this side sends must not starve other tasks.
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

    pub fn send_vectored(&self, mut outgoing: Vec<SendBuf>) -> impl Future<Output = io::Result<()>> + '_ {
        poll_fn(move |context| {
            let bytes = outgoing.iter().map(|buffer| buffer.len()).fold(0, usize::saturating_add);
            let send = |driver: &mut Driver, waker: &Waker| {
                driver.poll_send_vectored(self.key, &mut outgoing, waker)
            };
            let sent = self.shared.poll_driver(context, send, |()| bytes);
            if sent.is_ready() {
                // See `send`. The driver must not be borrowed, either.
                drop(mem::take(&mut outgoing));
            }
            sent
        })
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

    pub fn poll_write(&self, slices: &[IoSlice<'_>], context: &Context<'_>) -> PollIo<usize> {
        self.polled(context, |driver, waker| driver.poll_write(self.key, slices, waker))
    }

    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.write(&bytes[written..]).await?;
        }
        Ok(())
    }

    pub async fn send_with_fds(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let send = |driver: &mut Driver, waker: &Waker| {
            driver.poll_send_with_fds(self.key, bytes, descriptors, waker)
        };
        poll_fn(|context| self.polled(context, send)).await
    }

    pub(super) async fn receive_with_fds(&self, buffer: &mut [u8]) -> io::Result<(usize, ReceivedFds)> {
        let mut descriptors = ReceivedFds::default();
        let receive = |context: &mut Context<'_>| {
            self.polled(context, |driver, waker| {
                driver.poll_receive_with_fds(self.key, buffer, &mut descriptors, waker)
            })
        };
        let count = poll_fn(receive).await?;
        Ok((count, descriptors))
    }

    pub fn flush(&self) -> impl Future<Output = io::Result<()>> + '_ {
        poll_fn(|context| self.poll_flush(context))
    }

    pub fn poll_flush(&self, context: &Context<'_>) -> PollIo<()> {
        self.shared.driver.borrow_mut().poll_flush(self.key, context.waker())
    }

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
            // Without read-ahead, `sendfile(2)` could block on disk reads, and a simulated disk would have no delay.
            if !self.shared.is_simulated() || self.shared.has_simulated_disk() {
                file.read_ahead(offset + sent, chunk_bytes).await?;
            }
            let chunk_end = sent + chunk_bytes;
            while sent < chunk_end {
                let length = (chunk_end - sent) as usize;
                let range = FileRange { file: file.as_fd(), offset: offset + sent, length };
                let send = |driver: &mut Driver, waker: &Waker| driver.poll_send_file(self.key, range, waker);
                match poll_fn(|context| self.polled(context, send)).await? {
                    0 => return Ok(sent),
                    count => {
                        sent += count as u64;
                        on_progress(count as u64);
                    }
                }
            }
        }
        Ok(sent)
    }

    /// Returns `Ready` if the kernel has taken all accepted bytes, or if the driver will pass the rest to the kernel in
    /// later turns.
    pub fn poll_submitted(&self, context: &Context<'_>) -> PollIo<()> {
        self.shared.driver.borrow_mut().poll_submitted(self.key, context.waker())
    }

    pub fn shutdown(&self) -> io::Result<()> {
        self.shared.driver.borrow_mut().shutdown_write(self.key)
    }

    /// Shuts down the write direction when the write half is dropped. Fails only if the connection is broken, in which
    /// case the peer needs no FIN.
    pub(super) fn shutdown_dropped(&self) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            let (shared, key) = (Rc::downgrade(&self.shared), self.key);
            let later = async move {
                shared.upgrade().map(|shared| shared.driver.borrow_mut().shutdown_write(key).ok());
            };
            return self.shared.spawn(later).detach();
        };
        driver.shutdown_write(self.key).ok();
        drop(driver);
        self.shared.flush_driver_unless_current();
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target::Stream(self.key)
    }

    /// Waits until all accepted bytes are sent, and releases the socket. Also returns the bytes that were received but
    /// not taken.
    pub async fn detach(&self) -> io::Result<(OwnedFd, Vec<u8>)> {
        let detaching =
            poll_fn(|context| self.shared.driver.borrow_mut().poll_detach(self.key, context.waker()));
        let (descriptor, chunks) = detaching.await?;
        Ok((descriptor, chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect()))
    }
}

/// Removes the queue of a direction when no future waits in it any longer.
struct QueueGuard<'a> {
    shared: &'a Shared,
    slot: (Key, bool),
    queue: Rc<WaitQueue>,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        // The other owner is the map.
        if Rc::strong_count(&self.queue) == 2 {
            self.shared.sockets.ready_queues.borrow_mut().remove(&self.slot);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            return self.shared.release_deferred(self.key, Self::new);
        };
        let unsent = driver.release(self.key);
        drop(driver);
        // Accepted bytes are still sent, but a peer that never reads must not keep the connection open indefinitely.
        if unsent {
            linger(&self.shared, self.key);
        }
        self.shared.flush_driver_unless_current();
    }
}
