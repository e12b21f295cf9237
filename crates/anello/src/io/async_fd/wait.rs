//! Waiting for readiness.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use super::fd::AsyncFd;
use super::guard::{AsyncFdReadyGuard, AsyncFdReadyMutGuard};
use crate::driver::{Direction, Interest, PollIo, ReadyEvent};

impl<T: AsFd> AsyncFd<T> {
    /// Waits for any readiness of the given interest, and returns a guard for it.
    ///
    /// Cancel-safe: readiness stays cached if the future is dropped.
    ///
    /// # Errors
    /// Returns an error if the descriptor was not registered for `interest`, or the runtime has been shut down.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    ///
    /// use anello::io::{AsyncFd, Interest};
    ///
    /// anello::Runtime::new()?.block_on(async {
    ///     let (near, _far) = UnixStream::pair()?;
    ///     let near = AsyncFd::new(near)?;
    ///     let guard = near.ready(Interest::READABLE | Interest::WRITABLE).await?;
    ///     assert!(guard.ready().is_writable());
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn ready(&self, interest: Interest) -> io::Result<AsyncFdReadyGuard<'_, T>> {
        let event = self.registration.ready(interest).await?;
        Ok(AsyncFdReadyGuard { async_fd: self, event, interest })
    }

    /// Waits for any readiness of the given interest, and returns a guard that gives mutable access to the inner value.
    /// Otherwise behaves like [`ready`](Self::ready).
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{AsyncFd, Interest};
    /// # use std::io::Write;
    /// let (reader, writer) = std::io::pipe()?;
    /// let mut writer = AsyncFd::new(writer)?;
    /// let mut guard = writer.ready_mut(Interest::WRITABLE).await?;
    /// assert_eq!(guard.get_inner_mut().write(b"ciao")?, 4);
    /// # }
    /// ```
    pub async fn ready_mut(&mut self, interest: Interest) -> io::Result<AsyncFdReadyMutGuard<'_, T>> {
        let event = self.registration.ready(interest).await?;
        Ok(AsyncFdReadyMutGuard { async_fd: self, event, interest })
    }

    /// Waits until the descriptor is readable. Cancel-safe.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::{Read, Write};
    /// # use std::os::unix::net::UnixStream;
    /// # use anello::io::AsyncFd;
    /// let (near, mut far) = UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let near = AsyncFd::new(near)?;
    /// far.write_all(b"ciao")?;
    /// let count = loop {
    ///     let mut guard = near.readable().await?;
    ///     if let Ok(result) = guard.try_io(|near| near.get_ref().read(&mut [0; 16])) {
    ///         break result?;
    ///     }
    /// };
    /// assert_eq!(count, 4);
    /// # }
    /// ```
    pub fn readable(&self) -> impl Future<Output = io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.ready(Interest::READABLE)
    }

    /// Waits until the descriptor is readable, and returns a guard that gives mutable access to the inner value.
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::{Read, Write};
    /// # use anello::io::AsyncFd;
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let mut reader = AsyncFd::new(reader)?;
    /// writer.write_all(b"ciao")?;
    /// let mut guard = reader.readable_mut().await?;
    /// assert_eq!(guard.get_inner_mut().read(&mut [0; 16])?, 4);
    /// # }
    /// ```
    pub fn readable_mut(&mut self) -> impl Future<Output = io::Result<AsyncFdReadyMutGuard<'_, T>>> {
        self.ready_mut(Interest::READABLE)
    }

    /// Waits until the descriptor is writable. Cancel-safe.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// let (_reader, writer) = std::io::pipe()?;
    /// let writer = AsyncFd::new(writer)?;
    /// let mut guard = writer.writable().await?;
    /// let written = guard.try_io(|writer| writer.get_ref().write(b"ciao"));
    /// assert_eq!(written.expect("the pipe is empty")?, 4);
    /// # }
    /// ```
    pub fn writable(&self) -> impl Future<Output = io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.ready(Interest::WRITABLE)
    }

    /// Waits until the descriptor is writable, and returns a guard that gives mutable access to the inner value.
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// let (_reader, writer) = std::io::pipe()?;
    /// let mut writer = AsyncFd::new(writer)?;
    /// let mut guard = writer.writable_mut().await?;
    /// assert_eq!(guard.get_inner_mut().write(b"ciao")?, 4);
    /// # }
    /// ```
    pub fn writable_mut(&mut self) -> impl Future<Output = io::Result<AsyncFdReadyMutGuard<'_, T>>> {
        self.ready_mut(Interest::WRITABLE)
    }

    /// Polls for readability.
    ///
    /// Only the task that polled last is woken. The futures of this type are woken independently of it.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let reader = AsyncFd::new(reader)?;
    /// writer.write_all(b"ciao")?;
    /// let ready = poll_fn(|context| reader.poll_read_ready(context).map_ok(|guard| guard.ready())).await?;
    /// assert!(ready.is_readable());
    /// # }
    /// ```
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> PollIo<AsyncFdReadyGuard<'_, T>> {
        self.poll_direction(context, Direction::Read)
    }

    /// Polls for readability, and returns a guard that gives mutable access to the inner value. See
    /// [`poll_read_ready`](Self::poll_read_ready).
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// # use std::io::{Read, Write};
    /// # use anello::io::AsyncFd;
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let mut reader = AsyncFd::new(reader)?;
    /// writer.write_all(b"ciao")?;
    /// let reading = poll_fn(|context| {
    ///     let guard = reader.poll_read_ready_mut(context);
    ///     guard.map(|guard| guard?.get_inner_mut().read(&mut [0; 16]))
    /// });
    /// assert_eq!(reading.await?, 4);
    /// # }
    /// ```
    pub fn poll_read_ready_mut(&mut self, context: &mut Context<'_>) -> PollIo<AsyncFdReadyMutGuard<'_, T>> {
        let event = ready!(self.poll_event(context, Direction::Read))?;
        Poll::Ready(Ok(AsyncFdReadyMutGuard { async_fd: self, event, interest: Interest::READABLE }))
    }

    /// Polls for writability. See [`poll_read_ready`](Self::poll_read_ready).
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// # use anello::io::AsyncFd;
    /// let (_reader, writer) = std::io::pipe()?;
    /// let writer = AsyncFd::new(writer)?;
    /// let ready = poll_fn(|context| writer.poll_write_ready(context).map_ok(|guard| guard.ready())).await?;
    /// assert!(ready.is_writable());
    /// # }
    /// ```
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> PollIo<AsyncFdReadyGuard<'_, T>> {
        self.poll_direction(context, Direction::Write)
    }

    /// Polls for writability, and returns a guard that gives mutable access to the inner value. See
    /// [`poll_read_ready`](Self::poll_read_ready).
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// let (_reader, writer) = std::io::pipe()?;
    /// let mut writer = AsyncFd::new(writer)?;
    /// let writing = poll_fn(|context| {
    ///     let guard = writer.poll_write_ready_mut(context);
    ///     guard.map(|guard| guard?.get_inner_mut().write(b"ciao"))
    /// });
    /// assert_eq!(writing.await?, 4);
    /// # }
    /// ```
    pub fn poll_write_ready_mut(&mut self, context: &mut Context<'_>) -> PollIo<AsyncFdReadyMutGuard<'_, T>> {
        let event = ready!(self.poll_event(context, Direction::Write))?;
        Poll::Ready(Ok(AsyncFdReadyMutGuard { async_fd: self, event, interest: Interest::WRITABLE }))
    }

    fn poll_direction(
        &self,
        context: &Context<'_>,
        direction: Direction,
    ) -> PollIo<AsyncFdReadyGuard<'_, T>> {
        let event = ready!(self.poll_event(context, direction))?;
        Poll::Ready(Ok(AsyncFdReadyGuard { async_fd: self, event, interest: direction.into() }))
    }

    fn poll_event(&self, context: &Context<'_>, direction: Direction) -> PollIo<ReadyEvent> {
        if !self.registration.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let event = ready!(self.registration.poll_ready(context, direction))?;
        self.registration.charge_bytes(0);
        Poll::Ready(Ok(event))
    }
}
