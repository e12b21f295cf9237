//! One end of a pipe, as a readiness source.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustix::buffer::spare_capacity;

use crate::driver::{Direction, Interest};
use crate::readiness::Registration;

/// Minimum room in a buffer that bytes are appended to.
const MIN_APPEND_BYTES: usize = 4096;

/// One end of a pipe in non-blocking mode.
pub(crate) struct PipeEnd {
    registration: Registration,
    descriptor: Rc<OwnedFd>,
}

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
        let descriptor = Rc::new(descriptor);
        Ok(Self { registration: Registration::new(Rc::clone(&descriptor), interest)?, descriptor })
    }

    /// Returns a duplicate of the descriptor in blocking mode.
    pub fn into_blocking(self) -> io::Result<OwnedFd> {
        let descriptor = self.descriptor.try_clone()?;
        rustix::io::ioctl_fionbio(&descriptor, false)?;
        Ok(descriptor)
    }

    pub fn poll_read(&self, buffer: &mut [u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_io(context, Direction::Read, || Ok(rustix::io::read(&self.descriptor, &mut *buffer)?))
    }

    /// Reads some bytes and appends them to `buffer`, which grows as needed. Returns 0 at EOF.
    pub fn poll_append(&self, buffer: &mut Vec<u8>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_io(context, Direction::Read, || {
            buffer.reserve(MIN_APPEND_BYTES);
            Ok(rustix::io::read(&self.descriptor, spare_capacity(buffer))?)
        })
    }

    pub fn poll_write(&self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(&[IoSlice::new(bytes)], context)
    }

    pub fn poll_write_vectored(
        &self,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_io(context, Direction::Write, || Ok(rustix::io::writev(&self.descriptor, slices)?))
    }

    fn poll_io(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
        operation: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.registration.poll_io(context, direction, operation))?;
        self.registration.charge_bytes(count);
        Poll::Ready(Ok(count))
    }
}

impl AsFd for PipeEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
