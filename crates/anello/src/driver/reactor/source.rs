//! Readiness sources on kernels that report readiness.

use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::{Reactor, Source};
use crate::driver::errors::log::log_event;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{Edge, ReadinessKernel, Socket};
use crate::driver::memory::key::Key;
use crate::driver::sockets::{gone, not_pollable};
use crate::driver::source::interest::{Direction, Interest};
use crate::driver::source::readiness::{Readiness, ReadyEvent, Ticket};
use crate::driver::wake::queue::{PollIo, WakeQueue};

impl<K: ReadinessKernel> Reactor<K> {
    pub fn register(&mut self, descriptor: Rc<Socket<K>>, interest: Interest) -> io::Result<Key> {
        let mut events = interest.requested_events();
        if interest.contains(Direction::Read) {
            // Sockets are nearly always writable, and an event for each datagram that leaves the send buffer would wake
            // the worker. `poll_ready` requests these events once a task waits for them.
            events &= !Direction::Write.requested_events();
        }
        let key = self.sources.insert(Source { descriptor, readiness: Readiness::new(interest), events });
        if let Some(source) = self.sources.get(key)
            && let Err(error) =
                self.kernel.watch_source(&source.descriptor, Token::new(Kind::Source, key), events)
        {
            self.sources.remove(key);
            return Err(if error.raw_os_error() == Some(libc::EPERM) { not_pollable() } else { error });
        }
        Ok(key)
    }

    /// Returns the descriptor of a source.
    #[allow(dead_code, reason = "used by the sockets that are built on readiness sources")]
    pub fn source(&self, key: Key) -> Option<&Rc<Socket<K>>> {
        self.sources.get(key).map(|source| &source.descriptor)
    }

    pub fn poll_ready(
        &mut self,
        key: Key,
        direction: Direction,
        waker: &Waker,
        ticket: Option<&mut Ticket>,
    ) -> PollIo<ReadyEvent> {
        let Some(source) = self.sources.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let polled = source.readiness.poll(direction, waker, ticket);
        let events = source.events | direction.requested_events();
        if polled.is_pending() && events != source.events {
            self.kernel.rewatch_source(&source.descriptor, Token::new(Kind::Source, key), events)?;
            source.events = events;
        }
        polled
    }

    #[inline]
    pub fn assumed_ready(&self, key: Key, direction: Direction) -> io::Result<ReadyEvent> {
        Ok(self.sources.get(key).ok_or_else(gone)?.readiness.assume(direction))
    }

    #[cfg(test)]
    pub fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// Returns `false`: no operation is in flight, so the descriptor is released immediately.
    pub fn deregister(&mut self, key: Key) -> bool {
        if let Some(source) = self.sources.remove(key) {
            // Closing the descriptor does not remove it from epoll while another descriptor of the file exists.
            if let Err(error) = self.kernel.unwatch(&source.descriptor) {
                log_event!(DEBUG, %error, "cannot remove a released descriptor from epoll");
            }
        }
        false
    }

    #[inline(never)]
    pub(super) fn on_source(&mut self, key: Key, edge: Edge, wakes: &mut WakeQueue) {
        match self.sources.get_mut(key) {
            Some(source) => source.readiness.on_event(edge.events, wakes),
            None => self.on_late_event(self.sources.is_earlier(key)),
        }
    }
}
