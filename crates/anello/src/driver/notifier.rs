//! How other threads end a driver's wait: through its eventfd, or by a message from another ring.
//!
//! Handles, wakers and other workers keep a [`Notifier`] for as long as they like. So the descriptors are in a slot that
//! all clones share and that the worker empties when it ends. Each use holds the descriptor that it names: a number is
//! never used after it was closed.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::catch_panic::log;

/// Ends another thread's wait. Cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    /// `None` once the worker has ended, and for a simulated driver, which never waits.
    descriptors: Arc<Mutex<Option<Descriptors>>>,
}

#[derive(Debug)]
pub(super) struct Descriptors {
    pub eventfd: Arc<OwnedFd>,
    /// A second descriptor of the ring, to which other rings send messages.
    pub ring: Option<Arc<OwnedFd>>,
}

impl Notifier {
    pub(super) fn new(descriptors: Option<Descriptors>) -> Self {
        Self { descriptors: Arc::new(Mutex::new(descriptors)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Descriptors>> {
        // Held to copy or to take what is there, which cannot panic half-way.
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ring of the worker, open for as long as the caller holds it. `None` once the worker has ended.
    pub(super) fn ring(&self) -> Option<Arc<OwnedFd>> {
        self.lock().as_ref()?.ring.clone()
    }

    /// Writes to the eventfd. Does nothing once the worker has ended.
    pub fn notify(&self) {
        let eventfd = self.lock().as_ref().map(|descriptors| Arc::clone(&descriptors.eventfd));
        if let Some(eventfd) = eventfd
            && let Err(error) = rustix::io::write(&eventfd, &1u64.to_ne_bytes())
        {
            log(|| tracing::error!(%error, "a worker could not be woken"));
        }
    }

    /// Closes the descriptors, as soon as no other thread is using them: the worker has ended.
    pub fn close(&self) {
        let descriptors = self.lock().take();
        drop(descriptors);
    }
}
