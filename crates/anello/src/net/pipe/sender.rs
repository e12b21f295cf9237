//! Write end of a pipe.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};

use super::common::common;
use crate::driver::{Direction, Interest, Ready};
use crate::readiness::PipeEnd;

/// Write end of a pipe.
///
/// Dropping it closes the end; the receiver reads EOF once it has read all bytes.
///
/// ```
/// # anello::example! {
/// use anello::net::pipe;
///
/// let (sender, receiver) = pipe::pipe()?;
/// // Both tasks write to the same end.
/// let sender = std::rc::Rc::new(sender);
/// let other = sender.clone();
/// anello::spawn(async move { other.write_all(b"ciao").await });
/// sender.write_all(b"ciao").await?;
/// receiver.read_exact(&mut [0; 8]).await?;
/// # }
/// ```
pub struct Sender(pub(super) PipeEnd);

common!(Sender, new_write, WRONLY);

impl Sender {
    /// Writes some of `bytes`, and returns the number of bytes written (`write(2)`). Waits while the pipe is full.
    ///
    /// A write of at most `PIPE_BUF` (4096) bytes is atomic. Cancel-safe.
    ///
    /// # Errors
    /// Returns `BrokenPipe` if there is no reader.
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// assert_eq!(sender.write(b"ciao").await?, 4);
    /// drop(receiver);
    /// assert_eq!(sender.write(b"ciao").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    /// # }
    /// ```
    pub fn write<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.write(bytes)
    }

    /// Writes some bytes of several slices (`writev(2)`). Cancel-safe.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSlice;
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// let slices = [IoSlice::new(b"ciao, "), IoSlice::new(b"mondo")];
    /// assert_eq!(sender.write_vectored(&slices).await?, 11);
    /// assert_eq!(receiver.read(&mut [0; 16]).await?, 11);
    /// # }
    /// ```
    pub fn write_vectored<'a>(
        &'a self,
        slices: &'a [IoSlice<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.write_vectored(slices)
    }

    /// Writes all of `bytes`. Not cancel-safe: the number of bytes written is lost.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// // More than the capacity of the pipe.
    /// let writing = anello::spawn(async move { sender.write_all(&[7; 100_000]).await });
    /// let mut bytes = Vec::new();
    /// assert_eq!(receiver.read_to_end(&mut bytes).await?, 100_000);
    /// writing.await.expect("the task does not panic")?;
    /// # }
    /// ```
    pub fn write_all<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<()>> + 'a {
        self.0.write_all(bytes)
    }

    /// Writes some of `bytes` without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the pipe is full, and the errors of [`write`](Self::write).
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, _receiver) = anello::net::pipe::pipe()?;
    /// while sender.try_write(&[0; 4096]).is_ok() {}
    /// let error = sender.try_write(b"ciao").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # }
    /// ```
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Write, || self.0.try_write(bytes))
    }

    /// Writes some bytes of several slices without waiting.
    ///
    /// # Errors
    /// See [`try_write`](Self::try_write).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSlice;
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// assert_eq!(sender.try_write_vectored(&[IoSlice::new(b"ciao, "), IoSlice::new(b"mondo")])?, 11);
    /// assert_eq!(receiver.read(&mut [0; 16]).await?, 11);
    /// # }
    /// ```
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Write, || self.0.try_write_vectored(slices))
    }

    /// Calls a function that writes to the descriptor without blocking. If it returns `WouldBlock`, the pipe is no longer
    /// considered ready.
    ///
    /// # Errors
    /// Returns the error of `operation`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::pipe::pipe;
    ///
    /// let (sender, receiver) = pipe()?;
    /// sender.writable().await?;
    /// assert_eq!(sender.try_io(|| Ok(rustix::io::write(&sender, b"ciao")?))?, 4);
    /// assert_eq!(receiver.read(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    pub fn try_io<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.0.registration().try_io(Direction::Write, operation)
    }

    /// Waits until the pipe is writable or has no reader. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::ErrorKind;
    /// let (sender, _receiver) = anello::net::pipe::pipe()?;
    /// let written = loop {
    ///     sender.writable().await?;
    ///     match sender.try_write(b"ciao") {
    ///         Err(error) if error.kind() == ErrorKind::WouldBlock => {}
    ///         result => break result?,
    ///     }
    /// };
    /// assert_eq!(written, 4);
    /// # }
    /// ```
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(|_| ())
    }

    /// Polls for writability. Only the task that polled last is woken.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// let (sender, _receiver) = anello::net::pipe::pipe()?;
    /// poll_fn(|context| sender.poll_write_ready(context)).await?;
    /// assert_eq!(sender.try_write(b"ciao")?, 4);
    /// # }
    /// ```
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.registration().poll_ready(context, Direction::Write))?;
        Poll::Ready(Ok(()))
    }
}
