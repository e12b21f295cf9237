//! Readiness methods that all datagram sockets have.

use crate::driver::{Direction, Interest};

/// Implements the methods for a socket with a field `registration`. The lines `$setup` start each example: they create
/// the `socket`, and a `peer` that is connected to it.
macro_rules! datagram_readiness {
    ($socket:ty, $($setup:literal)+) => {
        impl $socket {
            /// Waits until the socket is ready for any of the given operations. Readiness can be spurious, so use the
            /// `try_` methods afterwards, and wait again if they return `WouldBlock`. Cancel-safe.
            ///
            /// # Errors
            /// Returns an error if the runtime has been shut down.
            ///
            /// ```
            /// # anello::example! {
            /// use anello::io::Interest;
            $(#[doc = $setup])+
            /// peer.send(b"ciao").await?;
            /// let ready = socket.ready(Interest::READABLE).await?;
            /// assert!(ready.is_readable());
            /// # }
            /// ```
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                Ok(self.registration.ready(interest).await?.ready)
            }

            /// Waits until a datagram can be received, or an error is pending. See [`ready`](Self::ready).
            ///
            /// # Errors
            /// Returns an error if the runtime has been shut down.
            ///
            /// ```
            /// # anello::example! {
            $(#[doc = $setup])+
            /// peer.send(b"ciao").await?;
            /// let mut buffer = [0; 16];
            /// let bytes = loop {
            ///     socket.readable().await?;
            ///     match socket.try_recv(&mut buffer) {
            ///         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            ///         received => break received?,
            ///     }
            /// };
            /// assert_eq!(bytes, 4);
            /// # }
            /// ```
            pub async fn readable(&self) -> io::Result<()> {
                self.ready(Interest::READABLE).await.map(|_| ())
            }

            /// Waits until a datagram can be sent to the peer of a connected socket, or an error is pending. See
            /// [`ready`](Self::ready).
            ///
            /// # Errors
            /// Returns an error if the runtime has been shut down.
            ///
            /// ```
            /// # anello::example! {
            $(#[doc = $setup])+
            /// socket.writable().await?;
            /// socket.try_send(b"ciao")?;
            /// assert_eq!(peer.recv(&mut [0; 16]).await?, 4);
            /// # }
            /// ```
            pub async fn writable(&self) -> io::Result<()> {
                self.ready(Interest::WRITABLE).await.map(|_| ())
            }

            /// Polls for [`readable`](Self::readable). Only the task that polled last for receiving is woken. The
            /// asynchronous methods have no such limit.
            ///
            /// ```
            /// # anello::example! {
            $(#[doc = $setup])+
            /// peer.send(b"ciao").await?;
            /// std::future::poll_fn(|context| socket.poll_recv_ready(context)).await?;
            /// assert_eq!(socket.try_recv(&mut [0; 16])?, 4);
            /// # }
            /// ```
            pub fn poll_recv_ready(&self, context: &mut Context<'_>) -> PollIo<()> {
                self.registration.poll_read_ready(context).map_ok(|_| ())
            }

            /// Polls for [`writable`](Self::writable). Only the task that polled last for sending is woken.
            ///
            /// ```
            /// # anello::example! {
            $(#[doc = $setup])+
            /// std::future::poll_fn(|context| socket.poll_send_ready(context)).await?;
            /// socket.try_send(b"ciao")?;
            /// assert_eq!(peer.recv(&mut [0; 16]).await?, 4);
            /// # }
            /// ```
            pub fn poll_send_ready(&self, context: &mut Context<'_>) -> PollIo<()> {
                self.registration.poll_write_ready(context).map_ok(|_| ())
            }

            /// Calls a function that makes a non-blocking system call on the descriptor. If it returns `WouldBlock`,
            /// the socket is no longer considered ready.
            ///
            /// # Errors
            /// Returns the error of `operation`.
            ///
            /// ```
            /// # anello::example! {
            /// use anello::io::Interest;
            /// use rustix::net::{RecvFlags, recv};
            $(#[doc = $setup])+
            /// peer.send(b"ciao").await?;
            /// socket.readable().await?;
            /// let receive = || Ok(recv(&socket, &mut [0; 4], RecvFlags::DONTWAIT)?.0);
            /// assert_eq!(socket.try_io(Interest::READABLE, receive)?, 4);
            /// # }
            /// ```
            pub fn try_io<T>(
                &self,
                interest: Interest,
                operation: impl FnOnce() -> io::Result<T>,
            ) -> io::Result<T> {
                self.registration.try_io(direction(interest), operation)
            }

            /// Calls a function that makes a non-blocking system call on the descriptor, whenever the socket is ready,
            /// until it returns anything but `WouldBlock`. Cancel-safe if the system call is.
            ///
            /// # Errors
            /// Returns the error of `operation`.
            ///
            /// ```
            /// # anello::example! {
            /// use anello::io::Interest;
            /// use rustix::net::{RecvFlags, recv};
            $(#[doc = $setup])+
            /// peer.send(b"ciao").await?;
            /// let receive = || Ok(recv(&socket, &mut [0; 4], RecvFlags::DONTWAIT)?.0);
            /// assert_eq!(socket.async_io(Interest::READABLE, receive).await?, 4);
            /// # }
            /// ```
            pub fn async_io<'a, T>(
                &'a self,
                interest: Interest,
                operation: impl FnMut() -> io::Result<T> + 'a,
            ) -> impl Future<Output = io::Result<T>> + 'a {
                self.registration.io(direction(interest), operation)
            }
        }
    };
}

pub(super) fn direction(interest: Interest) -> Direction {
    interest.directions().next().unwrap_or(Direction::Read)
}

pub(super) use datagram_readiness;
