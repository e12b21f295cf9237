//! Signals that programs on simulated hosts catch.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use crate::driver::sockets::gone;
use crate::driver::wake::queue::PollIo;

/// A signal that one listener catches.
#[derive(Debug, Default)]
pub(crate) struct SimSignal {
    /// Number of occurrences that the listener has not taken.
    count: Cell<usize>,
    /// Set once the runtime that has created the listener is shut down.
    is_closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl SimSignal {
    /// Takes one occurrence. Returns an error if there is none and the runtime of the listener has been shut down.
    pub fn poll_take(&self, context: &Context<'_>) -> PollIo<()> {
        if let Some(rest) = self.count.get().checked_sub(1) {
            self.count.set(rest);
            return Poll::Ready(Ok(()));
        }
        if self.is_closed.get() {
            return Poll::Ready(Err(gone()));
        }
        let replaced = self.waker.replace(Some(context.waker().clone()));
        drop(replaced);
        Poll::Pending
    }

    /// Adds one occurrence. The caller must call the waker.
    pub(super) fn deliver(&self) -> Option<Waker> {
        self.count.set(self.count.get() + 1);
        self.waker.take()
    }

    /// Ends the listener. The caller must call the waker.
    pub(super) fn close(&self) -> Option<Waker> {
        self.is_closed.set(true);
        self.waker.take()
    }
}
