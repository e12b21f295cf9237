//! Listeners and streams of an event loop.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::Poll;
use std::time::Duration;

use super::event::{EventKind, ListenerId, Operation, StreamId};
use super::timers::deadline_ns;
use super::{Chunk, EventLoop, SendBuf, check_token};
use crate::driver::{End, ListenOptions, Side, Target, event_waker, gone};

/// Number of connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 4096;

impl EventLoop {
    // ---- Listeners -----------------------------------------------------------------------------------------------

    /// Opens a TCP listener (`SO_REUSEADDR`, a backlog of 4096). Its accepted streams have `TCP_NODELAY`.
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// assert_ne!(event_loop.local_addr(listener)?.port(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `bind(2)` or `listen(2)`.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn listen(&mut self, address: SocketAddr, token: usize) -> io::Result<ListenerId> {
        check_token(token);
        let options = ListenOptions { backlog: BACKLOG, ..ListenOptions::default() };
        Ok(ListenerId { key: self.driver.listen(address, &options)?, token })
    }

    /// Takes ownership of a listening TCP or Unix stream socket, whose options the application has set.
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// // For example a socket that the service manager has opened.
    /// let opened = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let address = opened.local_addr()?;
    /// let listener = event_loop.import_listener(opened, 3)?;
    /// assert_eq!(event_loop.local_addr(listener)?, address);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a socket, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn import_listener(&mut self, listener: impl Into<OwnedFd>, token: usize) -> io::Result<ListenerId> {
        check_token(token);
        Ok(ListenerId { key: self.driver.import_listener(listener.into())?, token })
    }

    /// Accepts a connection, whose events get the token `token`. If there is none, an event of the kind
    /// [`EventKind::Accept`] follows.
    ///
    /// io_uring accepts with a multishot operation (`IORING_OP_ACCEPT`, multishot since Linux 5.19), epoll with
    /// `accept4(2)`. Call this until it returns `Pending`.
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// let client = std::net::TcpStream::connect(event_loop.local_addr(listener)?)?;
    /// let stream = loop {
    ///     match event_loop.accept(listener, 4)? {
    ///         Poll::Ready(stream) => break stream,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert_eq!(event_loop.peer_addr(stream)?, client.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `accept4(2)`, unless it concerns only a single client. After `EMFILE`, retry after some time,
    /// or reject the waiting clients with [`refuse`](Self::refuse).
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn accept(&mut self, listener: ListenerId, token: usize) -> Poll<io::Result<StreamId>> {
        check_token(token);
        let waker = event_waker(listener.event(EventKind::Accept));
        self.driver.poll_accept(listener.key, &waker).map_ok(|key| StreamId { key, token })
    }

    /// Rejects the waiting clients although no descriptors are left, and returns their number.
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// assert_eq!(event_loop.refuse(listener), 0, "no client waits");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn refuse(&mut self, listener: ListenerId) -> usize {
        self.driver.refuse(listener.key)
    }

    /// Returns the local address of a TCP listener (`getsockname(2)`).
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// let address = event_loop.local_addr(listener)?;
    /// assert!(address.ip().is_loopback() && address.port() != 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `getsockname(2)`, or an error if the identifier is stale.
    pub fn local_addr(&self, listener: ListenerId) -> io::Result<SocketAddr> {
        ip_address(&self.driver.address(Target::Listener(listener.key), End::Local)?)
    }

    /// Closes a listener. Connections that the kernel has accepted for it, but that were not returned, are closed.
    ///
    /// ```
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// let address = event_loop.local_addr(listener)?;
    /// event_loop.close_listener(listener);
    /// event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// // The port is free again.
    /// event_loop.listen(address, 3)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn close_listener(&mut self, listener: ListenerId) {
        self.driver.release_listener(listener.key);
    }

    // ---- Connecting ----------------------------------------------------------------------------------------------

    /// Starts to connect to an address (`IORING_OP_CONNECT`, Linux 5.5; `connect(2)` on epoll).
    /// [`poll_connect`](Self::poll_connect) returns the result.
    ///
    /// ```
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let stream = event_loop.connect(server.local_addr()?, 5)?;
    /// while event_loop.poll_connect(stream)?.is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert_eq!(event_loop.peer_addr(stream)?, server.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the socket cannot be created, or if the attempt fails immediately on epoll.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn connect(&mut self, peer: SocketAddr, token: usize) -> io::Result<StreamId> {
        check_token(token);
        Ok(StreamId { key: self.driver.connect(peer, None)?, token })
    }

    /// Takes ownership of a connected TCP or Unix stream socket.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.send(stream, &mut Some("ping".into()))?.is_ready());
    /// event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// let mut received = [0; 4];
    /// far.read_exact(&mut received)?;
    /// assert_eq!(&received, b"ping");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a socket, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn import_stream(&mut self, stream: impl Into<OwnedFd>, token: usize) -> io::Result<StreamId> {
        check_token(token);
        Ok(StreamId { key: self.driver.import_stream(stream.into())?, token })
    }

    /// Returns `Ready` once the stream is connected. Until then, an event of the kind [`EventKind::Connect`] follows.
    ///
    /// ```
    /// use std::io::ErrorKind;
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// // No server listens on port 1.
    /// let stream = event_loop.connect("127.0.0.1:1".parse().expect("valid address"), 5)?;
    /// let result = loop {
    ///     match event_loop.poll_connect(stream) {
    ///         Poll::Ready(result) => break result,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    /// event_loop.abort(stream);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `connect(2)`. The stream must still be closed.
    pub fn poll_connect(&mut self, stream: StreamId) -> Poll<io::Result<()>> {
        let waker = event_waker(stream.event(EventKind::Connect));
        let polled = self.driver.poll_connect(stream.key, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Operation::Send);
        polled
    }

    /// Returns the address of the peer of a TCP stream (`getpeername(2)`).
    ///
    /// ```
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let client = std::net::TcpStream::connect(server.local_addr()?)?;
    /// let stream = event_loop.import_stream(client, 5)?;
    /// assert_eq!(event_loop.peer_addr(stream)?, server.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `getpeername(2)`, or an error if the identifier is stale.
    pub fn peer_addr(&self, stream: StreamId) -> io::Result<SocketAddr> {
        ip_address(&self.driver.address(Target::Stream(stream.key), End::Peer)?)
    }

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
        let polled = self.driver.poll_receive(stream.key, &mut chunk, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Operation::Receive);
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
        let polled = self.driver.poll_read(stream.key, buffer, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Operation::Receive);
        polled
    }

    // ---- Sending -------------------------------------------------------------------------------------------------

    /// Queues owned bytes to be sent, without a copy, and takes them from `outgoing` if it accepts them. If the queue is
    /// full, leaves them there, and an event of the kind [`EventKind::Send`] follows.
    ///
    /// io_uring submits accepted bytes with the next turn (`IORING_OP_SEND`), epoll calls `send(2)` immediately or in the
    /// next turn. Accepted bytes are sent in order, and also after [`close`](Self::close).
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
        let polled = self.driver.poll_send(stream.key, outgoing, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Operation::Send);
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
        let polled = self.driver.poll_write(stream.key, &[IoSlice::new(bytes)], &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Operation::Send);
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
        let polled = self.driver.poll_flush(stream.key, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Operation::Send);
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
        self.driver.shutdown_write(stream.key)
    }

    // ---- Cancelling and closing ----------------------------------------------------------------------------------

    /// Sets the deadline of an operation, from now. It applies to the call that has returned `Pending`, or to the next
    /// one. A call that completes removes it.
    ///
    /// If the deadline passes while the operation is waiting, the operation is cancelled, and an event of the kind
    /// [`EventKind::ReceiveDeadline`] or [`EventKind::SendDeadline`] is reported instead. The stream stays usable. If its
    /// own event has been reported before, the deadline has no effect.
    ///
    /// # Errors
    /// Returns an error if the identifier is stale.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventKind, EventLoop, Events, Operation};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.recv(stream)?.is_pending());
    /// event_loop.set_deadline(stream, Operation::Receive, Duration::from_millis(1))?;
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// let event = events.iter().next().expect("there is an event");
    /// assert_eq!((event.token(), event.kind()), (5, EventKind::ReceiveDeadline));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_deadline(
        &mut self,
        stream: StreamId,
        operation: Operation,
        after: Duration,
    ) -> io::Result<()> {
        if !self.driver.holds(stream.key) {
            return Err(gone());
        }
        let deadline_ns = deadline_ns(self.driver.now_ns(), after);
        self.timers.set_deadline(stream, operation, deadline_ns);
        Ok(())
    }

    /// Removes the deadline of an operation, if it has one.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::Operation;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.recv(stream)?.is_pending());
    /// event_loop.set_deadline(stream, Operation::Receive, Duration::from_millis(1))?;
    /// event_loop.clear_deadline(stream, Operation::Receive);
    /// event_loop.turn(&mut events, Some(Duration::from_millis(2)))?;
    /// assert!(events.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn clear_deadline(&mut self, stream: StreamId, operation: Operation) {
        if self.driver.holds(stream.key) {
            self.timers.clear_deadline(stream, operation);
        }
    }

    /// Cancels a call that has returned `Pending`, and its deadline: no event of this operation follows. Received bytes
    /// stay queued, and accepted bytes are still sent. Returns `false` if the operation was not waiting; its event may
    /// be in the current list.
    ///
    /// ```
    /// use anello::event_loop::Operation;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.recv(stream)?.is_pending());
    /// assert!(event_loop.cancel(stream, Operation::Receive));
    /// assert!(!event_loop.cancel(stream, Operation::Receive), "no receive is waiting any more");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cancel(&mut self, stream: StreamId, operation: Operation) -> bool {
        self.clear_deadline(stream, operation);
        let side = match operation {
            Operation::Receive => Side::Receive,
            Operation::Send => Side::Send,
        };
        self.driver.stop_waiting(stream.key, side)
    }

    /// Cancels a call to [`accept`](Self::accept) that has returned `Pending`. See [`cancel`](Self::cancel).
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// assert!(event_loop.accept(listener, 4)?.is_pending());
    /// assert!(event_loop.cancel_accept(listener));
    /// assert!(!event_loop.cancel_accept(listener), "no accept is waiting any more");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cancel_accept(&mut self, listener: ListenerId) -> bool {
        self.driver.stop_waiting(listener.key, Side::Accept)
    }

    /// Closes a stream after sending its accepted bytes, for at most 30 seconds. A pending connection attempt is
    /// cancelled. No event follows, but earlier events of the stream can still be in the current list.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// assert!(event_loop.write(stream, b"ping")?.is_ready());
    /// event_loop.close(stream);
    /// # far.set_nonblocking(true)?;
    /// let mut received = Vec::new();
    /// while far.read_to_end(&mut received).is_err() {
    ///     event_loop.turn(&mut events, Some(std::time::Duration::from_millis(1)))?;
    /// }
    /// assert_eq!(received, b"ping", "EOF follows");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn close(&mut self, stream: StreamId) {
        self.clear_deadlines(stream);
        if self.driver.release(stream.key) {
            self.timers.linger(&self.driver, stream.key);
        }
    }

    /// Closes a stream immediately. Accepted bytes that the kernel has not taken are discarded.
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// event_loop.abort(stream);
    /// assert!(event_loop.shutdown_write(stream).is_err(), "the identifier is stale");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn abort(&mut self, stream: StreamId) {
        self.clear_deadlines(stream);
        self.driver.abort(stream.key);
    }

    fn clear_deadlines(&mut self, stream: StreamId) {
        if self.timers.deadline_count > 0 {
            self.clear_deadline(stream, Operation::Receive);
            self.clear_deadline(stream, Operation::Send);
        }
    }

    #[inline(always)]
    fn clear_deadline_if(&mut self, is_complete: bool, stream: StreamId, operation: Operation) {
        if self.timers.deadline_count > 0 && is_complete {
            self.clear_deadline(stream, operation);
        }
    }
}

fn ip_address(address: &socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "not an IP socket"))
}
