//! The end of a connection from outside of its task, where that waits for something else than its socket: for a handler,
//! for the next piece of what one answers, or for what speaks another protocol. The socket's end wakes nobody then.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Poll, Waker};

/// Who has ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelReason {
    /// A deadline.
    Deadline,
    /// The server, that ends.
    ServerShutdown,
    /// The client, by a reset.
    ClientReset,
}

/// Whether a connection was ended, and whom to wake then.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    reason: Cell<Option<CancelReason>>,
    /// There while a handler, or what it has left behind, is waited for, which most requests are not.
    waker: RefCell<Option<Waker>>,
    /// Whether what is waited for has to do with the client: another protocol ends a connection by itself.
    cancel_on_client_reset: Cell<bool>,
}

impl Cancellation {
    /// The connection was ended. Who ends it first has done it.
    pub fn set(&self, reason: CancelReason) {
        if self.reason.get().is_none() {
            self.reason.set(Some(reason));
        }
        // Not borrowed meanwhile: a waker may do anything.
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn get(&self) -> Option<CancelReason> {
        self.reason.get()
    }

    /// Whether a handler, or what it answers, is waited for, which is in vain when the client is gone.
    pub fn has_pending_handler(&self) -> bool {
        self.cancel_on_client_reset.get() && self.waker.borrow().is_some()
    }

    /// Has whoever waits look again at what else there is to do.
    pub fn wake(&self) {
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Awaits a handler, or what it answers, until the connection is ended: then it is not polled again.
    pub async fn run_until_cancelled<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        self.cancel_on_client_reset.set(true);
        self.run_until(future).await
    }

    /// Awaits what speaks another protocol, until the server ends.
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
            // Before the handler has the word, which may end the server.
            self.register_waker(context.waker());
            future.as_mut().poll(context).map(Ok)
        });
        result.await
    }

    fn register_waker(&self, waker: &Waker) {
        if self
            .waker
            .borrow()
            .as_ref()
            .is_some_and(|run_until_cancelled| run_until_cancelled.will_wake(waker))
        {
            return;
        }
        let run_until_cancelled = self.waker.replace(Some(waker.clone()));
        drop(run_until_cancelled);
    }
}

/// Nobody waits any more when this is dropped.
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
        // The program's concern: it takes too long, or waits for what does not come.
        CancelReason::Deadline => tracing::warn!("{reason}"),
        CancelReason::ServerShutdown | CancelReason::ClientReset => tracing::debug!("{reason}"),
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, reason)
}

impl fmt::Display for CancelReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Deadline => {
                "a handler, or the body that it streamed, was dropped: its request took longer than the options' \
                 request_timeout"
            }
            Self::ServerShutdown => "a handler, or what it had answered with, was dropped: the server has ended",
            Self::ClientReset => "a handler, or what it had answered with, was dropped: the client has reset the connection",
        })
    }
}

impl Error for CancelReason {}
