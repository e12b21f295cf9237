//! Calls of the driver for readiness sources.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::driver::Driver;
use crate::driver::backend::dispatch;
use crate::driver::kernel::Kernel;
use crate::driver::memory::key::Key;
use crate::driver::sockets::Sockets;
use crate::driver::source::interest::{Direction, Interest};
use crate::driver::source::readiness::{Clear, ReadyEvent, Ticket};
use crate::driver::wake::queue::PollIo;

/// Each state machine implements these calls in its own file `source.rs`.
impl Driver {
    /// Registers a descriptor. The kernel is not notified before the next turn on epoll, and before a task waits on
    /// io_uring.
    ///
    /// # Errors
    /// Returns an error if the descriptor cannot be polled, the driver has been shut down, or the driver is simulated.
    pub fn register(&mut self, descriptor: Rc<OwnedFd>, interest: Interest) -> io::Result<Key> {
        dispatch!(self.open_backend()?, machine => {
            let socket = machine.kernel.sockets_mut().import_source(descriptor)?;
            machine.register(socket, interest)
        })
    }

    /// Returns the readiness of a direction, or stores the waker. Futures pass their ticket, poll functions `None`.
    pub fn poll_ready(
        &mut self,
        key: Key,
        direction: Direction,
        waker: &Waker,
        ticket: Option<&mut Ticket>,
    ) -> PollIo<ReadyEvent> {
        dispatch!(&mut *self.backend, machine => machine.poll_ready(key, direction, waker, ticket))
    }

    /// Returns the current readiness without waiting. Assumes that the direction is ready if no event or call has shown
    /// otherwise.
    #[inline]
    pub fn assumed_ready(&self, key: Key, direction: Direction) -> io::Result<ReadyEvent> {
        dispatch!(&*self.backend, machine => machine.assumed_ready(key, direction))
    }

    /// Sets a direction of a new source, which is certain to be ready before the first event.
    pub fn set_ready(&mut self, key: Key, direction: Direction) {
        dispatch!(&mut *self.backend, machine => machine.set_ready(key, direction));
    }

    /// Clears the readiness of a direction, unless an event has arrived since `tick`.
    pub fn clear_ready(&mut self, key: Key, direction: Direction, clear: Clear, tick: u64) {
        dispatch!(&mut *self.backend, machine => machine.clear_ready(key, direction, clear, tick));
    }

    /// Polls for readiness like [`poll_ready`](Self::poll_ready), but assumes that the direction is ready if no event or
    /// call has shown otherwise.
    #[inline]
    pub fn poll_assumed_ready(
        &mut self,
        key: Key,
        direction: Direction,
        waker: &Waker,
        ticket: Option<&mut Ticket>,
    ) -> PollIo<ReadyEvent> {
        dispatch!(&mut *self.backend, machine => {
            let event = machine.assumed_ready(key, direction)?;
            if !event.ready.is_empty() {
                return Poll::Ready(Ok(event));
            }
            machine.poll_ready(key, direction, waker, ticket)
        })
    }

    /// Removes the wakers of a future that no longer waits.
    pub fn leave(&mut self, key: Key, ticket: Ticket) {
        if !self.is_foreign() {
            dispatch!(&mut *self.backend, machine => machine.leave(key, ticket));
        }
    }

    /// Releases a source. Returns `true` if polls are in flight, which keep the file open until the next turn has
    /// cancelled them.
    pub fn deregister(&mut self, key: Key) -> bool {
        !self.is_foreign() && dispatch!(&mut *self.backend, machine => machine.deregister(key))
    }
}
