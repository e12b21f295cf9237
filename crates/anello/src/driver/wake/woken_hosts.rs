//! The list of simulated hosts that have been woken.

use std::sync::{Mutex, PoisonError};

/// Number of a simulated host.
pub(crate) type HostId = u32;

/// Hosts whose mailbox has been notified while they were asleep.
#[derive(Debug, Default)]
pub(crate) struct WokenHosts(Mutex<Vec<HostId>>);

impl WokenHosts {
    pub fn add(&self, host: HostId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(host);
    }

    /// Removes and returns the host that was woken last.
    pub fn pop(&self) -> Option<HostId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}
