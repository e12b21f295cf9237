//! Calls of an event loop that receive and send on streams.

use std::io::{self, IoSlice};
use std::task::Poll;

use super::event::{Direction, EventKind, StreamId};
use super::turn::EventLoop;
use crate::driver::{Chunk, SendBuf, catch_and_log_panic, event_waker};

impl EventLoop {
    // ---- Receiving -----------------------------------------------------------------------------------------------

    /// Receives bytes, in the buffer that the kernel filled. Returns `None` at EOF. If there are no bytes, an event of the
    /// kind [`EventKind::Receive`] follows.
    ///
    /// io_uring receives TCP with a multishot operation into a ring of buffers (Linux 6.0), otherwise `recv(2)` is
    /// called. Call this until it returns `Pending`: an event is reported only after that.
    ///
    /// ```
    /// use std::io::Write;
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// far.write_all(b"ping")?;
    /// let received = loop {
    ///     match event_loop.recv(stream)? {
    ///         Poll::Ready(received) => break received,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert_eq!(received.as_deref(), Some(&b"ping"[..]));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the connection is broken or the identifier is stale.
    #[inline]
    pub fn recv(&mut self, stream: StreamId) -> Poll<io::Result<Option<Chunk>>> {
        let waker = event_waker(stream.event(EventKind::Receive));
        let mut chunk = None;
        let polled = self.driver.enter().poll_receive(stream.key, &mut chunk, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Receive);
        polled.map_ok(|()| chunk)
    }

    /// Copies received bytes into `buffer` and returns their number. Returns 0 at EOF or if `buffer` is empty. See
    /// [`recv`](Self::recv), which does not copy.
    ///
    /// ```
    /// use std::io::Write;
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// far.write_all(b"ping")?;
    /// let mut buffer = [0; 2];
    /// let count = loop {
    ///     match event_loop.read(stream, &mut buffer)? {
    ///         Poll::Ready(count) => break count,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert_eq!(&buffer[..count], b"pi");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    pub fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let waker = event_waker(stream.event(EventKind::Receive));
        let polled = self.driver.enter().poll_read(stream.key, buffer, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Receive);
        polled
    }

    /// Copies received bytes into `buffer` without removing them, and returns their number. Returns 0 at EOF or if
    /// `buffer` is empty. If there are no bytes, an event of the kind [`EventKind::Receive`] follows.
    ///
    /// Bytes that the driver has already received are copied from its memory, and the others from the socket (`recv(2)`
    /// with `MSG_PEEK`).
    ///
    /// ```
    /// use std::io::Write;
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// far.write_all(b"GET /")?;
    /// let mut method = [0; 3];
    /// let count = loop {
    ///     match event_loop.peek(stream, &mut method)? {
    ///         Poll::Ready(count) => break count,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert_eq!(&method[..count], b"GET");
    /// assert_eq!(event_loop.read(stream, &mut [0; 16])?, Poll::Ready(5), "the bytes are still there");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`recv`](Self::recv). The next receive returns the error again.
    pub fn peek(&mut self, stream: StreamId, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let waker = event_waker(stream.event(EventKind::Receive));
        let polled = self.driver.enter().poll_peek(stream.key, buffer, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Receive);
        polled
    }

    // ---- Sending -------------------------------------------------------------------------------------------------

    /// Queues owned bytes to be sent, without a copy, and takes them from `outgoing` if it accepts them. If the queue
    /// is full, leaves them there, and an event of the kind [`EventKind::Send`] follows.
    ///
    /// io_uring submits accepted bytes with the next turn (`IORING_OP_SEND`), epoll calls `send(2)` immediately or in
    /// the next turn. Accepted bytes are sent in order, and also after [`close`](Self::close).
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// let mut outgoing = Some("ping".into());
    /// while event_loop.send(stream, &mut outgoing)?.is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert!(outgoing.is_none(), "the bytes have been taken");
    /// event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// let mut received = [0; 4];
    /// far.read_exact(&mut received)?;
    /// assert_eq!(&received, b"ping");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if this send or an earlier one failed because the connection is broken, or the identifier is
    /// stale.
    #[inline]
    pub fn send(&mut self, stream: StreamId, outgoing: &mut Option<SendBuf>) -> Poll<io::Result<()>> {
        let waker = event_waker(stream.event(EventKind::Send));
        let polled = self.driver.enter().poll_send(stream.key, outgoing, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Send);
        polled
    }

    /// Queues several owned buffers to be sent in order, and takes all of them from `outgoing` if it accepts them. If the
    /// queue is full, leaves them there, and an event of the kind [`EventKind::Send`] follows. See [`send`](Self::send).
    ///
    /// Buffers of up to 4 KiB in total are copied into one; longer ones are sent with `sendmsg(2)`, without a copy. The
    /// buffers may exceed the limit of the send queue.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// let mut outgoing = vec!["head".into(), "body".into()];
    /// while event_loop.send_vectored(stream, &mut outgoing)?.is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert!(outgoing.is_empty(), "the buffers have been taken");
    /// event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// let mut received = [0; 8];
    /// far.read_exact(&mut received)?;
    /// assert_eq!(&received, b"headbody");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn send_vectored(&mut self, stream: StreamId, outgoing: &mut Vec<SendBuf>) -> Poll<io::Result<()>> {
        let waker = event_waker(stream.event(EventKind::Send));
        let polled = self.driver.enter().poll_send_vectored(stream.key, outgoing, &waker);
        if matches!(polled, Poll::Ready(Ok(()))) {
            // The kernel has taken the buffers that the driver has left here.
            for buffer in outgoing.drain(..) {
                catch_and_log_panic("owner of sent bytes panicked while being dropped", || drop(buffer));
            }
        }
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Send);
        polled
    }

    /// Accepts as many of `bytes` as fit into the send queue, and returns their number. See [`send`](Self::send); bytes
    /// that the kernel does not take immediately are copied.
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// let Poll::Ready(count) = event_loop.write(stream, b"ping")? else {
    ///     panic!("the queue is empty");
    /// };
    /// assert_eq!(count, 4);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn write(&mut self, stream: StreamId, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let waker = event_waker(stream.event(EventKind::Send));
        let polled = self.driver.enter().poll_write(stream.key, &[IoSlice::new(bytes)], &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Send);
        polled
    }

    /// Returns `Ready` once the kernel has taken all accepted bytes. Until then, an event of the kind
    /// [`EventKind::Send`] follows.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.write(stream, b"ping")?.is_ready());
    /// while event_loop.flush(stream)?.is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// let mut received = [0; 4];
    /// far.read_exact(&mut received)?;
    /// assert_eq!(&received, b"ping");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn flush(&mut self, stream: StreamId) -> Poll<io::Result<()>> {
        let waker = event_waker(stream.event(EventKind::Send));
        let polled = self.driver.enter().poll_flush(stream.key, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Send);
        polled
    }

    /// Shuts down the write direction once all accepted bytes are sent (`shutdown(2)` with `SHUT_WR`).
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.write(stream, b"ping")?.is_ready());
    /// event_loop.shutdown_write(stream)?;
    /// while event_loop.flush(stream)?.is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// # event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// let mut received = String::new();
    /// far.read_to_string(&mut received)?;
    /// assert_eq!(received, "ping", "EOF follows");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub fn shutdown_write(&mut self, stream: StreamId) -> io::Result<()> {
        self.driver.enter().shutdown_write(stream.key)
    }
}
