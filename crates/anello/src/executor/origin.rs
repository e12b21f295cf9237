//! The runtime on whose behalf a blocking thread, or a thread in `Handle::block_on`, runs.

use std::cell::RefCell;
use std::sync::Arc;

use super::context::{Inbox, Shared, with_current};

thread_local! {
    static ORIGIN: RefCell<Option<Origin>> = const { RefCell::new(None) };
}

#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub inbox: Arc<Inbox>,
    /// Whether the runtime waits until the thread has finished, because its driver is simulated.
    pub is_waiting: bool,
}

impl Origin {
    pub fn of(shared: &Shared) -> Self {
        Self { inbox: Arc::clone(&shared.inbox), is_waiting: shared.is_simulated() }
    }

    /// Returns the current runtime of this thread, or the one on whose behalf it runs. Returns `None` if there is none.
    pub fn current() -> Option<Self> {
        with_current(Self::of).or_else(Self::of_thread)
    }

    /// Returns the runtime on whose behalf this thread runs, or `None` if there is none.
    pub fn of_thread() -> Option<Self> {
        // `try_with` fails during thread exit, once the variable has been destroyed.
        ORIGIN.try_with(|origin| origin.borrow().clone()).ok().flatten()
    }
}

/// Sets the runtime on whose behalf this thread runs until the guard is dropped.
pub(super) struct OriginGuard {
    previous: Option<Origin>,
}

impl OriginGuard {
    pub fn new(origin: Option<Origin>) -> Self {
        Self { previous: replace(origin) }
    }
}

impl Drop for OriginGuard {
    fn drop(&mut self) {
        drop(replace(self.previous.take()));
    }
}

/// The replaced value is dropped by the caller, when the variable is not borrowed.
fn replace(origin: Option<Origin>) -> Option<Origin> {
    ORIGIN.try_with(|current| current.replace(origin)).ok().flatten()
}
