//! What the listeners of every family are made of.

use std::cell::Ref;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::stream::Inner;
use super::wait_queue::WaitQueue;
use crate::driver::{self, AcceptSink, Driver, Key};
use crate::executor::{Shared, current};
use crate::time::sleep;

/// Connections that the kernel keeps until they are accepted.
pub(super) const BACKLOG: u32 = 4096;

/// How long a listener pauses when the process has no descriptors left: long enough not to spin, short enough not to
/// be noticed when they come free.
pub(super) const EXHAUSTED_RETRY_DELAY: Duration = Duration::from_millis(100);

/// What an accept gave.
pub(super) enum Accepted {
    Stream(Inner),
    /// Not for this driver: in blocking mode.
    Descriptor(OwnedFd),
}

/// A listening socket.
pub(super) struct Listener {
    shared: Rc<Shared>,
    key: Key,
    wait_queue: WaitQueue,
}

impl Listener {
    pub fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key, wait_queue: WaitQueue::default() }
    }

    /// Takes over a listening socket.
    pub fn import(descriptor: OwnedFd) -> io::Result<Self> {
        let shared = current();
        let key = shared.driver.borrow_mut().import_listener(descriptor)?;
        Ok(Self::new(shared, key))
    }

    /// Other workers accept from the same socket, too.
    pub fn share(&self) {
        self.shared.driver.borrow_mut().share_listener(self.key);
    }

    pub fn key(&self) -> Key {
        self.key
    }

    pub fn driver(&self) -> Ref<'_, Driver> {
        self.shared.driver.borrow()
    }

    /// The next connection; pauses while there are no descriptors.
    pub async fn accept(&self) -> io::Result<Inner> {
        loop {
            let mut ticket = self.wait_queue.ticket();
            match poll_fn(|context| ticket.poll(context, || self.poll_accept(context))).await {
                Err(error) if is_exhausted(&error) => {
                    self.refuse(&error);
                    sleep(EXHAUSTED_RETRY_DELAY).await;
                }
                accepted => return accepted,
            }
        }
    }

    /// The next connection, or an error that may be of the kind [`is_exhausted`].
    pub fn poll_accept(&self, context: &Context<'_>) -> Poll<io::Result<Inner>> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let accepted = ready!(self.shared.driver.borrow_mut().poll_accept(self.key, context.waker()));
        self.shared.spend_budget(0);
        Poll::Ready(accepted.map(|key| Inner::new(Rc::clone(&self.shared), key)))
    }

    /// The same; a connection that is not to be kept is returned as a descriptor.
    pub fn poll_accept_if(
        &self,
        context: &Context<'_>,
        keeps: impl FnOnce() -> bool,
    ) -> Poll<io::Result<Accepted>> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let accepted =
            ready!(self.shared.driver.borrow_mut().poll_accept_if(self.key, context.waker(), keeps));
        self.shared.spend_budget(0);
        Poll::Ready(accepted.map(|accepted| match accepted {
            driver::Accepted::Stream(key) => Accepted::Stream(Inner::new(Rc::clone(&self.shared), key)),
            driver::Accepted::Descriptor(descriptor) => Accepted::Descriptor(descriptor),
        }))
    }

    /// Sets whether connections may be accepted before the program asks for them.
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.shared.driver.borrow_mut().set_accept_ahead(self.key, accepts_ahead);
    }

    /// Refuses who waits, for want of descriptors.
    pub fn refuse(&self, error: &io::Error) {
        let refused = self.shared.driver.borrow_mut().refuse(self.key);
        warn_exhausted(error, refused);
    }

    /// Closes it; what the kernel has accepted for it already goes to the sink, whose wakers are the caller's to call.
    pub fn close_with_sink(self, sink: Arc<dyn AcceptSink>) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            // Dropped with something that the driver drops.
            let shared = Rc::clone(&self.shared);
            return shared.spawn(async move { self.close_with_sink(sink) }).detach();
        };
        driver.release_listener_to(self.key, sink);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Listener").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            return self.shared.release_deferred(self.key, Self::new);
        };
        driver.release_listener(self.key);
        drop(driver);
        // Until the kernel has let go of it, it listens: who binds the address next would find it in use.
        self.shared.flush_driver();
    }
}

/// Whether the process or the system has no descriptors or memory left for a connection.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// How often the process logs that it has no descriptors left.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// When the process warned last, and what it has not logged since then.
static WARNED: Mutex<Warned> = Mutex::new(Warned { at: None, refused: 0, suppressed: 0 });

struct Warned {
    at: Option<Instant>,
    refused: usize,
    suppressed: u64,
}

/// Names cause and remedy, once in [`WARNING_INTERVAL`] for all threads: a shortage lasts, and every listener meets it
/// again after each [`EXHAUSTED_RETRY_DELAY`].
#[cold]
pub(super) fn warn_exhausted(error: &io::Error, refused: usize) {
    let (refused, suppressed) = {
        let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        warned.refused += refused;
        let now = Instant::now();
        if warned.at.is_some_and(|at| now.saturating_duration_since(at) < WARNING_INTERVAL) {
            warned.suppressed += 1;
            return;
        }
        let before = std::mem::replace(&mut *warned, Warned { at: Some(now), refused: 0, suppressed: 0 });
        (before.refused, before.suppressed)
    };
    tracing::warn!(%error, refused, suppressed, "no descriptors left: raise the limit of open files (ulimit -n)");
}
