//! Receiving on UDP sockets.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::task::Context;

use super::socket::UdpSocket;
use crate::driver::{Clear, DatagramInfo, Direction, PollIo, RecvBatch};

impl UdpSocket {
    /// Receives a datagram, usually from the peer of a connected socket (`recv(2)`). Returns the number of bytes. If
    /// the buffer is shorter than the datagram, the rest is discarded. Cancel-safe.
    ///
    /// # Errors
    /// Returns the error from `recv(2)`, for example `ConnectionRefused` on a connected socket.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// assert_eq!(socket.recv(&mut [0; 16]).await?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn recv<'a>(&'a self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.registration.io(Direction::Read, move || self.socket.recv(buffer))
    }

    /// Receives a datagram and the address of its sender (`recvfrom(2)`). If the buffer is shorter than the datagram,
    /// the rest is discarded; [`recv_message`](Self::recv_message) reports this. Cancel-safe.
    ///
    /// # Errors
    /// Returns the error from `recvfrom(2)`, for example `ConnectionRefused` on a connected socket.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let (bytes, sender) = socket.recv_from(&mut [0; 16]).await?;
    /// assert_eq!((bytes, sender), (4, socket.local_addr()?));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn recv_from<'a>(
        &'a self,
        buffer: &'a mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + 'a {
        self.registration.io(Direction::Read, move || self.socket.recv_from(buffer))
    }

    /// Receives a datagram and its metadata (`recvmsg(2)`). Cancel-safe.
    ///
    /// # Errors
    /// See [`recv_from`](Self::recv_from).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let info = socket.recv_message(&mut [0; 2]).await?;
    /// assert!(info.bytes == 2 && info.is_truncated);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn recv_message<'a>(
        &'a self,
        buffer: &'a mut [u8],
    ) -> impl Future<Output = io::Result<DatagramInfo>> + 'a {
        self.registration.io(Direction::Read, move || self.socket.recv_message(buffer))
    }

    /// Receives as many datagrams as have arrived, up to the size of the batch (`recvmmsg(2)`), and waits for the first
    /// one. Replaces the contents of the batch, and returns the number of its buffers that hold data, at least 1.
    ///
    /// Cancel-safe: a future that is dropped has received nothing, but may have cleared the batch.
    ///
    /// # Errors
    /// See [`recv_from`](Self::recv_from). An error that occurs after some datagrams have been received is returned by
    /// the next call.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::RecvBatch;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// assert_eq!(socket.recv_batch(&mut batch).await?, 1);
    /// assert_eq!(batch.get(0).unwrap().payload(), b"ciao");
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn recv_batch<'a>(
        &'a self,
        batch: &'a mut RecvBatch,
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.registration.io(Direction::Read, move || self.receive_batch(batch))
    }

    #[inline]
    fn receive_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.socket.recv_batch(batch)?;
        if batch.len() < batch.max_datagrams() {
            // The kernel has no more datagrams. Later ones cause an event, so the next call need not try.
            self.registration.clear(Direction::Read, Clear::Drained, 0);
        }
        self.registration.charge_bytes(batch.received_bytes());
        Ok(batch.len())
    }

    /// Returns the next datagram without removing it, and the address of its sender (`recvfrom(2)` with `MSG_PEEK`).
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`recv_from`](Self::recv_from).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut buffer = [0; 16];
    /// let peeked = socket.peek_from(&mut buffer).await?;
    /// assert_eq!(peeked, socket.recv_from(&mut buffer).await?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn peek_from<'a>(
        &'a self,
        buffer: &'a mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + 'a {
        self.registration.io(Direction::Read, move || self.socket.peek_from(buffer))
    }

    /// Returns the next datagram without removing it. Otherwise behaves like [`peek_from`](Self::peek_from).
    ///
    /// # Errors
    /// See [`recv_from`](Self::recv_from).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// assert_eq!(socket.peek(&mut [0; 16]).await?, socket.recv(&mut [0; 16]).await?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buffer).await?.0)
    }

    /// Returns the sender of the next datagram without removing it. Cancel-safe.
    ///
    /// # Errors
    /// See [`recv_from`](Self::recv_from).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// assert_eq!(socket.peek_sender().await?, socket.local_addr()?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        Ok(self.peek_from(&mut []).await?.1)
    }

    /// Receives a datagram if one has arrived; see [`recv`](Self::recv).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `recv`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.readable().await?;
    /// assert_eq!(socket.try_recv(&mut [0; 16])?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.registration.try_io(Direction::Read, || self.socket.recv(buffer))
    }

    /// Receives a datagram if one has arrived; see [`recv_from`](Self::recv_from).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `recv_from`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let error = socket.try_recv_from(&mut [0; 16]).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.registration.try_io(Direction::Read, || self.socket.recv_from(buffer))
    }

    /// Receives a datagram if one has arrived; see [`recv_message`](Self::recv_message).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `recv_message`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.readable().await?;
    /// assert_eq!(socket.try_recv_message(&mut [0; 16])?.bytes, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_recv_message(&self, buffer: &mut [u8]) -> io::Result<DatagramInfo> {
        self.registration.try_io(Direction::Read, || self.socket.recv_message(buffer))
    }

    /// Receives the datagrams that have arrived; see [`recv_batch`](Self::recv_batch).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `recv_batch`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::RecvBatch;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// socket.readable().await?;
    /// assert_eq!(socket.try_recv_batch(&mut batch)?, 1);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.registration.try_io(Direction::Read, || self.receive_batch(batch))
    }

    /// Returns the next datagram without removing it, if one has arrived; see [`peek_from`](Self::peek_from).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `peek_from`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.readable().await?;
    /// assert_eq!(socket.try_peek_from(&mut [0; 16])?, (4, socket.local_addr()?));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.registration.try_io(Direction::Read, || self.socket.peek_from(buffer))
    }

    /// Returns the next datagram without removing it, if one has arrived; see [`peek`](Self::peek).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `peek`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.readable().await?;
    /// assert_eq!(socket.try_peek(&mut [0; 16])?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_peek_from(buffer).map(|(bytes, _)| bytes)
    }

    /// Returns the sender of the next datagram without waiting. See [`peek_sender`](Self::peek_sender).
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no datagram, and the errors of `peek_sender`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.readable().await?;
    /// assert_eq!(socket.try_peek_sender()?, socket.local_addr()?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.try_peek_from(&mut []).map(|(_, sender)| sender)
    }

    /// Polls for [`recv`](Self::recv). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut buffer = [0; 16];
    /// let bytes = std::future::poll_fn(|context| socket.poll_recv(context, &mut buffer)).await?;
    /// assert_eq!(&buffer[..bytes], b"ciao");
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> PollIo<usize> {
        self.registration.poll_io(context, Direction::Read, || self.socket.recv(buffer))
    }

    /// Polls for [`recv_from`](Self::recv_from). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use std::future::poll_fn;
    ///
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// poll_fn(|context| socket.poll_send_to(context, b"ciao", address)).await?;
    /// let mut buffer = [0; 16];
    /// let received = poll_fn(|context| socket.poll_recv_from(context, &mut buffer)).await?;
    /// assert_eq!(received, (4, address));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> PollIo<(usize, SocketAddr)> {
        self.registration.poll_io(context, Direction::Read, || self.socket.recv_from(buffer))
    }

    /// Polls for [`recv_batch`](Self::recv_batch). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::RecvBatch;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// let count = std::future::poll_fn(|context| socket.poll_recv_batch(context, &mut batch)).await?;
    /// assert_eq!(count, 1);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn poll_recv_batch(&self, context: &mut Context<'_>, batch: &mut RecvBatch) -> PollIo<usize> {
        self.registration.poll_io(context, Direction::Read, || self.receive_batch(batch))
    }

    /// Polls for [`peek_from`](Self::peek_from). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut buffer = [0; 16];
    /// let peeked = std::future::poll_fn(|context| socket.poll_peek_from(context, &mut buffer)).await?;
    /// assert_eq!(peeked, (4, socket.local_addr()?));
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn poll_peek_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> PollIo<(usize, SocketAddr)> {
        self.registration.poll_io(context, Direction::Read, || self.socket.peek_from(buffer))
    }

    /// Polls for [`peek`](Self::peek). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use std::future::poll_fn;
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// assert_eq!(poll_fn(|context| socket.poll_peek(context, &mut [0; 16])).await?, 4);
    /// assert_eq!(socket.recv(&mut [0; 16]).await?, 4);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn poll_peek(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> PollIo<usize> {
        self.poll_peek_from(context, buffer).map_ok(|(bytes, _)| bytes)
    }

    /// Polls for [`peek_sender`](Self::peek_sender). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// # use std::future::poll_fn;
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let sender = poll_fn(|context| socket.poll_peek_sender(context)).await?;
    /// assert_eq!(sender, socket.local_addr()?);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn poll_peek_sender(&self, context: &mut Context<'_>) -> PollIo<SocketAddr> {
        self.poll_peek_from(context, &mut []).map_ok(|(_, sender)| sender)
    }
}
