//! Receiving and sending on Unix datagram sockets.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll};

use super::{UnixDatagram, UnixDatagramInfo};
use crate::driver::{Direction, PollIo, ReceivedMessage, unix_datagrams, with_context};
use crate::net::unix::{MAX_RETRY_DELAY, MIN_RETRY_DELAY, name, path_address};
use crate::time::pause;

impl UnixDatagram {
    // ---- Receiving -----------------------------------------------------------------------------------------------

    /// Receives a datagram (`recv(2)`). Returns the number of bytes. If the buffer is shorter than the datagram, the
    /// rest is discarded. If the datagram contains descriptors, the kernel closes them. Cancel-safe.
    ///
    /// # Errors
    /// Returns the error from `recv(2)`, for example `ConnectionReset` if the peer of a connected socket was closed
    /// while it had unread datagrams.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// assert_eq!(other.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn recv<'a>(&'a self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.registration.io(Direction::Read, move || self.receive(buffer))
    }

    /// Receives a datagram and the address of its sender (`recvfrom(2)`), which is unnamed if its socket is not bound.
    /// Otherwise behaves like [`recv`](Self::recv).
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixDatagram;
    ///
    /// let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// let (bytes, sender) = other.recv_from(&mut [0; 16]).await?;
    /// assert!(bytes == 4 && sender.is_unnamed());
    /// # }
    /// ```
    pub fn recv_from<'a>(
        &'a self,
        buffer: &'a mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + 'a {
        let receive = move || self.receive_from(buffer, false);
        self.registration.io(Direction::Read, receive)
    }

    /// Returns the next datagram without removing it (`recvfrom(2)` with `MSG_PEEK`). Cancel-safe.
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// assert_eq!(other.peek_from(&mut [0; 16]).await?.0, other.recv(&mut [0; 16]).await?);
    /// # }
    /// ```
    pub fn peek_from<'a>(
        &'a self,
        buffer: &'a mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + 'a {
        let receive = move || self.receive_from(buffer, true);
        self.registration.io(Direction::Read, receive)
    }

    /// Receives a datagram, and appends the descriptors in it to `fds` (`recvmsg(2)` with `SCM_RIGHTS`). They are
    /// close-on-exec. Cancel-safe.
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// let mut fds = Vec::new();
    /// let info = other.recv_with_fds(&mut [0; 16], &mut fds).await?;
    /// assert!(info.bytes == 4 && fds.is_empty());
    /// # }
    /// ```
    pub fn recv_with_fds<'a>(
        &'a self,
        buffer: &'a mut [u8],
        fds: &'a mut Vec<OwnedFd>,
    ) -> impl Future<Output = io::Result<UnixDatagramInfo>> + 'a {
        self.registration.io(Direction::Read, move || self.receive_with_fds(buffer, fds))
    }

    /// Returns `true` if the error means that no datagram will arrive.
    fn is_eof(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::WouldBlock && self.is_read_shut.get()
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.socket.recv(buffer) {
            Err(error) if self.is_eof(&error) => Ok(0),
            received => received,
        }
    }

    fn receive_from(&self, buffer: &mut [u8], peeks: bool) -> io::Result<(usize, SocketAddr)> {
        match self.socket.recv_from(buffer, peeks) {
            Err(error) if self.is_eof(&error) => Ok((0, unix_datagrams::unnamed()?)),
            received => received,
        }
    }

    fn receive_with_fds(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<UnixDatagramInfo> {
        let message = match self.socket.recv_with_fds(buffer, fds) {
            Err(error) if self.is_eof(&error) => ReceivedMessage::default(),
            received => received?,
        };
        Ok(UnixDatagramInfo {
            bytes: message.bytes,
            source: unix_datagrams::named_address(&message.source)?,
            is_truncated: message.is_truncated,
            are_fds_truncated: message.are_fds_truncated,
            credentials: message.credentials,
        })
    }

    /// Receives a datagram if one has arrived; see [`recv`](Self::recv).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `recv`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// other.readable().await?;
    /// assert_eq!(other.try_recv(&mut [0; 16])?, 4);
    /// # }
    /// ```
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let receive = || self.receive(buffer);
        self.registration.try_io(Direction::Read, receive)
    }

    /// Receives a datagram if one has arrived; see [`recv_from`](Self::recv_from).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `recv_from`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// other.readable().await?;
    /// assert!(other.try_recv_from(&mut [0; 16])?.1.is_unnamed());
    /// # }
    /// ```
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = || self.receive_from(buffer, false);
        self.registration.try_io(Direction::Read, receive)
    }

    /// Receives a datagram with descriptors if one has arrived; see [`recv_with_fds`](Self::recv_with_fds).
    ///
    /// # Errors
    /// Returns `WouldBlock` if none has arrived, and the errors of `recv_with_fds`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// other.readable().await?;
    /// assert_eq!(other.try_recv_with_fds(&mut [0; 16], &mut Vec::new())?.bytes, 4);
    /// # }
    /// ```
    pub fn try_recv_with_fds(
        &self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<UnixDatagramInfo> {
        self.registration.try_io(Direction::Read, || self.receive_with_fds(buffer, fds))
    }

    /// Polls for [`recv`](Self::recv). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// let mut buffer = [0; 16];
    /// let bytes = std::future::poll_fn(|context| other.poll_recv(context, &mut buffer)).await?;
    /// assert_eq!(&buffer[..bytes], b"ciao");
    /// # }
    /// ```
    pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> PollIo<usize> {
        let receive = || self.receive(buffer);
        self.registration.poll_io(context, Direction::Read, receive)
    }

    /// Polls for [`recv_from`](Self::recv_from). Only the task that polled last for receiving is woken.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.send(b"ciao").await?;
    /// let mut buffer = [0; 16];
    /// let (bytes, _) = std::future::poll_fn(|context| other.poll_recv_from(context, &mut buffer)).await?;
    /// assert_eq!(&buffer[..bytes], b"ciao");
    /// # }
    /// ```
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> PollIo<(usize, SocketAddr)> {
        let receive = || self.receive_from(buffer, false);
        self.registration.poll_io(context, Direction::Read, receive)
    }

    // ---- Sending -------------------------------------------------------------------------------------------------

    /// Sends a datagram to the peer of a connected socket (`send(2)`). Waits while the peer's queue is full
    /// (`net.unix.max_dgram_qlen`). Returns the length of the payload. Cancel-safe.
    ///
    /// # Errors
    /// Returns the error from `send(2)`: for example `NotConnected` if the socket is not connected,
    /// `ConnectionRefused` if the peer was closed, or an error with the number `EMSGSIZE` if the datagram exceeds the
    /// send buffer.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// assert_eq!(one.send(b"ciao").await?, 4);
    /// assert_eq!(other.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn send<'a>(&'a self, payload: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.registration.io(Direction::Write, move || self.socket.send(payload))
    }

    /// Sends a datagram to the socket at a path. See [`send_to_addr`](Self::send_to_addr).
    ///
    /// # Errors
    /// Returns the errors of `send_to_addr`, and `InvalidInput` if the path exceeds the kernel's limit of 107 bytes.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// let error = UnixDatagram::unbound()?.send_to(b"ciao", "/no/such/socket").await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # }
    /// ```
    pub async fn send_to(&self, payload: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.send_to_addr(payload, &path_address(path.as_ref())?).await
    }

    /// Sends a datagram to a path or an abstract name (`sendto(2)`). Returns the length of the payload. Cancel-safe.
    ///
    /// While the receiver's queue is full, the call is retried after delays of 1 to 50 ms, because the kernel reports
    /// free space only to connected senders. [`connect`](Self::connect) the socket to send many datagrams to one
    /// receiver.
    ///
    /// # Errors
    /// Returns the error from `sendto(2)` with the address: for example `NotFound` if the path does not exist,
    /// `ConnectionRefused` if no socket is bound to it, or an error with the number `EMSGSIZE` if the datagram exceeds
    /// the send buffer.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
    /// # let name = format!("anello-send-to-{}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// let receiver = UnixDatagram::bind_addr(&address)?;
    /// UnixDatagram::unbound()?.send_to_addr(b"ciao", &address).await?;
    /// assert_eq!(receiver.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub async fn send_to_addr(&self, payload: &[u8], address: &SocketAddr) -> io::Result<usize> {
        self.retry_while_full(address, || self.socket.send_to(payload, address)).await
    }

    /// Sends a datagram with descriptors to the peer of a connected socket (`sendmsg(2)` with `SCM_RIGHTS`). Returns
    /// the length of the payload. The receiver gets duplicates of the descriptors; at most 253 fit into a datagram.
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`send`](Self::send). Returns `InvalidInput` for more than 253 descriptors.
    ///
    /// ```
    /// # anello::example! {
    /// use std::io::{Read, Write};
    /// use std::os::fd::AsFd;
    ///
    /// use anello::net::UnixDatagram;
    ///
    /// let (one, other) = UnixDatagram::pair()?;
    /// let (mut reader, writer) = std::io::pipe()?;
    /// one.send_with_fds(b"a pipe", &[writer.as_fd()]).await?;
    /// drop(writer);
    /// let (mut buffer, mut fds) = ([0; 16], Vec::new());
    /// let info = other.recv_with_fds(&mut buffer, &mut fds).await?;
    /// assert_eq!((&buffer[..info.bytes], fds.len()), (&b"a pipe"[..], 1));
    /// for fd in fds {
    ///     std::fs::File::from(fd).write_all(b"ciao")?;
    /// }
    /// let mut text = String::new();
    /// reader.read_to_string(&mut text)?;
    /// assert_eq!(text, "ciao");
    /// # }
    /// ```
    pub fn send_with_fds<'a>(
        &'a self,
        payload: &'a [u8],
        fds: &'a [BorrowedFd<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        let send = move || self.socket.send_with_fds(payload, fds, None);
        self.registration.io(Direction::Write, send)
    }

    /// Sends a datagram with descriptors to a path or an abstract name. See [`send_with_fds`](Self::send_with_fds) and
    /// [`send_to_addr`](Self::send_to_addr).
    ///
    /// # Errors
    /// See [`send_to_addr`](Self::send_to_addr). Returns `InvalidInput` for more than 253 descriptors.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # use std::os::{fd::AsFd, linux::net::SocketAddrExt, unix::net::SocketAddr};
    /// # let name = format!("anello-send-fds-to-{}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// let receiver = UnixDatagram::bind_addr(&address)?;
    /// let sender = UnixDatagram::unbound()?;
    /// sender.send_with_fds_to(b"itself", &[sender.as_fd()], &address).await?;
    /// let mut fds = Vec::new();
    /// receiver.recv_with_fds(&mut [0; 16], &mut fds).await?;
    /// assert_eq!(fds.len(), 1);
    /// # }
    /// ```
    pub async fn send_with_fds_to(
        &self,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        address: &SocketAddr,
    ) -> io::Result<usize> {
        let send = || self.socket.send_with_fds(payload, fds, Some(address));
        self.retry_while_full(address, send).await
    }

    async fn retry_while_full(
        &self,
        address: &SocketAddr,
        mut send: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut delay = MIN_RETRY_DELAY;
        loop {
            poll_fn(|context| match self.registration.has_budget_or_yield(context) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            let sent = send();
            self.registration.charge_bytes(*sent.as_ref().unwrap_or(&0));
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause(delay).await,
                sent => return sent.map_err(|error| send_error(address, error)),
            }
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Sends a datagram if there is space; see [`send`](Self::send).
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no space, and the errors of `send`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// assert_eq!(one.try_send(b"ciao")?, 4);
    /// assert_eq!(other.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn try_send(&self, payload: &[u8]) -> io::Result<usize> {
        self.registration.try_io(Direction::Write, || self.socket.send(payload))
    }

    /// Sends a datagram if there is space; see [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no space, and the errors of `send_to`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// let error = UnixDatagram::unbound()?.try_send_to(b"ciao", "/no/such/socket").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # }
    /// ```
    pub fn try_send_to(&self, payload: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        // The readiness of the socket does not depend on the queue of this receiver.
        let address = path_address(path.as_ref())?;
        self.socket.send_to(payload, &address).map_err(|error| send_error(&address, error))
    }

    /// Sends a datagram with descriptors if there is space; see [`send_with_fds`](Self::send_with_fds).
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no space, and the errors of `send_with_fds`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # use std::os::fd::AsFd;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// one.try_send_with_fds(b"itself", &[one.as_fd()])?;
    /// assert_eq!(other.recv(&mut [0; 16]).await?, 6);
    /// # }
    /// ```
    pub fn try_send_with_fds(&self, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let send = || self.socket.send_with_fds(payload, fds, None);
        self.registration.try_io(Direction::Write, send)
    }

    /// Polls for [`send`](Self::send). Only the task that polled last for sending is woken. There is no poll function
    /// for [`send_to`](Self::send_to), because the kernel does not report when a receiver has space.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixDatagram;
    /// # let (one, other) = UnixDatagram::pair()?;
    /// std::future::poll_fn(|context| one.poll_send(context, b"ciao")).await?;
    /// assert_eq!(other.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn poll_send(&self, context: &mut Context<'_>, payload: &[u8]) -> PollIo<usize> {
        self.registration.poll_io(context, Direction::Write, || self.socket.send(payload))
    }
}

/// Adds the destination to an error. `WouldBlock` is not final, so it is returned unchanged.
#[cold]
fn send_error(to: &SocketAddr, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => error,
        _ => with_context(format_args!("cannot send to {}", name(to)), error),
    }
}
