//! Calls of an event loop for listeners.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::task::Poll;

use super::event::{Direction, EventKind, ListenerId, StreamId, check_token};
use super::turn::{EventLoop, ip_address};
use crate::driver::{End, ListenOptions, Target, event_waker, unix_name, with_context};

/// Number of connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 4096;

impl EventLoop {
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
    /// Returns the error of `bind(2)` or `listen(2)`, with the address. Does not wait for an address that is in use
    /// (`AddrInUse`): a server that replaces a process that was killed retries for a second or two, as
    /// [`TcpListenerBuilder::bind_timeout`](crate::net::TcpListenerBuilder::bind_timeout) explains.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn listen(&mut self, address: SocketAddr, token: usize) -> io::Result<ListenerId> {
        check_token(token);
        let options = ListenOptions { backlog: BACKLOG, ..ListenOptions::default() };
        let bound = self.driver.enter().listen(address, &options);
        let key = bound.map_err(|error| with_context(format_args!("cannot bind {address}"), error))?;
        Ok(ListenerId { key, token })
    }

    /// Opens a Unix stream listener at a path or an abstract name (`socket(2)`, `bind(2)`, `listen(2)`), with a backlog
    /// of 4096. The socket file is not removed when the listener is closed.
    ///
    /// ```
    /// use std::os::linux::net::SocketAddrExt;
    /// use std::os::unix::net::SocketAddr;
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let address = SocketAddr::from_abstract_name(format!("anello-loop-{}", std::process::id()))?;
    /// let listener = event_loop.listen_unix(&address, 3)?;
    /// let client = event_loop.connect_unix(&address, 5)?;
    /// let server = loop {
    ///     match event_loop.accept(listener, 4)? {
    ///         Poll::Ready(stream) => break stream,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert!(event_loop.write(server, b"ping")?.is_ready());
    /// # event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// # let received = loop {
    /// #     match event_loop.recv(client)? {
    /// #         Poll::Ready(received) => break received,
    /// #         Poll::Pending => event_loop.turn(&mut events, None)?,
    /// #     }
    /// # };
    /// # assert_eq!(received.as_deref(), Some(&b"ping"[..]));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `bind(2)` or `listen(2)`, with the address: for example `AddrInUse` if the path exists,
    /// even if no process is listening on it.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn listen_unix(&mut self, address: &UnixAddress, token: usize) -> io::Result<ListenerId> {
        check_token(token);
        let bound = self.driver.enter().listen_unix(address, BACKLOG);
        let key =
            bound.map_err(|error| with_context(format_args!("cannot bind {}", unix_name(address)), error))?;
        Ok(ListenerId { key, token })
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
        Ok(ListenerId { key: self.driver.enter().import_listener(listener.into().into())?, token })
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
    /// or reject the waiting clients with [`reject_pending`](Self::reject_pending).
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn accept(&mut self, listener: ListenerId, token: usize) -> Poll<io::Result<StreamId>> {
        check_token(token);
        let waker = event_waker(listener.event(EventKind::Accept));
        let polled = self.driver.enter().poll_accept(listener.key, &waker);
        self.clear_deadline_if(polled.is_ready(), listener, Direction::Receive);
        polled.map_ok(|key| StreamId { key, token })
    }

    /// Rejects the waiting clients although no descriptors are left, and returns their number.
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// assert_eq!(event_loop.reject_pending(listener), 0, "no client waits");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reject_pending(&mut self, listener: ListenerId) -> usize {
        self.driver.enter().reject_pending(listener.key)
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
        self.clear_deadlines(listener);
        self.driver.enter().release_listener(listener.key);
    }
}
