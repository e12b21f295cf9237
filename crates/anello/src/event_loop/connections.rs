//! Calls of an event loop that open streams, and that concern their sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::Poll;

use super::event::{Direction, EventKind, StreamId, check_token};
use super::turn::{EventLoop, ip_address};
use crate::driver::{End, Target, event_waker};

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
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Send);
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
}
