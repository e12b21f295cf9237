//! Read end of a pipe.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};

use super::common::common;
use crate::driver::{Direction, Interest, Ready, unexpected_eof};
use crate::readiness::PipeEnd;

/// Read end of a pipe.
///
/// Dropping it closes the end; writes of the sender then fail with `BrokenPipe`.
///
/// ```
/// # anello::example! {
/// use anello::net::pipe;
///
/// let (sender, receiver) = pipe::pipe()?;
/// sender.write_all(b"ciao").await?;
/// drop(sender);
/// let mut buffer = [0; 16];
/// assert_eq!(receiver.read(&mut buffer).await?, 4);
/// assert_eq!(receiver.read(&mut buffer).await?, 0, "EOF");
/// # }
/// ```
pub struct Receiver(pub(super) PipeEnd);

common!(Receiver, new_read, RDONLY);

impl Receiver {
    /// Reads some bytes into `buffer`, and returns their number (`read(2)`). Returns 0 at EOF, when there is no writer.
    /// Cancel-safe.
    ///
    /// # Errors
    /// Returns the error of `read(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// sender.write_all(b"ciao").await?;
    /// let mut buffer = [0; 16];
    /// let count = receiver.read(&mut buffer).await?;
    /// assert_eq!(&buffer[..count], b"ciao");
    /// # }
    /// ```
    pub fn read<'a>(&'a self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.read(buffer)
    }

    /// Reads some bytes into several slices (`readv(2)`). Cancel-safe.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSliceMut;
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// sender.write_all(b"headbody").await?;
    /// let (mut head, mut body) = ([0; 4], [0; 16]);
    /// let mut slices = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body)];
    /// assert_eq!(receiver.read_vectored(&mut slices).await?, 8);
    /// assert_eq!((&head, &body[..4]), (b"head", &b"body"[..]));
    /// # }
    /// ```
    pub fn read_vectored<'a>(
        &'a self,
        slices: &'a mut [IoSliceMut<'a>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.0.read_vectored(slices)
    }

    /// Fills `buffer`. Not cancel-safe: the number of bytes read is lost.
    ///
    /// # Errors
    /// Returns `UnexpectedEof` if the pipe ends before `buffer` is full. Also see [`read`](Self::read).
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// sender.write_all(b"ciao!").await?;
    /// drop(sender);
    /// let mut buffer = [0; 4];
    /// receiver.read_exact(&mut buffer).await?;
    /// assert_eq!(&buffer, b"ciao");
    /// let error = receiver.read_exact(&mut buffer).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    /// # }
    /// ```
    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(unexpected_eof(filled, buffer.len())),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Appends all bytes up to EOF to `buffer`, and returns their number. If the future is dropped, the bytes read so
    /// far are in `buffer`.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// sender.write_all(b" mondo").await?;
    /// drop(sender);
    /// let mut text = b"ciao".to_vec();
    /// assert_eq!(receiver.read_to_end(&mut text).await?, 6);
    /// assert_eq!(text, b"ciao mondo");
    /// # }
    /// ```
    pub async fn read_to_end(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let before = buffer.len();
        while self.0.append(buffer).await? > 0 {}
        Ok(buffer.len() - before)
    }

    /// Reads some bytes without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the pipe is empty and has a writer, and the errors of [`read`](Self::read).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::ErrorKind;
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// assert_eq!(receiver.try_read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    /// drop(sender);
    /// assert_eq!(receiver.try_read(&mut [0; 16])?, 0);
    /// # }
    /// ```
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Read, || self.0.try_read(buffer))
    }

    /// Reads some bytes into several slices without waiting.
    ///
    /// # Errors
    /// See [`try_read`](Self::try_read).
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::IoSliceMut;
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// sender.write_all(b"headbody").await?;
    /// let (mut head, mut body) = ([0; 4], [0; 16]);
    /// let mut slices = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body)];
    /// assert_eq!(receiver.try_read_vectored(&mut slices)?, 8);
    /// # }
    /// ```
    pub fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.registration().try_io(Direction::Read, || self.0.try_read_vectored(slices))
    }

    /// Calls a function that reads from the descriptor without blocking. If it returns `WouldBlock`, the pipe is no longer
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
    /// sender.write_all(b"ciao").await?;
    /// receiver.readable().await?;
    /// let count = receiver.try_io(|| Ok(rustix::io::read(&receiver, &mut [0; 16])?))?;
    /// assert_eq!(count, 4);
    /// # }
    /// ```
    pub fn try_io<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.0.registration().try_io(Direction::Read, operation)
    }

    /// Waits until the pipe has bytes or has no writer. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::io::ErrorKind;
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// sender.write_all(b"ciao").await?;
    /// let count = loop {
    ///     receiver.readable().await?;
    ///     match receiver.try_read(&mut [0; 16]) {
    ///         Err(error) if error.kind() == ErrorKind::WouldBlock => {}
    ///         result => break result?,
    ///     }
    /// };
    /// assert_eq!(count, 4);
    /// # }
    /// ```
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(|_| ())
    }

    /// Polls for readability. Only the task that polled last is woken.
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::future::poll_fn;
    /// let (sender, receiver) = anello::net::pipe::pipe()?;
    /// sender.write_all(b"ciao").await?;
    /// poll_fn(|context| receiver.poll_read_ready(context)).await?;
    /// assert_eq!(receiver.try_read(&mut [0; 16])?, 4);
    /// # }
    /// ```
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.registration().poll_ready(context, Direction::Read))?;
        Poll::Ready(Ok(()))
    }
}
