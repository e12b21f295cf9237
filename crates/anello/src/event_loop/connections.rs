//! Calls of an event loop that open streams.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::task::Poll;

use super::event::{Direction, EventKind, StreamId, check_token};
use super::turn::{EventLoop, ip_address};
use crate::driver::{End, Target, check_linger, event_waker, unix_name, with_context};

impl EventLoop {
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
    /// Returns an error with the address if the socket cannot be created, or if the attempt fails immediately on epoll.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn connect(&mut self, peer: SocketAddr, token: usize) -> io::Result<StreamId> {
        check_token(token);
        let key = self.driver.enter().connect(peer, None).map_err(|error| cannot_connect(&peer, error))?;
        self.connecting.insert(key, peer);
        Ok(StreamId { key, token })
    }

    /// Connects to a Unix stream listener at a path or an abstract name. The stream is connected when this returns,
    /// because both drivers call `connect(2)`, which completes within the call.
    ///
    /// ```
    /// use std::io::Read;
    /// use std::os::linux::net::SocketAddrExt;
    /// use std::os::unix::net::{SocketAddr, UnixListener};
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let address = SocketAddr::from_abstract_name(format!("anello-connect-{}", std::process::id()))?;
    /// let server = UnixListener::bind_addr(&address)?;
    /// let stream = event_loop.connect_unix(&address, 5)?;
    /// assert!(event_loop.write(stream, b"ping")?.is_ready());
    /// event_loop.turn(&mut events, Some(std::time::Duration::ZERO))?;
    /// let mut received = [0; 4];
    /// server.accept()?.0.read_exact(&mut received)?;
    /// assert_eq!(&received, b"ping");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `connect(2)`, with the address: for example `NotFound` if the path does not exist, or
    /// `ConnectionRefused` if no process is listening on the socket file. `WouldBlock` means that the listener's
    /// backlog is full; retry after some time, because the kernel does not report when it has room.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn connect_unix(&mut self, peer: &UnixAddress, token: usize) -> io::Result<StreamId> {
        check_token(token);
        let connected = self.driver.enter().connect_unix(peer);
        let key = connected.map_err(|error| cannot_connect(&unix_name(peer), error))?;
        Ok(StreamId { key, token })
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
        let descriptor = stream.into();
        check_linger(&descriptor);
        Ok(StreamId { key: self.driver.enter().import_stream(descriptor.into())?, token })
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
    /// let error = result.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    /// assert!(error.to_string().starts_with("cannot connect to 127.0.0.1:1: "));
    /// event_loop.abort(stream);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `connect(2)`, with the address. The stream must still be closed.
    pub fn poll_connect(&mut self, stream: StreamId) -> Poll<io::Result<()>> {
        let waker = event_waker(stream.event(EventKind::Connect));
        let polled = self.driver.enter().poll_connect(stream.key, &waker);
        if polled.is_pending() {
            return Poll::Pending;
        }
        self.clear_deadline_if(true, stream, Direction::Send);
        let peer = self.connecting.remove(&stream.key);
        polled.map_err(|error| match peer {
            Some(peer) => cannot_connect(&peer, error),
            None => error,
        })
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
}

#[cold]
fn cannot_connect(peer: &dyn Display, error: io::Error) -> io::Error {
    with_context(format_args!("cannot connect to {peer}"), error)
}
