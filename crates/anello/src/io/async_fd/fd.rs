//! The descriptor, and operations on it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::error::AsyncFdTryNewError;
use crate::driver::{Clear, Interest, ReadyEvent};
use crate::readiness::Registration;

/// A descriptor whose readiness tasks can await, such as an eventfd, a timerfd, an inotify instance or a TUN device.
///
/// The application does the I/O itself, with its own system calls. These must not block, so set `O_NONBLOCK` first. The
/// pattern is: await [`readable`](Self::readable), then call
/// [`AsyncFdReadyGuard::try_io`](super::AsyncFdReadyGuard::try_io), which clears the readiness if the call returns
/// `WouldBlock`. [`async_io`](Self::async_io) does both in a loop.
///
/// Readiness is edge-triggered and cached: it stays set until a call has returned `WouldBlock`. It can be spurious. Any
/// number of tasks can wait for the same descriptor.
///
/// The driver uses a multishot poll on io_uring (`IORING_OP_POLL_ADD`, Linux 5.13; one-shot for writability), which
/// starts when a task first waits, and `epoll_ctl(2)` on epoll. The runtime registers a duplicate of the descriptor
/// (`F_DUPFD_CLOEXEC`), so `T` can close or replace its own descriptor without affecting other descriptors. The
/// duplicate is closed when the `AsyncFd` is dropped, before `T` is dropped; if a poll is in flight, the kernel cancels
/// it first.
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
    pub(super) registration: Registration,
    pub(super) inner: T,
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{AsyncFd, Interest};
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = AsyncFd::with_interest(reader, Interest::READABLE)?;
    /// assert!(reader.writable().await.is_err(), "not registered for writing");
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::AsyncFd;
    /// let file = std::fs::File::open("/proc/self/exe")?;
    /// let (file, error) = AsyncFd::try_new(file).unwrap_err().into_parts();
    /// assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    /// assert!(file.metadata()?.is_file());
    /// # }
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{AsyncFd, Interest};
    /// let file = std::fs::File::open("/proc/self/exe")?;
    /// let error = AsyncFd::try_with_interest(file, Interest::READABLE).unwrap_err();
    /// assert!(error.into_parts().0.metadata()?.is_file());
    /// # }
    /// ```
    #[track_caller]
    pub fn try_with_interest(inner: T, interest: Interest) -> Result<Self, AsyncFdTryNewError<T>> {
        match Registration::of_duplicate(inner.as_fd(), interest) {
            Ok(registration) => Ok(Self { registration, inner }),
            Err(cause) => Err(AsyncFdTryNewError { inner, cause }),
        }
    }

    /// Returns a reference to the inner value.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::AsyncFd;
    /// let socket = AsyncFd::new(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    /// assert_ne!(socket.get_ref().local_addr()?.port(), 0);
    /// # }
    /// ```
    #[inline]
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns a mutable reference to the inner value. If it is given a different descriptor, the readiness of the old
    /// one is still reported.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Read;
    /// # use anello::io::AsyncFd;
    /// let (reader, _writer) = std::io::pipe()?;
    /// let mut reader = AsyncFd::new(reader)?;
    /// assert_eq!(reader.get_mut().read(&mut [])?, 0);
    /// # }
    /// ```
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Releases the registration and returns the inner value.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::AsyncFd;
    /// let socket = AsyncFd::new(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    /// let socket: std::net::UdpSocket = socket.into_inner();
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # }
    /// ```
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// Waits until the descriptor is ready and calls `operation`, until it returns anything but `WouldBlock`.
    ///
    /// Cancel-safe if `operation` is a single system call.
    ///
    /// # Errors
    /// Returns the error of `operation`, and those of [`ready`](Self::ready).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::{Read, Write};
    /// # use std::os::unix::net::UnixStream;
    /// # use anello::io::{AsyncFd, Interest};
    /// let (near, mut far) = UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let near = AsyncFd::new(near)?;
    /// let writing = anello::spawn(async move { far.write_all(b"ciao") });
    /// let count = near.async_io(Interest::READABLE, |mut near| near.read(&mut [0; 16])).await?;
    /// assert_eq!(count, 4);
    /// # }
    /// ```
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

    /// Waits until the descriptor is ready and calls `operation` with a mutable reference to the inner value, until it
    /// returns anything but `WouldBlock`. Otherwise behaves like [`async_io`](Self::async_io).
    ///
    /// # Errors
    /// See [`async_io`](Self::async_io).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::{Read, Write};
    /// # use std::os::unix::net::UnixStream;
    /// # use anello::io::{AsyncFd, Interest};
    /// let (near, mut far) = UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let mut near = AsyncFd::new(near)?;
    /// far.write_all(b"ciao")?;
    /// let count = near.async_io_mut(Interest::READABLE, |near| near.read(&mut [0; 16])).await?;
    /// assert_eq!(count, 4);
    /// # }
    /// ```
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

    /// Calls `operation` once, without waiting, with a mutable reference to the inner value. Otherwise behaves like
    /// [`try_io`](Self::try_io).
    ///
    /// # Errors
    /// See [`try_io`](Self::try_io).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::{ErrorKind, Read};
    /// # use std::os::unix::net::UnixStream;
    /// # use anello::io::{AsyncFd, Interest};
    /// let (near, _far) = UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let mut near = AsyncFd::new(near)?;
    /// let result = near.try_io_mut(Interest::READABLE, |near| near.read(&mut [0; 8]));
    /// assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
    /// # }
    /// ```
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

    pub(super) fn clear(&self, interest: Interest, clear: Clear, event: ReadyEvent) {
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
