//! Sending on UDP sockets.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::task::Context;

use super::socket::UdpSocket;
use crate::driver::{Direction, MAX_BATCH_DATAGRAMS, OutgoingDatagram, PollIo, with_context};
use crate::net::resolve::{Host, ToSocketAddrs};

impl UdpSocket {
    /// Sends a datagram to the peer of a connected socket (`send(2)`). Returns the number of bytes, which is the length
    /// of the payload. Cancel-safe.
    ///
    /// # Errors
    /// Returns the error from `send(2)`: for example an error with the number `EDESTADDRREQ` if the socket is not
    /// connected, `EMSGSIZE` if the datagram is too long, or `ConnectionRefused` if no socket was bound to the port
    /// when an earlier datagram arrived.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// assert_eq!(socket.send(b"ciao").await?, 4);
    /// # }
    /// ```
    #[inline]
    pub fn send<'a>(&'a self, payload: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.registration.io(Direction::Write, move || self.socket.send(payload))
    }

    /// Sends a datagram to an address (`sendto(2)`). Returns the number of bytes, which is the length of the payload. A
    /// host name is resolved on a thread in the blocking pool, and its first address is used. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved, and the error from `sendto(2)` with the address: for example an
    /// error with the number `EMSGSIZE` if the datagram is too long, or `PermissionDenied` for a broadcast address
    /// without [`set_broadcast`](Self::set_broadcast).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// assert_eq!(socket.send_to(b"ciao", address).await?, 4);
    /// assert_eq!(socket.send_to(b"ciao", ("localhost", address.port())).await?, 4);
    /// # }
    /// ```
    #[inline]
    pub async fn send_to(&self, payload: &[u8], target: impl ToSocketAddrs) -> io::Result<usize> {
        let to = match target.to_host()? {
            Host::Address(address) => address,
            host => host.resolve().await?.first().copied().ok_or_else(no_address)?,
        };
        let sent = self.registration.io(Direction::Write, move || self.socket.send_to(payload, to)).await;
        sent.map_err(|error| send_error(to, error))
    }

    /// Sends a datagram with control data (`sendmsg(2)`). Cancel-safe; if the socket itself splits the payload, some
    /// of the datagrams may have been sent.
    ///
    /// # Errors
    /// See [`send_to`](Self::send_to). Also returns `InvalidInput` if the source and the destination have different
    /// address families, and the error from `sendmsg(2)` if the source is not an address of this machine.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::{Ecn, OutgoingDatagram};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// socket.send_message(&OutgoingDatagram::to_peer(b"ciao").with_ecn(Ecn::Ect0)).await?;
    /// # }
    /// ```
    #[inline]
    pub async fn send_message(&self, datagram: &OutgoingDatagram<'_>) -> io::Result<()> {
        self.send_batch(std::slice::from_ref(datagram)).await.map(|_| ())
    }

    /// Sends datagrams in order, up to 64 of them, with one system call: `sendmmsg(2)`, or `sendto(2)` or `sendmsg(2)` for
    /// a single one. Waits until the first one can be sent. Returns the number of datagrams that were sent, which is at
    /// least 1 unless `datagrams` is empty; call again with the rest.
    ///
    /// Fewer datagrams than possible are sent if the kernel's send buffer is full, or if one of them fails. In this
    /// case, the next call usually returns the error. The exception is an error that an earlier datagram has caused,
    /// such as `ConnectionRefused`: the kernel reports it at most once, and not if it occurs in the middle of a batch.
    /// No datagram is skipped by such an error.
    ///
    /// Cancel-safe: a future that is dropped has sent nothing, unless the socket itself splits payloads.
    ///
    /// # Errors
    /// Returns an error if the first datagram cannot be sent; see [`send_message`](Self::send_message).
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{OutgoingDatagram, UdpSocket};
    ///
    /// let server = UdpSocket::bind("127.0.0.1:0")?;
    /// server.set_gro(true)?;
    /// let client = UdpSocket::bind("127.0.0.1:0")?;
    /// // Sends three datagrams of 1,000 bytes and one of 500 bytes.
    /// let payload = [7; 3_500];
    /// let datagrams = [OutgoingDatagram::new(&payload, server.local_addr()?).with_segment_size(1_000)];
    /// let mut rest = &datagrams[..];
    /// while !rest.is_empty() {
    ///     let sent = client.send_batch(rest).await?;
    ///     rest = &rest[sent..];
    /// }
    /// let mut buffer = vec![0; 65_535];
    /// let mut received = 0;
    /// while received < 4 {
    ///     let info = server.recv_message(&mut buffer).await?;
    ///     received += info.segments(&buffer).count();
    /// }
    /// # }
    /// ```
    #[inline]
    pub fn send_batch<'a>(
        &'a self,
        datagrams: &'a [OutgoingDatagram<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        let mut sent_segments = 0;
        self.registration.io(Direction::Write, move || self.send_datagrams(datagrams, &mut sent_segments))
    }

    /// Sends datagrams as far as possible. `sent_segments` is the number of parts of the first datagram that have
    /// already been sent, if the socket itself splits its payload.
    fn send_datagrams(
        &self,
        datagrams: &[OutgoingDatagram<'_>],
        sent_segments: &mut usize,
    ) -> io::Result<usize> {
        let Some(first) = datagrams.first() else { return Ok(0) };
        let is_split = first.segment_count() > 1;
        if *sent_segments == 0 && !(is_split && self.splits_payloads.get()) {
            let mut count = datagrams.len();
            if self.splits_payloads.get() {
                count = datagrams.iter().take_while(|datagram| datagram.segment_count() == 1).count();
            }
            match self.socket.send_batch(&datagrams[..count]) {
                // The device cannot split payloads.
                Err(error) if is_split && error.raw_os_error() == Some(libc::EIO) => {
                    self.splits_payloads.set(true);
                }
                // The kernel cannot split this payload, or not at all. If there is another cause, the error occurs
                // again.
                Err(error) if is_split && error.raw_os_error() == Some(libc::EINVAL) => {}
                Ok(sent) => {
                    self.charge(&datagrams[..sent]);
                    return Ok(sent);
                }
                Err(error) => return Err(error),
            }
        }
        while *sent_segments < first.segment_count() {
            let segments = (*sent_segments..first.segment_count()).take(MAX_BATCH_DATAGRAMS);
            let segments: Vec<_> = segments.map(|index| first.segment(index)).collect();
            *sent_segments += self.socket.send_batch(&segments)?;
        }
        *sent_segments = 0;
        self.charge(&datagrams[..1]);
        Ok(1)
    }

    fn charge(&self, datagrams: &[OutgoingDatagram<'_>]) {
        self.registration.charge_bytes(datagrams.iter().map(|datagram| datagram.payload().len()).sum());
    }

    /// Sends a datagram if there is space in the send buffer; see [`send`](Self::send).
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no space, and the errors of `send`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// assert_eq!(socket.try_send(b"ciao")?, 4);
    /// # }
    /// ```
    pub fn try_send(&self, payload: &[u8]) -> io::Result<usize> {
        self.registration.try_io(Direction::Write, || self.socket.send(payload))
    }

    /// Sends a datagram if there is space in the send buffer; see [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no space, and the errors of `send_to`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert_eq!(socket.try_send_to(b"ciao", socket.local_addr()?)?, 4);
    /// # }
    /// ```
    pub fn try_send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        let sent = self.registration.try_io(Direction::Write, || self.socket.send_to(payload, to));
        sent.map_err(|error| send_error(to, error))
    }

    /// Sends a datagram with control data if there is space in the send buffer; see
    /// [`send_message`](Self::send_message) and [`try_send_batch`](Self::try_send_batch).
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no space, and the errors of `send_message`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::{Ecn, OutgoingDatagram};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// socket.try_send_message(&OutgoingDatagram::to_peer(b"ciao").with_ecn(Ecn::Ect0))?;
    /// # }
    /// ```
    pub fn try_send_message(&self, datagram: &OutgoingDatagram<'_>) -> io::Result<()> {
        self.try_send_batch(std::slice::from_ref(datagram)).map(|_| ())
    }

    /// Sends the datagrams for which there is space in the send buffer; see [`send_batch`](Self::send_batch).
    ///
    /// If the socket itself splits the payload of the first datagram, and the send buffer has space for only some of
    /// the parts, the others are discarded, like datagrams that are lost in transit, and the datagram counts as sent.
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no space, and the errors of `send_batch`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::OutgoingDatagram;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// assert_eq!(socket.try_send_batch(&[OutgoingDatagram::to_peer(b"ciao"); 3])?, 3);
    /// # }
    /// ```
    pub fn try_send_batch(&self, datagrams: &[OutgoingDatagram<'_>]) -> io::Result<usize> {
        let mut sent_segments = 0;
        let sent =
            self.registration.try_io(Direction::Write, || self.send_datagrams(datagrams, &mut sent_segments));
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent_segments > 0 => Ok(1),
            sent => sent,
        }
    }

    /// Polls for [`send`](Self::send). Only the task that polled last for sending is woken.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// let bytes = std::future::poll_fn(|context| socket.poll_send(context, b"ciao")).await?;
    /// assert_eq!(bytes, 4);
    /// # }
    /// ```
    pub fn poll_send(&self, context: &mut Context<'_>, payload: &[u8]) -> PollIo<usize> {
        self.registration.poll_io(context, Direction::Write, || self.socket.send(payload))
    }

    /// Polls for [`send_to`](Self::send_to). Only the task that polled last for sending is woken.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let to = socket.local_addr()?;
    /// let bytes = std::future::poll_fn(|context| socket.poll_send_to(context, b"ciao", to)).await?;
    /// assert_eq!(bytes, 4);
    /// # }
    /// ```
    pub fn poll_send_to(&self, context: &mut Context<'_>, payload: &[u8], to: SocketAddr) -> PollIo<usize> {
        let sent = self.registration.poll_io(context, Direction::Write, || self.socket.send_to(payload, to));
        sent.map_err(|error| send_error(to, error))
    }

    /// Polls for [`try_send_batch`](Self::try_send_batch), and waits until the first datagram can be sent. Only the
    /// task that polled last for sending is woken.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// # use anello::net::OutgoingDatagram;
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.connect(socket.local_addr()?).await?;
    /// let batch = [OutgoingDatagram::to_peer(b"ciao"); 3];
    /// let sent = std::future::poll_fn(|context| socket.poll_send_batch(context, &batch)).await?;
    /// assert_eq!(sent, 3);
    /// # }
    /// ```
    pub fn poll_send_batch(
        &self,
        context: &mut Context<'_>,
        datagrams: &[OutgoingDatagram<'_>],
    ) -> PollIo<usize> {
        let mut sent_segments = 0;
        let send = || match self.send_datagrams(datagrams, &mut sent_segments) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent_segments > 0 => Ok(1),
            sent => sent,
        };
        self.registration.poll_io(context, Direction::Write, send)
    }
}

/// Adds the destination to an error. `WouldBlock` is frequent and not final, so it is returned unchanged.
#[cold]
fn send_error(to: SocketAddr, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => error,
        _ => with_context(format_args!("cannot send to {to}"), error),
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "host has no addresses")
}
