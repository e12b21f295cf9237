//! Calls of an event loop for UDP sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::{Poll, ready};

use super::event::{EventKind, UdpId, check_token};
use super::sources::operation_of;
use super::turn::EventLoop;
use crate::driver::{
    Clear, DatagramSocket, Direction, Interest, OutgoingDatagram, RecvBatch, event_waker, with_context,
};

impl EventLoop {
    /// Opens a UDP socket and binds it (`socket(2)`, `bind(2)`). Port 0 selects a free port.
    ///
    /// # Errors
    /// Returns the error of `bind(2)`, with the address, or an error if the process has no descriptors left.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// use anello::event_loop::{EventKind, EventLoop, Events};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let server = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// let mut buffer = [0; 1500];
    /// assert!(event_loop.recv_from(server, &mut buffer).is_pending());
    /// let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// client.send_to(b"ciao", event_loop.udp_local_addr(server)?)?;
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// let event = events.iter().next().expect("there is an event");
    /// assert_eq!((event.token(), event.kind()), (1, EventKind::Readable));
    /// let Poll::Ready((bytes, sender)) = event_loop.recv_from(server, &mut buffer)? else { panic!() };
    /// assert!(event_loop.send_to(server, &buffer[..bytes], sender)?.is_ready());
    /// assert_eq!(client.recv(&mut buffer)?, 4);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn bind_udp(&mut self, address: SocketAddr, token: usize) -> io::Result<UdpId> {
        check_token(token);
        let bound = self.driver.enter().open_udp(address.is_ipv6()).and_then(|socket| {
            socket.bind(address)?;
            Ok(socket)
        });
        let socket = bound
            .map_err(|error| with_context(format_args!("cannot bind UDP socket to {address}"), error))?;
        self.add_udp(socket, token)
    }

    /// Takes ownership of a UDP socket, whose options the application has set, for example receive offload (`UDP_GRO`).
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a UDP socket, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    ///
    /// ```
    /// use anello::event_loop::EventLoop;
    ///
    /// let mut event_loop = EventLoop::new()?;
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// let socket = event_loop.import_udp(socket, 1)?;
    /// assert_eq!(event_loop.udp_local_addr(socket)?, address);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn import_udp(&mut self, socket: impl Into<OwnedFd>, token: usize) -> io::Result<UdpId> {
        check_token(token);
        let socket = self.driver.enter().import_udp(socket.into())?;
        self.add_udp(socket, token)
    }

    fn add_udp(&mut self, socket: DatagramSocket, token: usize) -> io::Result<UdpId> {
        let key = self.driver.enter().register_datagrams(&socket, Interest::READABLE | Interest::WRITABLE)?;
        self.udp_sockets.insert(key, socket);
        Ok(UdpId { key, token })
    }

    /// Sets the peer of a UDP socket (`connect(2)`): only its datagrams are received, and
    /// [`OutgoingDatagram::to_peer`] sends to it.
    ///
    /// # Errors
    /// Returns the error of `connect(2)`, with the address, or an error if the identifier is stale.
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// use anello::event_loop::{EventLoop, OutgoingDatagram};
    ///
    /// let mut event_loop = EventLoop::new()?;
    /// let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// event_loop.connect_udp(socket, peer.local_addr()?)?;
    /// let sent = event_loop.send_batch(socket, &[OutgoingDatagram::to_peer(b"ciao")])?;
    /// assert_eq!(sent, Poll::Ready(1));
    /// assert_eq!(peer.recv(&mut [0; 16])?, 4);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect_udp(&mut self, socket: UdpId, peer: SocketAddr) -> io::Result<()> {
        let connected = self.udp_sockets.get(socket)?.connect(peer);
        connected.map_err(|error| with_context(format_args!("cannot connect UDP socket to {peer}"), error))
    }

    /// Returns the local address of a UDP socket (`getsockname(2)`).
    ///
    /// ```
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// let address = event_loop.udp_local_addr(socket)?;
    /// assert!(address.ip().is_loopback() && address.port() != 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `getsockname(2)`, or an error if the identifier is stale.
    pub fn udp_local_addr(&self, socket: UdpId) -> io::Result<SocketAddr> {
        self.udp_sockets.get(socket)?.local_addr()
    }

    /// Receives a datagram and the address of its sender (`recvfrom(2)`). If there is none, an event of the kind
    /// [`EventKind::Readable`] follows.
    ///
    /// Call this until it returns `Pending`: an event is reported only after that. If the buffer is shorter than the
    /// datagram, the rest is discarded.
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// client.send_to(b"ciao", event_loop.udp_local_addr(socket)?)?;
    /// let mut buffer = [0; 1500];
    /// let (bytes, sender) = loop {
    ///     match event_loop.recv_from(socket, &mut buffer)? {
    ///         Poll::Ready(received) => break received,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert_eq!((&buffer[..bytes], sender), (&b"ciao"[..], client.local_addr()?));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `recvfrom(2)`, for example `ConnectionRefused` on a connected socket, or an error if the
    /// identifier is stale. The socket stays usable.
    #[inline]
    pub fn recv_from(&mut self, socket: UdpId, buffer: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        self.transfer(socket, Direction::Read, |socket| socket.recv_from(buffer))
    }

    /// Receives as many datagrams as have arrived, up to the size of the batch (`recvmmsg(2)`), and returns their
    /// number. If there are none, an event of the kind [`EventKind::Readable`] follows.
    ///
    /// Replaces the contents of the batch. Call this until it returns `Pending`.
    ///
    /// # Errors
    /// See [`recv_from`](Self::recv_from).
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// use anello::event_loop::{EventLoop, OutgoingDatagram, RecvBatch};
    ///
    /// let mut event_loop = EventLoop::new()?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// let address = event_loop.udp_local_addr(socket)?;
    /// let datagrams = [b"one", b"two"].map(|payload| OutgoingDatagram::new(payload, address));
    /// assert_eq!(event_loop.send_batch(socket, &datagrams)?, Poll::Ready(2));
    /// let mut batch = RecvBatch::new(32, 1500);
    /// assert_eq!(event_loop.recv_batch(socket, &mut batch)?, Poll::Ready(2));
    /// assert!(batch.iter().map(|datagram| datagram.payload()).eq([b"one", b"two"]));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn recv_batch(&mut self, socket: UdpId, batch: &mut RecvBatch) -> Poll<io::Result<usize>> {
        self.transfer(socket, Direction::Read, |socket| {
            socket.recv_batch(batch)?;
            Ok(batch.len())
        })
    }

    /// Sends a datagram to an address (`sendto(2)`), and returns its length. If the kernel's buffer is full, an event of
    /// the kind [`EventKind::Writable`] follows.
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// assert_eq!(event_loop.send_to(socket, b"ciao", peer.local_addr()?)?, Poll::Ready(4));
    /// let mut buffer = [0; 16];
    /// let (bytes, sender) = peer.recv_from(&mut buffer)?;
    /// assert_eq!((&buffer[..bytes], sender), (&b"ciao"[..], event_loop.udp_local_addr(socket)?));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `sendto(2)`, for example one with the number `EMSGSIZE` if the datagram is too long, or an
    /// error if the identifier is stale. The socket stays usable.
    #[inline]
    pub fn send_to(&mut self, socket: UdpId, payload: &[u8], to: SocketAddr) -> Poll<io::Result<usize>> {
        self.transfer(socket, Direction::Write, |socket| socket.send_to(payload, to))
    }

    /// Sends datagrams in order, up to 64 of them, with one system call (`sendmmsg(2)`), and returns how many were sent.
    /// If the kernel's buffer is full, an event of the kind [`EventKind::Writable`] follows.
    ///
    /// The result is at least 1, unless `datagrams` is empty. Call this again with the rest. Unlike
    /// [`UdpSocket::send_batch`](crate::net::UdpSocket::send_batch), this method does not split payloads itself if the
    /// network device cannot ([`with_segment_size`](OutgoingDatagram::with_segment_size)).
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// use anello::event_loop::OutgoingDatagram;
    ///
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let address = peer.local_addr()?;
    /// let datagrams = [b"one", b"two"].map(|payload| OutgoingDatagram::new(payload, address));
    /// assert_eq!(event_loop.send_batch(socket, &datagrams)?, Poll::Ready(2));
    /// assert_eq!((peer.recv(&mut [0; 16])?, peer.recv(&mut [0; 16])?), (3, 3));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the first datagram cannot be sent; see [`send_to`](Self::send_to).
    #[inline]
    pub fn send_batch(
        &mut self,
        socket: UdpId,
        datagrams: &[OutgoingDatagram<'_>],
    ) -> Poll<io::Result<usize>> {
        if datagrams.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.transfer(socket, Direction::Write, |socket| socket.send_batch(datagrams))
    }

    /// Closes a UDP socket. Datagrams that were not received are discarded. No event follows.
    ///
    /// ```
    /// use anello::event_loop::EventLoop;
    ///
    /// let mut event_loop = EventLoop::new()?;
    /// let socket = event_loop.bind_udp("127.0.0.1:0".parse().expect("valid address"), 1)?;
    /// event_loop.close_udp(socket);
    /// assert!(event_loop.udp_local_addr(socket).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn close_udp(&mut self, socket: UdpId) {
        let removed = self.udp_sockets.remove(socket);
        if removed.is_some() {
            self.cancel_all(socket);
            self.driver.enter().deregister(socket.key);
        }
    }

    /// Calls `operation` until it returns anything but `WouldBlock`, unless the socket is known not to be ready.
    #[inline]
    fn transfer<T>(
        &mut self,
        id: UdpId,
        direction: Direction,
        mut operation: impl FnMut(&DatagramSocket) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let socket = self.udp_sockets.get(id)?;
        loop {
            let waker = event_waker(id.event(EventKind::of_direction(direction)));
            let event = ready!(self.driver.enter().poll_assumed_ready(id.key, direction, &waker, None))?;
            match operation(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.driver.enter().clear_ready(id.key, direction, Clear::All, event.tick);
                }
                result => {
                    self.clear_deadline_if(true, id, operation_of(direction));
                    return Poll::Ready(result);
                }
            }
        }
    }
}
