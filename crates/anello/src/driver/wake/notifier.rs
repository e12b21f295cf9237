//! Lets other threads interrupt a driver's wait, through an eventfd or a message from another ring.
//!
//! Handles, wakers and other workers can keep a [`Notifier`] indefinitely. The descriptors are therefore stored in a
//! slot that all clones share and that the worker empties when it exits. Each call holds a reference to the descriptor
//! that it uses, so a descriptor number is never used after the descriptor has been closed.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::woken_hosts::{HostId, WokenHosts};
use crate::driver::errors::log::log_event;

/// Interrupts the wait of a worker. Cheap to clone, and usable from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    /// Invariant 19: the only owner of the descriptors. `None` once the worker has exited, and for a simulated driver, which never waits.
    descriptors: Arc<Mutex<Option<Descriptors>>>,
    /// Set for a simulated host.
    host: Option<(Arc<WokenHosts>, HostId)>,
}

#[derive(Debug)]
pub(crate) struct Descriptors {
    pub eventfd: Arc<OwnedFd>,
    /// A second descriptor of the ring, to which other rings send messages.
    pub ring: Option<Arc<OwnedFd>>,
}

impl Notifier {
    pub(in crate::driver) fn new(descriptors: Option<Descriptors>) -> Self {
        Self { descriptors: Arc::new(Mutex::new(descriptors)), host: None }
    }

    /// Creates the notifier of a simulated host, which adds the host to a list.
    pub(in crate::driver) fn simulated(woken: Arc<WokenHosts>, host: HostId) -> Self {
        Self { descriptors: Arc::default(), host: Some((woken, host)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Descriptors>> {
        // The lock is only held to clone or take the descriptors, which cannot panic.
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ring, which stays open while the caller holds it, or `None` once the worker has exited.
    pub(in crate::driver) fn ring(&self) -> Option<Arc<OwnedFd>> {
        self.lock().as_ref()?.ring.clone()
    }

    /// Writes to the eventfd. Does nothing once the worker has exited.
    pub fn notify(&self) {
        if let Some((woken, host)) = &self.host {
            return woken.add(*host);
        }
        let eventfd = self.lock().as_ref().map(|descriptors| Arc::clone(&descriptors.eventfd));
        if let Some(eventfd) = eventfd
            && let Err(error) = rustix::io::write(&eventfd, &1u64.to_ne_bytes())
        {
            log_event!(ERROR, %error, "cannot wake worker: write to its eventfd failed");
        }
    }

    /// Closes the descriptors as soon as no other thread is using them. Called when the worker exits.
    pub fn close(&self) {
        let descriptors = self.lock().take();
        drop(descriptors);
    }
}
