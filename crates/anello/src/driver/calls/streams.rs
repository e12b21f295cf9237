//! Calls that peek at received bytes, wait for readiness, or do not wait.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Poll, Waker};

use crate::driver::Driver;
use crate::driver::backend::dispatch;
use crate::driver::kernel::Kernel;
use crate::driver::memory::key::Key;
use crate::driver::sockets::Sockets;
use crate::driver::wake::queue::{PollIo, WakerSlot};

impl Driver {
    pub fn poll_peek(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_peek(key, buffer, waker))
    }

    pub fn poll_read_ready(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        dispatch!(&mut *self.backend, machine => machine.poll_read_ready(key, waker))
    }

    pub fn poll_write_ready(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        dispatch!(&mut *self.backend, machine => machine.poll_write_ready(key, waker))
    }

    /// Polls a stream without replacing the wakers of waiting tasks. Returns `WouldBlock` instead of `Pending`.
    pub fn poll_now<T>(
        &mut self,
        key: Key,
        poll: impl FnOnce(&mut Self, &Waker) -> PollIo<T>,
    ) -> io::Result<T> {
        let waiting = self.replace_wakers(key, [WakerSlot::default(), WakerSlot::default()]);
        let polled = poll(self, Waker::noop());
        self.replace_wakers(key, waiting);
        match polled {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn replace_wakers(&mut self, key: Key, wakers: [WakerSlot; 2]) -> [WakerSlot; 2] {
        dispatch!(&mut *self.backend, machine => machine.replace_wakers(key, wakers))
    }

    /// Sends bytes and descriptors once all accepted bytes have been sent.
    pub fn poll_send_with_fds(
        &mut self,
        key: Key,
        message: (&[u8], &[BorrowedFd<'_>]),
        waker: &Waker,
    ) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_send_with_fds(key, message, waker))
    }

    pub fn poll_receive_with_fds(
        &mut self,
        key: Key,
        into: (&mut [u8], &mut Vec<OwnedFd>),
        waker: &Waker,
    ) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_receive_with_fds(key, into, waker))
    }

    /// Imports a stream. Receives return `received` before the bytes in the socket.
    pub fn import_stream_with(&mut self, descriptor: OwnedFd, received: &[u8]) -> io::Result<Key> {
        dispatch!(self.open_backend()?, machine => {
            let (socket, family) = machine.kernel.sockets_mut().import(descriptor.into())?;
            let key = machine.attach(socket, family, true)?;
            machine.store_received(key, received);
            Ok(key)
        })
    }
}
