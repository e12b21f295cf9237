//! Listening sockets of all address families.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::family::StreamFamily;
use super::wait_queue::WaitQueue;
use crate::driver::{self, AcceptSink, Key, PollIo};
use crate::executor::{Shared, current};
use crate::time::sleep;

/// Backlog: number of connections that the kernel queues until they are accepted.
pub(super) const BACKLOG: u32 = 4096;

/// Delay before a listener retries when the process has no descriptors left: long enough to avoid a busy loop, and
/// short enough to recover without noticeable delay.
pub(super) const EXHAUSTED_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Result of an accept.
pub(super) enum Accepted {
    Stream(Connection),
    /// Descriptor in blocking mode, not registered with this driver.
    Descriptor(OwnedFd),
}

pub(super) struct Listener {
    shared: Rc<Shared>,
    key: Key,
    wait_queue: WaitQueue,
}

impl Listener {
    pub fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key, wait_queue: WaitQueue::default() }
    }

    pub fn import(descriptor: OwnedFd) -> io::Result<Self> {
        let shared = current();
        let key = shared.driver.borrow_mut().import_listener(descriptor)?;
        Ok(Self::new(shared, key))
    }

    /// Declares that other workers also accept from this socket.
    pub fn share(&self) {
        self.shared.driver.borrow_mut().share_listener(self.key);
    }

    pub fn address<F: StreamFamily>(&self) -> io::Result<F::Address> {
        F::address(&self.shared.driver.borrow().listener_address(self.key)?)
    }

    /// Accepts the next connection. Pauses while no descriptors are available.
    pub async fn accept(&self) -> io::Result<Connection> {
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

    /// Polls for the next connection. Also returns errors for which [`is_exhausted`] is `true`.
    pub fn poll_accept(&self, context: &Context<'_>) -> PollIo<Connection> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let accepted = ready!(self.shared.driver.borrow_mut().poll_accept(self.key, context.waker()));
        self.shared.spend_budget(0);
        Poll::Ready(accepted.map(|key| Connection::new(Rc::clone(&self.shared), key)))
    }

    /// Polls like `poll_accept`, but returns the connection as a descriptor if `keeps` returns `false`.
    pub fn poll_accept_if(&self, context: &Context<'_>, keeps: impl FnOnce() -> bool) -> PollIo<Accepted> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        let accepted =
            ready!(self.shared.driver.borrow_mut().poll_accept_if(self.key, context.waker(), keeps));
        self.shared.spend_budget(0);
        Poll::Ready(accepted.map(|accepted| match accepted {
            driver::Accepted::Stream(key) => Accepted::Stream(Connection::new(Rc::clone(&self.shared), key)),
            driver::Accepted::Descriptor(descriptor) => Accepted::Descriptor(descriptor),
        }))
    }

    /// Sets whether connections may be accepted before the application calls `accept`.
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.shared.driver.borrow_mut().set_accept_ahead(self.key, accepts_ahead);
    }

    /// Rejects pending clients because no descriptors are available.
    pub fn refuse(&self, error: &io::Error) {
        let refused = self.shared.driver.borrow_mut().refuse(self.key);
        warn_exhausted(error, refused);
    }

    /// Closes the listener. Connections that the kernel has already accepted for it go to the sink. The caller must
    /// call the sink's wakers.
    pub fn close_with_sink(self, sink: Arc<dyn AcceptSink>) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            // The driver is already borrowed: it is dropping an object that owns this listener.
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
        // The socket keeps listening until the kernel has released it. Without the flush, binding to the address again
        // would fail.
        self.shared.flush_driver();
    }
}

/// Returns whether the process or the system has run out of descriptors or memory for a connection.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// Minimum interval between warnings about exhausted descriptors.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Time of the last warning, and the counts since then that have not been logged.
static WARNED: Mutex<Warned> = Mutex::new(Warned { at: None, refused: 0, suppressed: 0 });

struct Warned {
    at: Option<Instant>,
    refused: usize,
    suppressed: u64,
}

/// Logs the cause and a remedy, at most once per [`WARNING_INTERVAL`] in the whole process. Exhaustion usually
/// persists, and every listener encounters it again after each [`EXHAUSTED_RETRY_DELAY`].
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
        let reported = std::mem::replace(&mut *warned, Warned { at: Some(now), refused: 0, suppressed: 0 });
        (reported.refused, reported.suppressed)
    };
    tracing::warn!(%error, refused, suppressed, "cannot accept connections: file descriptors exhausted (raise ulimit -n)");
}
