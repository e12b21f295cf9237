//! Registration of a descriptor with the runtime's driver, as a readiness source.
//!
//! All types that do their own I/O on a descriptor are built on [`Registration`]: `AsyncFd`, pipes, datagram sockets and
//! child processes. I/O functions must not block: they return `WouldBlock`, and are called again once the descriptor is
//! ready. `driver/source/readiness.rs` describes how readiness is tracked.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use crate::driver::{Clear, Direction, Interest, Key, PollIo, Ready, ReadyEvent, Ticket};
use crate::executor::{Shared, current};

/// A readiness source that is released when it is dropped.
///
/// The driver shares the ownership of the descriptor and may use it for a short time after the release, until a poll in
/// flight has been cancelled. The file is then closed if the caller has no other descriptor of it.
pub(crate) struct Registration {
    shared: Rc<Shared>,
    key: Key,
}

#[allow(dead_code, reason = "used by the sockets that are built on readiness sources")]
impl Registration {
    /// Registers a descriptor with this thread's runtime.
    ///
    /// # Errors
    /// Returns an error if the file cannot be polled, the runtime has been shut down or its driver is simulated.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn new(descriptor: Rc<OwnedFd>, interest: Interest) -> io::Result<Self> {
        let shared = current();
        let key = shared.driver.borrow_mut().register(descriptor, interest)?;
        Ok(Self { shared, key })
    }

    /// Registers a duplicate of a descriptor, so that the original one can be closed at any time.
    ///
    /// # Errors
    /// See [`new`](Self::new). Also returns an error if the process has no descriptors left.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn of_duplicate(descriptor: BorrowedFd<'_>, interest: Interest) -> io::Result<Self> {
        Self::new(Rc::new(descriptor.try_clone_to_owned()?), interest)
    }

    /// Takes ownership of a source of the driver.
    pub fn from_key(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key }
    }

    pub fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    pub fn key(&self) -> Key {
        self.key
    }

    /// Polls for readiness. At most one task per direction can wait with this function: a later call replaces the waker
    /// of an earlier one. [`ready`](Self::ready) has no such limit. Does not consume budget.
    pub fn poll_ready(&self, context: &Context<'_>, direction: Direction) -> PollIo<ReadyEvent> {
        self.shared.driver.borrow_mut().poll_ready(self.key, direction, context.waker(), None)
    }

    pub fn poll_read_ready(&self, context: &Context<'_>) -> PollIo<ReadyEvent> {
        self.poll_ready(context, Direction::Read)
    }

    pub fn poll_write_ready(&self, context: &Context<'_>) -> PollIo<ReadyEvent> {
        self.poll_ready(context, Direction::Write)
    }

    /// Waits for any readiness of the given interest. Any number of futures can wait. Cancel-safe.
    pub fn ready(&self, interest: Interest) -> impl Future<Output = io::Result<ReadyEvent>> + '_ {
        let mut waiting = Waiting { registration: self, ticket: 0 };
        poll_fn(move |context| {
            if !self.shared.has_budget_or_yield(context) {
                return Poll::Pending;
            }
            let polled = waiting.poll_any(context, interest);
            if polled.is_ready() {
                self.shared.spend_budget(0);
            }
            polled
        })
    }

    /// Calls `operation` until it returns anything but `WouldBlock`, and waits for readiness before each call except the
    /// first. Each call consumes budget. The caller must charge transferred bytes with
    /// [`charge_bytes`](Self::charge_bytes). One task per direction can wait; see [`poll_ready`](Self::poll_ready).
    #[inline]
    pub fn poll_io<T>(
        &self,
        context: &Context<'_>,
        direction: Direction,
        operation: impl FnMut() -> io::Result<T>,
    ) -> PollIo<T> {
        self.poll_operation(context, direction, None, operation)
    }

    /// Like [`poll_io`](Self::poll_io), for any number of waiting futures. Cancel-safe if `operation` is atomic.
    pub fn io<'a, T>(
        &'a self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<T> + 'a,
    ) -> impl Future<Output = io::Result<T>> + 'a {
        let mut waiting = Waiting { registration: self, ticket: 0 };
        poll_fn(move |context| {
            let polled = self.poll_operation(context, direction, Some(&mut waiting.ticket), &mut operation);
            if polled.is_ready() {
                // The event that made the direction ready has removed the future's waker.
                waiting.ticket = 0;
            }
            polled
        })
    }

    #[inline]
    fn poll_operation<T>(
        &self,
        context: &Context<'_>,
        direction: Direction,
        mut ticket: Option<&mut Ticket>,
        mut operation: impl FnMut() -> io::Result<T>,
    ) -> PollIo<T> {
        loop {
            if !self.shared.has_budget_or_yield(context) {
                return Poll::Pending;
            }
            let mut driver = self.shared.driver.borrow_mut();
            let ticket = ticket.as_deref_mut();
            let event = ready!(driver.poll_assumed_ready(self.key, direction, context.waker(), ticket))?;
            drop(driver);
            self.shared.spend_budget(0);
            match operation() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.clear(direction, Clear::All, event.tick);
                }
                result => return Poll::Ready(result),
            }
        }
    }

    /// Calls `operation` once, whether or not the descriptor is known to be ready, and records a result of `WouldBlock`.
    ///
    /// # Errors
    /// Returns the error of `operation`.
    #[inline]
    pub fn try_io<T>(
        &self,
        direction: Direction,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let event = self.shared.driver.borrow().assumed_ready(self.key, direction)?;
        let result = operation();
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.clear(direction, Clear::All, event.tick);
        }
        result
    }

    /// Returns the number of events so far, to be passed to [`clear`](Self::clear) after an operation.
    pub fn current_event(&self) -> io::Result<ReadyEvent> {
        self.shared.driver.borrow().assumed_ready(self.key, Direction::Read)
    }

    /// Clears the readiness of a direction, unless an event has arrived since `tick`.
    pub fn clear(&self, direction: Direction, clear: Clear, tick: u64) {
        self.shared.driver.borrow_mut().clear_ready(self.key, direction, clear, tick);
    }

    /// Charges the running task's budget for bytes transferred by an operation.
    pub fn charge_bytes(&self, bytes: usize) {
        self.shared.spend_budget(bytes);
    }

    /// Returns whether the task has budget left. If not, it yields, and the caller must return `Pending`.
    pub fn has_budget_or_yield(&self, context: &Context<'_>) -> bool {
        self.shared.has_budget_or_yield(context)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            return self.shared.release_deferred(self.key, Self::from_key);
        };
        let has_polls = driver.deregister(self.key);
        drop(driver);
        if has_polls {
            // A poll in flight keeps the file open. Without the flush, a peer would detect only later that it is closed,
            // and a socket address could not be bound again.
            self.shared.flush_driver();
        }
    }
}

/// A future that waits for a registration. Leaves the list of waiting futures when it is dropped.
struct Waiting<'a> {
    registration: &'a Registration,
    ticket: Ticket,
}

impl Waiting<'_> {
    fn poll_any(&mut self, context: &Context<'_>, interest: Interest) -> PollIo<ReadyEvent> {
        let mut driver = self.registration.shared.driver.borrow_mut();
        let mut found: Option<ReadyEvent> = None;
        for direction in interest.directions() {
            let polled =
                driver.poll_ready(self.registration.key, direction, context.waker(), Some(&mut self.ticket));
            if let Poll::Ready(event) = polled? {
                let ready = event.ready | found.map_or(Ready::EMPTY, |found| found.ready);
                found = Some(ReadyEvent { ready, ..event });
            }
        }
        let Some(event) = found else { return Poll::Pending };
        if self.ticket != 0 {
            driver.leave(self.registration.key, std::mem::take(&mut self.ticket));
        }
        Poll::Ready(Ok(event))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.ticket != 0
            // If the driver is borrowed, the waker stays and causes one spurious wake-up.
            && let Ok(mut driver) = self.registration.shared.driver.try_borrow_mut()
        {
            driver.leave(self.registration.key, self.ticket);
        }
    }
}
