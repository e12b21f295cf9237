//! What the task of a connection shares with those who look after it: the pacer, which hands it requests that are due,
//! and the overseer, which ends it when a reply takes too long. So neither costs a timer per request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use anello::net::ShutdownHandle;

use crate::shared::Shared;

/// What [`Lane::since_ns`] says while nothing is in flight.
const IDLE: u64 = u64::MAX;

/// The place of one connection in a load; the connection itself may come and go.
#[derive(Debug)]
pub(crate) struct Lane {
    /// When the oldest request in flight was sent.
    since_ns: Cell<u64>,
    given_up: Cell<Option<GivenUp>>,
    shutdown_handle: RefCell<Option<ShutdownHandle>>,
    /// Open loop: when requests that wait to be sent were due.
    pub line: RefCell<VecDeque<u64>>,
    /// How many of them, in front, have been sent before.
    pub taken_back: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// A request could be sent at once.
    free: Cell<bool>,
    /// When the connection is to be opened.
    pub opens_at_ns: Cell<u64>,
    /// It broke, and nobody opens it again.
    pub broken: Cell<bool>,
}

/// Why the overseer ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// The reply took too long.
    TimedOut,
    /// The user wants to stop.
    Abandoned,
}

impl Lane {
    pub fn new() -> Self {
        Self {
            since_ns: Cell::new(IDLE),
            given_up: Cell::new(None),
            shutdown_handle: RefCell::new(None),
            line: RefCell::default(),
            taken_back: Cell::new(0),
            waker: RefCell::new(None),
            free: Cell::new(true),
            opens_at_ns: Cell::new(0),
            broken: Cell::new(false),
        }
    }

    /// A connection is open. Who was given up while it was being opened is looked at anew: there was nothing to close.
    pub fn opened(&self, shutdown_handle: ShutdownHandle) {
        self.given_up.set(None);
        self.shutdown_handle.replace(Some(shutdown_handle));
    }

    /// Whether there is an open connection, or one that is ending.
    pub fn is_open(&self) -> bool {
        self.shutdown_handle.borrow().is_some()
    }

    /// It is closed.
    pub fn closed(&self) {
        self.idle();
        self.given_up.set(None);
        self.shutdown_handle.replace(None);
    }

    /// The oldest request in flight was sent then.
    #[inline]
    pub fn busy_since(&self, sent_ns: u64) {
        self.since_ns.set(sent_ns);
    }

    /// Nothing is in flight.
    #[inline]
    pub fn idle(&self) {
        self.since_ns.set(IDLE);
    }

    /// Why the connection was ended, since it was opened.
    pub fn given_up(&self) -> Option<GivenUp> {
        self.given_up.get()
    }

    /// Breaks the connection if its request has been in flight for too long. Its task then sees the end.
    #[inline]
    pub fn check(&self, now_ns: u64, stall_timeout_ns: u64) {
        let since_ns = self.since_ns.get();
        if since_ns != IDLE && now_ns.saturating_sub(since_ns) > stall_timeout_ns {
            self.give_up(GivenUp::TimedOut);
        }
    }

    /// Breaks the connection if a request is in flight, because nobody wants to wait for it any more.
    pub fn abandon(&self) {
        if self.since_ns.get() != IDLE {
            self.give_up(GivenUp::Abandoned);
        }
    }

    fn give_up(&self, why: GivenUp) {
        if self.given_up.get().is_none() {
            self.given_up.set(Some(why));
            if let Some(shutdown_handle) = &*self.shutdown_handle.borrow() {
                shutdown_handle.shutdown();
            }
            self.wake();
        }
    }

    /// Gives up what waits to be sent.
    pub fn clear_line(&self, shared: &Shared) {
        let waiting = std::mem::take(&mut *self.line.borrow_mut());
        self.taken_back.set(0);
        let from_ns = shared.count_from_ns.get();
        shared.tally.unsent(waiting.into_iter().filter(|&due_ns| due_ns >= from_ns).count() as u64);
    }

    /// Leaves the task's waker, for [`wake`](Self::wake); `free` says whether it could send.
    #[inline]
    pub fn park(&self, waker: &Waker, free: bool) {
        self.free.set(free);
        let mut parked = self.waker.borrow_mut();
        if !parked.as_ref().is_some_and(|parked| parked.will_wake(waker)) {
            *parked = Some(waker.clone());
        }
    }

    /// Has the task look at its line, and at the time.
    #[inline]
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Has the task look at its line if it could send.
    #[inline]
    pub fn wake_if_free(&self) {
        if self.free.get() {
            self.wake();
        }
    }

    /// The task is over; wakers of it mean nothing any more.
    pub fn leave(&self) {
        self.waker.replace(None);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use anello::net::TcpStream;

    use super::*;

    #[test]
    fn a_request_that_was_late_while_its_connection_was_opened_times_out_on_it() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        anello::Runtime::new().unwrap().block_on(async {
            let lane = Lane::new();
            lane.busy_since(1);
            lane.check(20, 10);
            assert_eq!(lane.given_up(), Some(GivenUp::TimedOut));
            // At the same moment it is open, and nobody has seen that it was given up.
            let mut stream = TcpStream::connect(address).await.unwrap();
            lane.opened(stream.shutdown_handle());
            assert_eq!(lane.given_up(), None);
            lane.check(20, 10);
            assert_eq!(lane.given_up(), Some(GivenUp::TimedOut));
            let ended = stream.recv().await.map(|chunk| chunk.is_none());
            assert!(ended.unwrap_or(true), "it waits for nothing any more");
        });
    }
}
