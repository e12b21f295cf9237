//! Cancellation of a connection whose task is not waiting for its socket, but for a handler, the next chunk of a
//! streamed response, or the handler of an upgraded connection. In these states, closing the socket wakes no task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Poll, Waker};

/// The reason why a connection was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CancelReason {
    #[error("handler or response body cancelled: request_timeout exceeded")]
    Deadline,
    #[error("handler or response body cancelled: server shutting down")]
    ServerShutdown,
    #[error("handler or response body cancelled: connection reset by client")]
    ClientReset,
}

/// The cancellation state of a connection, and the task to wake.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    reason: Cell<Option<CancelReason>>,
    /// Set while the task is waiting for a handler or a response body. Most requests complete without waiting.
    waker: RefCell<Option<Waker>>,
    /// `true` if a client reset cancels the wait. An upgraded connection detects the reset itself.
    cancel_on_client_reset: Cell<bool>,
}

impl Cancellation {
    /// Cancels the connection. The first reason is kept.
    pub fn set(&self, reason: CancelReason) {
        if self.reason.get().is_none() {
            self.reason.set(Some(reason));
        }
        // Not borrowed during the wake-up: a waker can run arbitrary code.
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn get(&self) -> Option<CancelReason> {
        self.reason.get()
    }

    /// Returns `true` if the task is waiting for a handler or a response body that is no longer needed once the client
    /// has disconnected.
    pub fn has_pending_handler(&self) -> bool {
        self.cancel_on_client_reset.get() && self.waker.borrow().is_some()
    }

    /// Wakes the waiting task so that it checks for other work.
    pub fn wake(&self) {
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Awaits a handler or a response body until the connection is cancelled. The future is not polled again after
    /// that.
    pub async fn run_until_cancelled<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        self.cancel_on_client_reset.set(true);
        self.run_until(future).await
    }

    /// Awaits the handler of an upgraded connection until the server shuts down.
    pub async fn run_until_shutdown<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        self.cancel_on_client_reset.set(false);
        self.run_until(future).await
    }

    async fn run_until<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        let mut future = pin!(future);
        let _clear_waker = ClearWakerOnDrop(self);
        let result = poll_fn(|context| {
            if let Some(reason) = self.reason.get() {
                return Poll::Ready(Err(cancelled_error(reason)));
            }
            // Registered before the poll, because the handler itself can shut down the server.
            self.register_waker(context.waker());
            future.as_mut().poll(context).map(Ok)
        });
        result.await
    }

    fn register_waker(&self, waker: &Waker) {
        let is_registered =
            self.waker.borrow().as_ref().is_some_and(|registered| registered.will_wake(waker));
        if is_registered {
            return;
        }
        let previous = self.waker.replace(Some(waker.clone()));
        drop(previous);
    }
}

/// Removes the waker when the wait ends.
struct ClearWakerOnDrop<'a>(&'a Cancellation);

impl Drop for ClearWakerOnDrop<'_> {
    fn drop(&mut self) {
        let waker = self.0.waker.take();
        drop(waker);
    }
}

#[cold]
fn cancelled_error(reason: CancelReason) -> io::Error {
    match reason {
        // Logged as a warning, because the handler takes too long or waits for an event that does not occur.
        CancelReason::Deadline => tracing::warn!("{reason}"),
        CancelReason::ServerShutdown | CancelReason::ClientReset => tracing::debug!("{reason}"),
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, reason)
}
