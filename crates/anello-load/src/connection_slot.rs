//! What the task of a connection shares with those who look after it: the pacer, which hands it requests that are due,
//! and the overseer, which ends it when a reply takes too long. So neither costs a timer per request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use anello::net::ShutdownHandle;

use crate::shared::Shared;

/// What [`ConnectionSlot::oldest_sent_ns`] says while nothing is in flight.
const IDLE: u64 = u64::MAX;

/// The place of one connection in a load; the connection itself may come and go.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    /// When the oldest request in flight was sent.
    oldest_sent_ns: Cell<u64>,
    abort_reason: Cell<Option<AbortReason>>,
    shutdown_handle: RefCell<Option<ShutdownHandle>>,
    /// Open loop: when requests that wait to be sent were due.
    pub due_queue: RefCell<VecDeque<u64>>,
    /// How many of them, in front, have been sent before.
    pub resend_count: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// A request could be sent at once.
    can_send: Cell<bool>,
    /// When the connection is to be opened.
    pub open_at_ns: Cell<u64>,
    /// It broke, and nobody opens it again.
    pub broken: Cell<bool>,
}

/// Why the overseer ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortReason {
    /// The reply took too long.
    TimedOut,
    /// The user wants to stop.
    Interrupted,
}

impl ConnectionSlot {
    pub fn new() -> Self {
        Self {
            oldest_sent_ns: Cell::new(IDLE),
            abort_reason: Cell::new(None),
            shutdown_handle: RefCell::new(None),
            due_queue: RefCell::default(),
            resend_count: Cell::new(0),
            waker: RefCell::new(None),
            can_send: Cell::new(true),
            open_at_ns: Cell::new(0),
            broken: Cell::new(false),
        }
    }

    /// A connection is open. Who was given up while it was being opened is looked at anew: there was nothing to close.
    pub fn set_open(&self, shutdown_handle: ShutdownHandle) {
        self.abort_reason.set(None);
        self.shutdown_handle.replace(Some(shutdown_handle));
    }

    /// Whether there is an open connection, or one that is ending.
    pub fn is_open(&self) -> bool {
        self.shutdown_handle.borrow().is_some()
    }

    /// It is closed.
    pub fn set_closed(&self) {
        self.set_idle();
        self.abort_reason.set(None);
        self.shutdown_handle.replace(None);
    }

    /// The oldest request in flight was sent then.
    #[inline]
    pub fn set_oldest_sent(&self, sent_ns: u64) {
        self.oldest_sent_ns.set(sent_ns);
    }

    /// Nothing is in flight.
    #[inline]
    pub fn set_idle(&self) {
        self.oldest_sent_ns.set(IDLE);
    }

    /// Why the connection was ended, since it was opened.
    pub fn abort_reason(&self) -> Option<AbortReason> {
        self.abort_reason.get()
    }

    /// Breaks the connection if its request has been in flight for too long. Its task then sees the end.
    #[inline]
    pub fn check_timeout(&self, now_ns: u64, stall_timeout_ns: u64) {
        let oldest_sent_ns = self.oldest_sent_ns.get();
        if oldest_sent_ns != IDLE && now_ns.saturating_sub(oldest_sent_ns) > stall_timeout_ns {
            self.abort(AbortReason::TimedOut);
        }
    }

    /// Breaks the connection if a request is in flight, because nobody wants to wait for it any more.
    pub fn abort_if_busy(&self) {
        if self.oldest_sent_ns.get() != IDLE {
            self.abort(AbortReason::Interrupted);
        }
    }

    fn abort(&self, reason: AbortReason) {
        if self.abort_reason.get().is_none() {
            self.abort_reason.set(Some(reason));
            if let Some(shutdown_handle) = &*self.shutdown_handle.borrow() {
                shutdown_handle.shutdown();
            }
            self.wake();
        }
    }

    /// Gives up what waits to be sent.
    pub fn clear_queue(&self, shared: &Shared) {
        let waiting = std::mem::take(&mut *self.due_queue.borrow_mut());
        self.resend_count.set(0);
        let from_ns = shared.count_from_ns.get();
        shared.counters.add_unsent(waiting.into_iter().filter(|&due_ns| due_ns >= from_ns).count() as u64);
    }

    /// Leaves the task's waker, for [`wake`](Self::wake); `can_send` says whether it could send.
    #[inline]
    pub fn register_waker(&self, waker: &Waker, can_send: bool) {
        self.can_send.set(can_send);
        let mut waker_cell = self.waker.borrow_mut();
        if !waker_cell.as_ref().is_some_and(|waker_cell| waker_cell.will_wake(waker)) {
            *waker_cell = Some(waker.clone());
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
    pub fn wake_if_ready(&self) {
        if self.can_send.get() {
            self.wake();
        }
    }

    /// The task is over; wakers of it mean nothing any more.
    pub fn clear_waker(&self) {
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
            let slot = ConnectionSlot::new();
            slot.set_oldest_sent(1);
            slot.check_timeout(20, 10);
            assert_eq!(slot.abort_reason(), Some(AbortReason::TimedOut));
            // At the same moment it is open, and nobody has seen that it was given up.
            let mut stream = TcpStream::connect(address).await.unwrap();
            slot.set_open(stream.shutdown_handle());
            assert_eq!(slot.abort_reason(), None);
            slot.check_timeout(20, 10);
            assert_eq!(slot.abort_reason(), Some(AbortReason::TimedOut));
            let ended = stream.recv().await.map(|chunk| chunk.is_none());
            assert!(ended.unwrap_or(true), "it waits for nothing any more");
        });
    }
}
