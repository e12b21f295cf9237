//! Calls on streams: connecting, receiving, sending, readiness and release.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixAddress;
use std::task::{Poll, Waker, ready};

use crate::driver::Driver;
use crate::driver::backend::{Backend, dispatch, dispatch_by_model};
use crate::driver::kernel::Kernel;
use crate::driver::memory::buffer::Chunk;
use crate::driver::memory::key::Key;
use crate::driver::sockets::detached::{DetachedSocket, no_descriptors};
use crate::driver::sockets::messages::ReceivedFds;
use crate::driver::sockets::{Family, FileRange, MAX_IO_SLICES, Sockets};
use crate::driver::stream::lingering::Sending;
use crate::driver::stream::open_count::OpenCount;
use crate::driver::stream::send_queue::SendBuf;
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

/// `Proactor` documents the calls that both state machines have.
impl Driver {
    pub fn connect(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<Key> {
        dispatch!(self.open_backend()?, machine => machine.connect(peer, source))
    }

    /// Returns `WouldBlock` if the backlog is full; the kernel does not notify the caller when there is room again.
    pub fn connect_unix(&mut self, peer: &UnixAddress) -> io::Result<Key> {
        dispatch!(self.open_backend()?, machine => {
            let socket = machine.kernel.sockets_mut().connect_unix(peer)?;
            machine.attach(socket, Family::Unix, true)
        })
    }

    pub fn pair_unix(&mut self) -> io::Result<(Key, Key)> {
        dispatch!(self.open_backend()?, machine => {
            let (one, other) = machine.kernel.sockets_mut().pair_unix()?;
            let one = machine.attach(one, Family::Unix, true)?;
            match machine.attach(other, Family::Unix, true) {
                Ok(other) => Ok((one, other)),
                Err(error) => {
                    machine.release(one);
                    Err(error)
                }
            }
        })
    }

    pub fn poll_connect(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        dispatch!(&mut *self.backend, machine => machine.poll_connect(key, waker))
    }

    pub fn import_stream(&mut self, socket: DetachedSocket) -> io::Result<Key> {
        dispatch!(self.open_backend()?, machine => {
            let (socket, family) = machine.kernel.sockets_mut().import(socket)?;
            machine.attach(socket, family, true)
        })
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

    #[inline(always)]
    pub fn poll_receive(&mut self, key: Key, received: &mut Option<Chunk>, waker: &Waker) -> PollIo<()> {
        match &mut *self.backend {
            Backend::Uring(uring) => uring.poll_receive(key, received, waker),
            Backend::Epoll(epoll) => epoll.poll_receive(key, received, waker),
            simulated => simulated.poll_receive(key, received, waker),
        }
    }

    pub fn poll_read(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_read(key, buffer, waker))
    }

    pub fn poll_copy(
        &mut self,
        key: Key,
        max_bytes: usize,
        copy: impl FnOnce(&[u8]),
        waker: &Waker,
    ) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_copy(key, max_bytes, copy, waker))
    }

    #[inline(always)]
    pub fn poll_send(&mut self, key: Key, outgoing: &mut Option<SendBuf>, waker: &Waker) -> PollIo<()> {
        match &mut *self.backend {
            Backend::Uring(uring) => uring.poll_send(key, outgoing, waker),
            Backend::Epoll(epoll) => epoll.poll_send(key, outgoing, waker),
            simulated => simulated.poll_send(key, outgoing, waker),
        }
    }

    /// Accepts several buffers for sending if the queue has room. In that case, takes those that the kernel has not
    /// taken completely from `outgoing`. The caller must drop the others once the driver is no longer borrowed.
    pub fn poll_send_vectored(&mut self, key: Key, outgoing: &mut Vec<SendBuf>, waker: &Waker) -> PollIo<()> {
        dispatch!(&mut *self.backend, machine => machine.poll_send_vectored(key, outgoing, waker))
    }

    pub fn poll_write(&mut self, key: Key, slices: &[IoSlice<'_>], waker: &Waker) -> PollIo<usize> {
        let slices = &slices[..slices.len().min(MAX_IO_SLICES)];
        dispatch!(&mut *self.backend, machine => machine.poll_write(key, slices, waker))
    }

    pub fn poll_write_more(&mut self, key: Key, data: &[u8], waker: &Waker) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_write_more(key, data, waker))
    }

    pub fn poll_flush(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        dispatch!(&mut *self.backend, machine => machine.poll_flush(key, waker))
    }

    pub fn shutdown_write(&mut self, key: Key) -> io::Result<()> {
        dispatch!(&mut *self.backend, machine => machine.shutdown_write(key))
    }

    pub fn poll_send_file(&mut self, key: Key, range: FileRange<'_>, waker: &Waker) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_send_file(key, range, waker))
    }

    pub fn poll_submitted(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        dispatch!(&mut *self.backend, machine => machine.poll_submitted(key, waker))
    }

    /// Sends bytes and descriptors once all accepted bytes have been sent.
    pub fn poll_send_with_fds(
        &mut self,
        key: Key,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
        waker: &Waker,
    ) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => machine.poll_send_with_fds(key, data, descriptors, waker))
    }

    pub fn poll_receive_with_fds(
        &mut self,
        key: Key,
        buffer: &mut [u8],
        descriptors: &mut ReceivedFds,
        waker: &Waker,
    ) -> PollIo<usize> {
        dispatch!(&mut *self.backend, machine => {
            machine.poll_receive_with_fds(key, buffer, descriptors, waker)
        })
    }

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

    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> PollIo<(OwnedFd, Vec<Chunk>)> {
        if self.is_simulated() {
            return Poll::Ready(Err(no_descriptors()));
        }
        let detached = ready!(dispatch!(&mut *self.backend, machine => machine.poll_detach(key, waker)))?;
        self.take_open_count(key);
        Poll::Ready(Ok(detached))
    }

    pub fn release(&mut self, key: Key) -> bool {
        if self.is_foreign() {
            return false;
        }
        self.take_open_count(key);
        dispatch!(&mut *self.backend, machine => machine.release(key))
    }

    /// Counts an open connection until it is released, aborted or detached.
    pub fn hold_open_count(&mut self, key: Key, open_count: OpenCount) {
        self.open_counts.insert(key, open_count);
    }

    #[inline]
    pub fn take_open_count(&mut self, key: Key) -> Option<OpenCount> {
        if self.open_counts.is_empty() {
            return None;
        }
        let taken = self.open_counts.remove(&key);
        // Returns memory after a burst.
        if self.open_counts.capacity() > 1024 && self.open_counts.len() < self.open_counts.capacity() / 8 {
            self.open_counts.shrink_to(self.open_counts.len() * 2);
        }
        taken
    }

    pub fn is_write_open(&self, key: Key) -> bool {
        dispatch!(&*self.backend, machine => machine.is_write_open(key))
    }

    /// Releases the key, drops unsent bytes and resets the connection.
    pub fn abort(&mut self, key: Key) {
        self.take_open_count(key);
        dispatch!(&mut *self.backend, machine => machine.abort(key));
    }

    /// Shuts down both directions, the write direction once the kernel has taken all accepted bytes. The caller must
    /// call the returned wakers once the driver is no longer borrowed. Also returns whether there are unsent bytes.
    pub fn shutdown_both(&mut self, key: Key) -> ([Option<Waker>; 2], bool) {
        // Both fail only if the peer has already terminated the connection.
        self.shutdown(key, Shutdown::Read).ok();
        self.shutdown_write(key).ok();
        (self.take_wakers(key), self.unsent_bytes(key) > 0)
    }

    /// Takes the wakers of the tasks waiting to read from or write to a stream. The driver will not call these wakers,
    /// so the caller must call them once the driver is no longer borrowed.
    pub fn take_wakers(&mut self, key: Key) -> [Option<Waker>; 2] {
        dispatch!(&mut *self.backend, machine => machine.take_wakers(key))
    }
}

impl Sending for Driver {
    fn unsent_bytes(&self, key: Key) -> usize {
        dispatch!(&*self.backend, machine => machine.unsent_bytes(key))
    }

    fn send_again(&mut self, key: Key, wakes: &mut WakeQueue) {
        dispatch_by_model!(
            &mut *self.backend,
            completion machine => machine.send_again(key),
            readiness machine => machine.send_again(key, wakes)
        );
    }

    fn abort(&mut self, key: Key, wakes: &mut WakeQueue) {
        wakes.extend(self.take_wakers(key).into_iter().flatten().collect());
        Self::abort(self, key);
    }
}
