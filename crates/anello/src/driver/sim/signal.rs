//! Signals that programs on simulated hosts catch.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// A signal that one listener catches.
#[derive(Debug, Default)]
pub(crate) struct SimSignal {
    /// Number of occurrences that the listener has not taken.
    count: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl SimSignal {
    /// Takes one occurrence.
    pub fn poll_take(&self, context: &Context<'_>) -> Poll<()> {
        if let Some(rest) = self.count.get().checked_sub(1) {
            self.count.set(rest);
            return Poll::Ready(());
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
}
