//! Guards for readiness, which clear it.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use super::error::TryIoError;
use super::fd::AsyncFd;
use crate::driver::{Clear, Interest, Ready, ReadyEvent};

/// Readiness of an [`AsyncFd`], returned by [`AsyncFd::readable`] and similar methods.
///
/// Dropping the guard keeps the readiness.
///
/// ```
/// # anello::example! {
/// use std::io::{Read, Write};
///
/// use anello::io::AsyncFd;
///
/// let (reader, mut writer) = std::io::pipe()?;
/// rustix::io::ioctl_fionbio(&reader, true)?;
/// let reader = AsyncFd::new(reader)?;
/// writer.write_all(b"ciao")?;
/// let mut guard = reader.readable().await?;
/// let count = guard.try_io(|reader| reader.get_ref().read(&mut [0; 16]));
/// assert_eq!(count.expect("the pipe is readable")?, 4);
/// // The pipe is empty now, which clears the readiness.
/// assert!(guard.try_io(|reader| reader.get_ref().read(&mut [0; 16])).is_err());
/// assert!(!guard.ready().is_readable());
/// # }
/// ```
#[must_use = "the readiness stays set until it is cleared: call try_io or clear_ready"]
pub struct AsyncFdReadyGuard<'a, T: AsFd> {
    pub(super) async_fd: &'a AsyncFd<T>,
    pub(super) event: ReadyEvent,
    pub(super) interest: Interest,
}

/// Readiness of an [`AsyncFd`], like [`AsyncFdReadyGuard`], with mutable access to the inner value.
///
/// ```
/// # anello::example! {
/// use std::io::Write;
///
/// use anello::io::AsyncFd;
///
/// let (_reader, writer) = std::io::pipe()?;
/// let mut writer = AsyncFd::new(writer)?;
/// let mut guard = writer.writable_mut().await?;
/// let count = guard.try_io(|writer| writer.get_mut().write(b"ciao"));
/// assert_eq!(count.expect("the pipe is empty")?, 4);
/// # }
/// ```
#[must_use = "the readiness stays set until it is cleared: call try_io or clear_ready"]
pub struct AsyncFdReadyMutGuard<'a, T: AsFd> {
    pub(super) async_fd: &'a mut AsyncFd<T>,
    pub(super) event: ReadyEvent,
    pub(super) interest: Interest,
}

macro_rules! impl_guard {
    ($guard:ident) => {
        impl<T: AsFd> $guard<'_, T> {
            /// Clears the readiness that the guard was created for, so that the next wait lasts until the next event.
            ///
            /// Call this only after a call on the descriptor has returned `WouldBlock`, or has transferred less than
            /// requested; [`try_io`](Self::try_io) does this itself. Has no effect if an event has arrived since the
            /// guard was created. `READ_CLOSED` and `WRITE_CLOSED` stay set, because no further event follows them.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::io::AsyncFd;
            /// # let (_reader, writer) = std::io::pipe()?;
            /// let writer = AsyncFd::new(writer)?;
            /// let mut guard = writer.writable().await?;
            /// guard.clear_ready();
            /// assert!(guard.ready().is_empty());
            /// # }
            /// ```
            pub fn clear_ready(&mut self) {
                self.clear_ready_matching(Ready::ALL);
            }

            /// Clears the given readiness; see [`clear_ready`](Self::clear_ready).
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::io::{AsyncFd, Interest, Ready};
            /// # let (_reader, writer) = std::io::pipe()?;
            /// let writer = AsyncFd::new(writer)?;
            /// let mut guard = writer.ready(Interest::WRITABLE).await?;
            /// guard.clear_ready_matching(Ready::READABLE);
            /// assert!(guard.ready().is_writable());
            /// guard.clear_ready_matching(Ready::WRITABLE);
            /// assert!(!guard.ready().is_writable());
            /// # }
            /// ```
            pub fn clear_ready_matching(&mut self, ready: Ready) {
                self.async_fd.clear(self.interest, Clear::Matching(ready), self.event);
                self.event.ready = self.event.ready - ready;
            }

            /// Has no effect: readiness stays set unless it is cleared. For code that was written for tokio.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::io::AsyncFd;
            /// # let (_reader, writer) = std::io::pipe()?;
            /// let writer = AsyncFd::new(writer)?;
            /// let mut guard = writer.writable().await?;
            /// guard.retain_ready();
            /// assert!(guard.ready().is_writable());
            /// # }
            /// ```
            pub fn retain_ready(&mut self) {}

            /// Returns the readiness at the time the guard was created, without what has been cleared since.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::io::{AsyncFd, Interest};
            /// # let (_reader, writer) = std::io::pipe()?;
            /// let writer = AsyncFd::new(writer)?;
            /// let guard = writer.ready(Interest::READABLE | Interest::WRITABLE).await?;
            /// assert!(guard.ready().is_writable());
            /// # }
            /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Read;
    /// # use std::os::unix::net::UnixStream;
    /// # use anello::io::AsyncFd;
    /// let (near, far) = UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// drop(far);
    /// let near = AsyncFd::new(near)?;
    /// let mut guard = near.readable().await?;
    /// let result = guard.try_io(|near| near.get_ref().read(&mut [0; 16]));
    /// assert_eq!(result.expect("does not block")?, 0, "EOF");
    /// # }
    /// ```
    pub fn try_io<R>(
        &mut self,
        operation: impl FnOnce(&'a AsyncFd<T>) -> io::Result<R>,
    ) -> Result<io::Result<R>, TryIoError> {
        match operation(self.async_fd) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.async_fd.clear(self.interest, Clear::All, self.event);
                self.event.ready = Ready::EMPTY;
                Err(TryIoError::new())
            }
            result => Ok(result),
        }
    }

    /// Returns the descriptor.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::os::fd::AsRawFd;
    /// # use anello::io::AsyncFd;
    /// # let (_reader, writer) = std::io::pipe()?;
    /// let writer = AsyncFd::new(writer)?;
    /// let guard = writer.writable().await?;
    /// assert_eq!(guard.get_ref().as_raw_fd(), writer.as_raw_fd());
    /// # }
    /// ```
    pub fn get_ref(&self) -> &'a AsyncFd<T> {
        self.async_fd
    }

    /// Returns the inner value of the descriptor.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// # let (_reader, writer) = std::io::pipe()?;
    /// let writer = AsyncFd::new(writer)?;
    /// let guard = writer.writable().await?;
    /// assert_eq!(guard.get_inner().write(b"ciao")?, 4);
    /// # }
    /// ```
    pub fn get_inner(&self) -> &'a T {
        &self.async_fd.inner
    }
}

impl<T: AsFd> AsyncFdReadyMutGuard<'_, T> {
    /// Calls `operation`, and clears the readiness if it returns `WouldBlock`.
    ///
    /// # Errors
    /// Returns [`TryIoError`] if `operation` returned `WouldBlock`. All other results are in the inner `Result`.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// # let (_reader, writer) = std::io::pipe()?;
    /// let mut writer = AsyncFd::new(writer)?;
    /// let mut guard = writer.writable_mut().await?;
    /// let result = guard.try_io(|writer| writer.get_mut().write(b"ciao"));
    /// assert_eq!(result.expect("does not block")?, 4);
    /// # }
    /// ```
    pub fn try_io<R>(
        &mut self,
        operation: impl FnOnce(&mut AsyncFd<T>) -> io::Result<R>,
    ) -> Result<io::Result<R>, TryIoError> {
        match operation(self.async_fd) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.async_fd.clear(self.interest, Clear::All, self.event);
                self.event.ready = Ready::EMPTY;
                Err(TryIoError::new())
            }
            result => Ok(result),
        }
    }

    /// Returns the descriptor.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::os::fd::AsRawFd;
    /// # use anello::io::AsyncFd;
    /// # let (_reader, writer) = std::io::pipe()?;
    /// let number = writer.as_raw_fd();
    /// let mut writer = AsyncFd::new(writer)?;
    /// assert_eq!(writer.writable_mut().await?.get_ref().as_raw_fd(), number);
    /// # }
    /// ```
    pub fn get_ref(&self) -> &AsyncFd<T> {
        self.async_fd
    }

    /// Returns a mutable reference to the descriptor.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// # let (_reader, writer) = std::io::pipe()?;
    /// let mut writer = AsyncFd::new(writer)?;
    /// let mut guard = writer.writable_mut().await?;
    /// assert_eq!(guard.get_mut().get_mut().write(b"ciao")?, 4);
    /// # }
    /// ```
    pub fn get_mut(&mut self) -> &mut AsyncFd<T> {
        self.async_fd
    }

    /// Returns the inner value of the descriptor.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::os::fd::AsRawFd;
    /// # use anello::io::AsyncFd;
    /// # let (_reader, writer) = std::io::pipe()?;
    /// let number = writer.as_raw_fd();
    /// let mut writer = AsyncFd::new(writer)?;
    /// assert_eq!(writer.writable_mut().await?.get_inner().as_raw_fd(), number);
    /// # }
    /// ```
    pub fn get_inner(&self) -> &T {
        &self.async_fd.inner
    }

    /// Returns a mutable reference to the inner value of the descriptor.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::Write;
    /// # use anello::io::AsyncFd;
    /// # let (_reader, writer) = std::io::pipe()?;
    /// let mut writer = AsyncFd::new(writer)?;
    /// let mut guard = writer.writable_mut().await?;
    /// assert_eq!(guard.get_inner_mut().write(b"ciao")?, 4);
    /// # }
    /// ```
    pub fn get_inner_mut(&mut self) -> &mut T {
        &mut self.async_fd.inner
    }
}
