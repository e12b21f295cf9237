//! Readiness of a descriptor on which the application does its own I/O.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::task::{Context, Poll, ready};

use crate::driver::{Clear, Direction, Interest, PollIo, Ready, ReadyEvent};
use crate::readiness::Registration;

/// A descriptor whose readiness tasks can await, such as an eventfd, a timerfd, an inotify instance or a TUN device.
///
/// The application does the I/O itself, with its own system calls. These must not block, so set `O_NONBLOCK` before.
/// The pattern is: await [`readable`](Self::readable), then call [`AsyncFdReadyGuard::try_io`], which clears the
/// readiness if the call returns `WouldBlock`. [`async_io`](Self::async_io) does both in a loop.
///
/// Readiness is edge-triggered and cached: it stays set until a call has returned `WouldBlock`. It can also be set
/// although the descriptor is not ready. Any number of tasks can wait for the same descriptor.
///
/// The kernel is asked with a multishot poll on io_uring (`IORING_OP_POLL_ADD`, Linux 5.13; one-shot for
/// writability), which starts when a task first waits, and with `epoll_ctl(2)` on epoll. The runtime registers a
/// duplicate of the descriptor (`F_DUPFD_CLOEXEC`), so `T` can close or replace its own descriptor without affecting
/// other descriptors. The duplicate is closed when the `AsyncFd` is dropped, before `T` is dropped; if a poll is in
/// flight, the kernel cancels it first.
///
/// # Differences from tokio
/// - [`try_io`](Self::try_io) always makes the call, because io_uring tracks readiness only while tasks wait.
/// - `AsyncFd` is bound to its runtime's thread.
/// - `T` needs [`AsFd`] instead of `AsRawFd`, and one more descriptor is used.
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// use anello::io::{AsyncFd, Interest};
///
/// anello::Runtime::new()?.block_on(async {
///     let (near, mut far) = UnixStream::pair()?;
///     near.set_nonblocking(true)?;
///     let near = AsyncFd::with_interest(near, Interest::READABLE)?;
///     far.write_all(b"ping")?;
///     let mut buffer = [0; 16];
///     let count = near.async_io(Interest::READABLE, |mut near| near.read(&mut buffer)).await?;
///     assert_eq!(&buffer[..count], b"ping");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct AsyncFd<T: AsFd> {
    /// Dropped before `inner`.
    registration: Registration,
    inner: T,
}

impl<T: AsFd> AsyncFd<T> {
    /// Registers a descriptor for reading and writing.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot poll the file (`PermissionDenied`; regular files and directories), if the
    /// process has no descriptors left, or on the simulated driver (`Unsupported`), which has only simulated sockets.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// use anello::io::AsyncFd;
    ///
    /// anello::Runtime::new()?.block_on(async {
    ///     let (receiver, _sender) = std::io::pipe()?;
    ///     assert!(AsyncFd::new(receiver).is_ok());
    ///     assert!(AsyncFd::new(std::fs::File::open("/proc/self/exe")?).is_err());
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn new(inner: T) -> io::Result<Self> {
        Self::with_interest(inner, Interest::READABLE | Interest::WRITABLE)
    }

    /// Registers a descriptor for the given interest. Waiting for any other readiness fails.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn with_interest(inner: T, interest: Interest) -> io::Result<Self> {
        let registration = Registration::of_duplicate(inner.as_fd(), interest)?;
        Ok(Self { registration, inner })
    }

    /// Registers a descriptor for reading and writing. Returns the descriptor with the error if that fails.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn try_new(inner: T) -> Result<Self, AsyncFdTryNewError<T>> {
        Self::try_with_interest(inner, Interest::READABLE | Interest::WRITABLE)
    }

    /// Registers a descriptor for the given interest. Returns the descriptor with the error if that fails.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn try_with_interest(inner: T, interest: Interest) -> Result<Self, AsyncFdTryNewError<T>> {
        match Registration::of_duplicate(inner.as_fd(), interest) {
            Ok(registration) => Ok(Self { registration, inner }),
            Err(cause) => Err(AsyncFdTryNewError { inner, cause }),
        }
    }

    /// Returns a reference to the inner value.
    #[inline]
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns a mutable reference to the inner value. If it is given a different descriptor, the readiness of the old
    /// one is still reported.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Releases the registration and returns the inner value.
    pub fn into_inner(self) -> T {
        self.inner
    }

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

    /// Like [`ready`](Self::ready), with a guard that gives mutable access to the inner value.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub async fn ready_mut(&mut self, interest: Interest) -> io::Result<AsyncFdReadyMutGuard<'_, T>> {
        let event = self.registration.ready(interest).await?;
        Ok(AsyncFdReadyMutGuard { async_fd: self, event, interest })
    }

    /// Waits until the descriptor is readable. Cancel-safe.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub fn readable(&self) -> impl Future<Output = io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.ready(Interest::READABLE)
    }

    /// Like [`readable`](Self::readable), with a guard that gives mutable access to the inner value.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub fn readable_mut(&mut self) -> impl Future<Output = io::Result<AsyncFdReadyMutGuard<'_, T>>> {
        self.ready_mut(Interest::READABLE)
    }

    /// Waits until the descriptor is writable. Cancel-safe.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub fn writable(&self) -> impl Future<Output = io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.ready(Interest::WRITABLE)
    }

    /// Like [`writable`](Self::writable), with a guard that gives mutable access to the inner value.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub fn writable_mut(&mut self) -> impl Future<Output = io::Result<AsyncFdReadyMutGuard<'_, T>>> {
        self.ready_mut(Interest::WRITABLE)
    }

    /// Polls for readability.
    ///
    /// Only the task of the last call is woken. The futures of this type are woken independently of it.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> PollIo<AsyncFdReadyGuard<'_, T>> {
        self.poll_direction(context, Direction::Read)
    }

    /// Like [`poll_read_ready`](Self::poll_read_ready), with a guard that gives mutable access to the inner value.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub fn poll_read_ready_mut(&mut self, context: &mut Context<'_>) -> PollIo<AsyncFdReadyMutGuard<'_, T>> {
        let event = ready!(self.poll_event(context, Direction::Read))?;
        Poll::Ready(Ok(AsyncFdReadyMutGuard { async_fd: self, event, interest: Interest::READABLE }))
    }

    /// Polls for writability. See [`poll_read_ready`](Self::poll_read_ready).
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> PollIo<AsyncFdReadyGuard<'_, T>> {
        self.poll_direction(context, Direction::Write)
    }

    /// Like [`poll_write_ready`](Self::poll_write_ready), with a guard that gives mutable access to the inner value.
    ///
    /// # Errors
    /// See [`ready`](Self::ready).
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

    /// Waits until the descriptor is ready and calls `operation`, until it returns anything but `WouldBlock`.
    ///
    /// Cancel-safe if `operation` is a single system call.
    ///
    /// # Errors
    /// Returns the error of `operation`, and those of [`ready`](Self::ready).
    pub async fn async_io<R>(
        &self,
        interest: Interest,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            let event = self.registration.ready(interest).await?;
            match operation(&self.inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.clear(interest, Clear::All, event);
                }
                result => return result,
            }
        }
    }

    /// Like [`async_io`](Self::async_io), with mutable access to the inner value.
    ///
    /// # Errors
    /// See [`async_io`](Self::async_io).
    pub async fn async_io_mut<R>(
        &mut self,
        interest: Interest,
        mut operation: impl FnMut(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            let event = self.registration.ready(interest).await?;
            match operation(&mut self.inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.clear(interest, Clear::All, event);
                }
                result => return result,
            }
        }
    }

    /// Calls `operation` once, without waiting. A result of `WouldBlock` clears the readiness.
    ///
    /// The call is made even if the descriptor is not known to be ready.
    ///
    /// # Errors
    /// Returns the error of `operation`.
    ///
    /// ```
    /// use std::io::{ErrorKind, Read};
    /// use std::os::unix::net::UnixStream;
    ///
    /// use anello::io::{AsyncFd, Interest};
    ///
    /// anello::Runtime::new()?.block_on(async {
    ///     let (near, _far) = UnixStream::pair()?;
    ///     near.set_nonblocking(true)?;
    ///     let near = AsyncFd::new(near)?;
    ///     let result = near.try_io(Interest::READABLE, |mut near| near.read(&mut [0; 8]));
    ///     assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_io<R>(
        &self,
        interest: Interest,
        operation: impl FnOnce(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let event = self.registration.current_event()?;
        let result = operation(&self.inner);
        self.clear_if_would_block(interest, event, &result);
        result
    }

    /// Like [`try_io`](Self::try_io), with mutable access to the inner value.
    ///
    /// # Errors
    /// See [`try_io`](Self::try_io).
    pub fn try_io_mut<R>(
        &mut self,
        interest: Interest,
        operation: impl FnOnce(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        let event = self.registration.current_event()?;
        let result = operation(&mut self.inner);
        self.clear_if_would_block(interest, event, &result);
        result
    }

    fn clear_if_would_block<R>(&self, interest: Interest, event: ReadyEvent, result: &io::Result<R>) {
        if matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.clear(interest, Clear::All, event);
        }
    }

    fn clear(&self, interest: Interest, clear: Clear, event: ReadyEvent) {
        for direction in interest.directions() {
            self.registration.clear(direction, clear, event.tick);
        }
    }
}

impl<T: AsFd> AsFd for AsyncFd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: AsFd> AsRawFd for AsyncFd<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_fd().as_raw_fd()
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for AsyncFd<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AsyncFd").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Readiness of an [`AsyncFd`], returned by [`AsyncFd::readable`] and similar methods.
///
/// Dropping the guard keeps the readiness.
#[must_use = "the readiness stays set until it is cleared: call try_io or clear_ready"]
pub struct AsyncFdReadyGuard<'a, T: AsFd> {
    async_fd: &'a AsyncFd<T>,
    event: ReadyEvent,
    interest: Interest,
}

/// Like [`AsyncFdReadyGuard`], with mutable access to the inner value.
#[must_use = "the readiness stays set until it is cleared: call try_io or clear_ready"]
pub struct AsyncFdReadyMutGuard<'a, T: AsFd> {
    async_fd: &'a mut AsyncFd<T>,
    event: ReadyEvent,
    interest: Interest,
}

macro_rules! impl_guard {
    ($guard:ident) => {
        impl<T: AsFd> $guard<'_, T> {
            /// Clears the readiness that the guard was created for, so that the next wait lasts until the next event.
            ///
            /// Call this only after a call on the descriptor has returned `WouldBlock`, or has transferred less than
            /// requested; [`try_io`](Self::try_io) does this itself. Has no effect if an event has arrived since the
            /// guard was created. `READ_CLOSED` and `WRITE_CLOSED` stay set, because no further event follows them.
            pub fn clear_ready(&mut self) {
                self.clear_ready_matching(Ready::ALL);
            }

            /// Clears the given readiness; see [`clear_ready`](Self::clear_ready).
            pub fn clear_ready_matching(&mut self, ready: Ready) {
                self.async_fd.clear(self.interest, Clear::Matching(ready), self.event);
                self.event.ready = self.event.ready - ready;
            }

            /// Has no effect: readiness stays set unless it is cleared. For code that was written for tokio.
            pub fn retain_ready(&mut self) {}

            /// Returns the readiness at the time the guard was created, without what has been cleared since.
            pub fn ready(&self) -> Ready {
                self.event.ready
            }
        }

        impl<T: AsFd> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .debug_struct(stringify!($guard))
                    .field("ready", &self.event.ready)
                    .finish_non_exhaustive()
            }
        }
    };
}

impl_guard!(AsyncFdReadyGuard);
impl_guard!(AsyncFdReadyMutGuard);

impl<'a, T: AsFd> AsyncFdReadyGuard<'a, T> {
    /// Calls `operation`, and clears the readiness if it returns `WouldBlock`.
    ///
    /// # Errors
    /// Returns [`TryIoError`] if `operation` returned `WouldBlock`. All other results are in the inner `Result`.
    pub fn try_io<R>(
        &mut self,
        operation: impl FnOnce(&'a AsyncFd<T>) -> io::Result<R>,
    ) -> Result<io::Result<R>, TryIoError> {
        match operation(self.async_fd) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.async_fd.clear(self.interest, Clear::All, self.event);
                self.event.ready = Ready::EMPTY;
                Err(TryIoError(()))
            }
            result => Ok(result),
        }
    }

    /// Returns the descriptor.
    pub fn get_ref(&self) -> &'a AsyncFd<T> {
        self.async_fd
    }

    /// Returns the inner value of the descriptor.
    pub fn get_inner(&self) -> &'a T {
        &self.async_fd.inner
    }
}

impl<T: AsFd> AsyncFdReadyMutGuard<'_, T> {
    /// Calls `operation`, and clears the readiness if it returns `WouldBlock`.
    ///
    /// # Errors
    /// Returns [`TryIoError`] if `operation` returned `WouldBlock`. All other results are in the inner `Result`.
    pub fn try_io<R>(
        &mut self,
        operation: impl FnOnce(&mut AsyncFd<T>) -> io::Result<R>,
    ) -> Result<io::Result<R>, TryIoError> {
        match operation(self.async_fd) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.async_fd.clear(self.interest, Clear::All, self.event);
                self.event.ready = Ready::EMPTY;
                Err(TryIoError(()))
            }
            result => Ok(result),
        }
    }

    /// Returns the descriptor.
    pub fn get_ref(&self) -> &AsyncFd<T> {
        self.async_fd
    }

    /// Returns the descriptor.
    pub fn get_mut(&mut self) -> &mut AsyncFd<T> {
        self.async_fd
    }

    /// Returns the inner value of the descriptor.
    pub fn get_inner(&self) -> &T {
        &self.async_fd.inner
    }

    /// Returns the inner value of the descriptor.
    pub fn get_inner_mut(&mut self) -> &mut T {
        &mut self.async_fd.inner
    }
}

/// Error returned by the `try_io` methods of the guards if the operation returned `WouldBlock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryIoError(());

impl fmt::Display for TryIoError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("operation would block")
    }
}

impl Error for TryIoError {}

/// Error returned by [`AsyncFd::try_new`], with the value that could not be registered.
pub struct AsyncFdTryNewError<T> {
    inner: T,
    cause: io::Error,
}

impl<T> AsyncFdTryNewError<T> {
    /// Returns the value and the error.
    pub fn into_parts(self) -> (T, io::Error) {
        (self.inner, self.cause)
    }
}

impl<T> fmt::Debug for AsyncFdTryNewError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.cause, formatter)
    }
}

impl<T> fmt::Display for AsyncFdTryNewError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, formatter)
    }
}

impl<T> Error for AsyncFdTryNewError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

impl<T> From<AsyncFdTryNewError<T>> for io::Error {
    fn from(error: AsyncFdTryNewError<T>) -> Self {
        error.cause
    }
}
