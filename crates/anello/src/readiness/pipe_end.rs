//! One end of a pipe, as a readiness source.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::net::{RecvFlags, SendFlags};

use super::Registration;
use crate::driver::{Direction, Interest, SendBuf};

/// Minimum room in a buffer that bytes are appended to.
const MIN_APPEND_BYTES: usize = 4096;

/// Size of the buffers of `poll_recv`, a quarter of the default capacity of a pipe.
const RECEIVE_BYTES: usize = 16 * 1024;

/// One end of a pipe, or another file that is read and written like a pipe, in non-blocking mode.
///
/// Poll functions wake only the task that polled last; the futures can wait in any number of tasks.
pub(crate) struct PipeEnd {
    registration: Registration,
    descriptor: Rc<OwnedFd>,
    /// Set for a socket in blocking mode, whose mode must not be changed because it is shared.
    is_blocking_socket: bool,
    /// Set for the read end of a pipe until bytes or EOF have been read. A FIFO that no writer has opened yet returns 0,
    /// as at EOF.
    may_lack_writer: Cell<bool>,
}

/// Code of the application, which may panic, never runs while the state is being changed.
impl UnwindSafe for PipeEnd {}
impl RefUnwindSafe for PipeEnd {}

impl PipeEnd {
    #[track_caller]
    pub fn new_read(descriptor: OwnedFd) -> io::Result<Self> {
        Self::new(descriptor, Interest::READABLE)
    }

    #[track_caller]
    pub fn new_write(descriptor: OwnedFd) -> io::Result<Self> {
        Self::new(descriptor, Interest::WRITABLE)
    }

    #[track_caller]
    fn new(descriptor: OwnedFd, interest: Interest) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        let is_pipe = FileType::from_raw_mode(rustix::fs::fstat(&descriptor)?.st_mode) == FileType::Fifo;
        let descriptor = Rc::new(descriptor);
        let registration = Registration::new(Rc::clone(&descriptor), interest)?;
        Ok(Self { registration, descriptor, is_blocking_socket: false, may_lack_writer: Cell::new(is_pipe) })
    }

    /// Takes a connected socket without changing its mode.
    #[track_caller]
    pub fn of_socket(descriptor: OwnedFd) -> io::Result<Self> {
        let descriptor = Rc::new(descriptor);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registration = Registration::new(Rc::clone(&descriptor), interest)?;
        let may_lack_writer = Cell::new(false);
        Ok(Self { registration, descriptor, is_blocking_socket: true, may_lack_writer })
    }

    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Returns the descriptor, or a duplicate of it if a poll is still in flight.
    pub fn into_nonblocking(self) -> io::Result<OwnedFd> {
        let Self { registration, descriptor, .. } = self;
        drop(registration);
        Rc::try_unwrap(descriptor).or_else(|shared| shared.try_clone())
    }

    /// Returns the descriptor, or a duplicate of it, in blocking mode.
    pub fn into_blocking(self) -> io::Result<OwnedFd> {
        let descriptor = self.into_nonblocking()?;
        rustix::io::ioctl_fionbio(&descriptor, false)?;
        Ok(descriptor)
    }

    pub fn read<'a>(&'a self, buffer: &'a mut [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.io(Direction::Read, || if buffer.is_empty() { Ok(0) } else { self.try_read(buffer) })
    }

    pub fn read_vectored<'a>(
        &'a self,
        slices: &'a mut [IoSliceMut<'_>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.io(Direction::Read, || self.try_read_vectored(slices))
    }

    /// Reads some bytes and appends them to `buffer`, which grows as needed. Returns 0 at EOF.
    pub fn append<'a>(&'a self, buffer: &'a mut Vec<u8>) -> impl Future<Output = io::Result<usize>> + 'a {
        self.io(Direction::Read, || self.try_append(buffer))
    }

    pub fn write_vectored<'a>(
        &'a self,
        slices: &'a [IoSlice<'_>],
    ) -> impl Future<Output = io::Result<usize>> + 'a {
        self.io(Direction::Write, || self.try_write_vectored(slices))
    }

    pub fn write<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = io::Result<usize>> + 'a {
        self.io(Direction::Write, || self.try_write(bytes))
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(bytes).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => bytes = &bytes[count..],
            }
        }
        Ok(())
    }

    pub fn poll_read(&self, buffer: &mut [u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_io(context, Direction::Read, || self.try_read(&mut *buffer))
    }

    /// See [`append`](Self::append).
    pub fn poll_append(&self, buffer: &mut Vec<u8>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_io(context, Direction::Read, || self.try_append(buffer))
    }

    /// Reads into a new buffer. Returns `None` at EOF.
    pub fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        let mut buffer = Vec::new();
        let count = ready!(self.poll_io(context, Direction::Read, || {
            buffer.reserve(RECEIVE_BYTES);
            self.try_append(&mut buffer)
        }))?;
        Poll::Ready(Ok((count > 0).then_some(buffer)))
    }

    /// Writes until `bytes` is empty. Removes what has been written.
    pub fn poll_send(&self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = bytes.as_mut().filter(|rest| !rest.is_empty()) {
            let count = ready!(self.poll_write(rest, context))?;
            rest.advance(count);
        }
        drop(bytes.take());
        Poll::Ready(Ok(()))
    }

    pub fn poll_write(&self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(&[IoSlice::new(bytes)], context)
    }

    pub fn poll_write_vectored(
        &self,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(context, Direction::Write, || self.try_write_vectored(slices))
    }

    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_blocking_socket {
            let (count, _) = rustix::net::recv(&self.descriptor, buffer, RecvFlags::DONTWAIT)?;
            return Ok(count);
        }
        if buffer.is_empty() {
            return Ok(0);
        }
        self.read_after_writer(|| rustix::io::read(&self.descriptor, &mut *buffer))
    }

    /// Calls `read`, and returns `WouldBlock` instead of 0 if no writer has opened the FIFO yet.
    fn read_after_writer(&self, mut read: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
        let count = read()?;
        if count == 0 && self.may_lack_writer.get() {
            // Once there has been a writer, the kernel reports its bytes or that it has closed the FIFO.
            let mut polled = [PollFd::new(&self.descriptor, PollFlags::IN)];
            if poll(&mut polled, Some(&Timespec::default()))? == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.may_lack_writer.set(false);
            return Ok(read()?);
        }
        self.may_lack_writer.set(false);
        Ok(count)
    }

    pub fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Ok(0);
        }
        self.read_after_writer(|| rustix::io::readv(&self.descriptor, slices))
    }

    fn try_append(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        buffer.reserve(MIN_APPEND_BYTES);
        self.read_after_writer(|| rustix::io::read(&self.descriptor, spare_capacity(buffer)))
    }

    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() { Ok(0) } else { Ok(rustix::io::write(&self.descriptor, bytes)?) }
    }

    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Ok(0);
        }
        if self.is_blocking_socket {
            let bytes = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            return Ok(rustix::net::send(&self.descriptor, bytes, flags)?);
        }
        Ok(rustix::io::writev(&self.descriptor, slices)?)
    }

    /// Calls `operation` until it returns anything but `WouldBlock`. `EINTR` is retried.
    async fn io(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let count = self.registration.io(direction, || retry_if_interrupted(&mut operation)).await?;
        self.registration.charge_bytes(count);
        Ok(count)
    }

    fn poll_io(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let operation = || retry_if_interrupted(&mut operation);
        let count = ready!(self.registration.poll_io(context, direction, operation))?;
        self.registration.charge_bytes(count);
        Poll::Ready(Ok(count))
    }
}

fn retry_if_interrupted<T>(mut operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match operation() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl AsFd for PipeEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
