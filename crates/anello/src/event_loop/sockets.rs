//! Access to the sockets of an event loop, for socket options and addresses.

use std::io;
use std::os::fd::BorrowedFd;

use super::event::{ListenerId, StreamId, UdpId};
use super::turn::EventLoop;
use crate::driver::Target;

impl EventLoop {
    /// Returns the descriptor of a stream, for socket options and addresses.
    ///
    /// The loop owns the socket and its file status flags: do not receive, send, shut it down or change `O_NONBLOCK`.
    ///
    /// ```
    /// use socket2::SockRef;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let stream = event_loop.connect(server.local_addr()?, 5)?;
    /// let socket = event_loop.stream_fd(stream)?;
    /// assert!(SockRef::from(&socket).tcp_nodelay()?, "the loop has set it");
    /// SockRef::from(&socket).set_tcp_nodelay(false)?;
    /// # assert!(!SockRef::from(&socket).tcp_nodelay()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the identifier is stale, or on the simulated driver.
    pub fn stream_fd(&self, stream: StreamId) -> io::Result<BorrowedFd<'_>> {
        self.driver.descriptor(Target::Stream(stream.key))
    }

    /// Returns the descriptor of a listener. See [`stream_fd`](Self::stream_fd).
    ///
    /// ```
    /// use socket2::SockRef;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 3)?;
    /// let socket = event_loop.listener_fd(listener)?;
    /// // The kernel also sets the option on accepted sockets.
    /// SockRef::from(&socket).set_keepalive(true)?;
    /// # assert!(SockRef::from(&socket).keepalive()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the identifier is stale, or on the simulated driver.
    pub fn listener_fd(&self, listener: ListenerId) -> io::Result<BorrowedFd<'_>> {
        self.driver.descriptor(Target::Listener(listener.key))
    }

    /// Returns the descriptor of a UDP socket. See [`stream_fd`](Self::stream_fd).
    ///
    /// ```
    /// use socket2::SockRef;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// SockRef::from(&event_loop.udp_fd(socket)?).set_recv_buffer_size(1 << 20)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the identifier is stale, or on the simulated driver.
    pub fn udp_fd(&self, socket: UdpId) -> io::Result<BorrowedFd<'_>> {
        self.udp_sockets.get(socket)?.descriptor()
    }
}
