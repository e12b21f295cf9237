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
pub(crate) enum End {
    /// A deadline.
    Deadline,
    /// The server, that ends.
    Server,
    /// The client, by a reset.
    Client,
}

/// Whether a connection was ended, and whom to wake then.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    end: Cell<Option<End>>,
    /// There while a handler, or what it has left behind, is waited for, which most requests are not.
    waker: RefCell<Option<Waker>>,
    /// Whether what is waited for has to do with the client: another protocol ends a connection by itself.
    heeds_client: Cell<bool>,
}

impl Ending {
    /// The connection was ended. Who ends it first has done it.
    pub fn set(&self, end: End) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        // Not borrowed meanwhile: a waker may do anything.
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn get(&self) -> Option<End> {
        self.end.get()
    }

    /// Whether a handler, or what it answers, is waited for, which is in vain when the client is gone.
    pub fn is_awaited(&self) -> bool {
        self.heeds_client.get() && self.waker.borrow().is_some()
    }

    /// Has whoever waits look again at what else there is to do.
    pub fn wake(&self) {
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Awaits a handler, or what it answers, until the connection is ended: then it is not polled again.
    pub async fn before<T>(&self, handling: impl Future<Output = T>) -> io::Result<T> {
        self.heeds_client.set(true);
        self.before_any(handling).await
    }

    /// Awaits what speaks another protocol, until the server ends.
    pub async fn before_server_ends<T>(&self, speaking: impl Future<Output = T>) -> io::Result<T> {
        self.heeds_client.set(false);
        self.before_any(speaking).await
    }

    async fn before_any<T>(&self, handling: impl Future<Output = T>) -> io::Result<T> {
        let mut handling = pin!(handling);
        let _forgets = Forgets(self);
        let result = poll_fn(|context| {
            if let Some(end) = self.end.get() {
                return Poll::Ready(Err(given_up(end)));
            }
            // Before the handler has the word, which may end the server.
            self.wake_with(context.waker());
            handling.as_mut().poll(context).map(Ok)
        });
        result.await
    }

    fn wake_with(&self, waker: &Waker) {
        if self.waker.borrow().as_ref().is_some_and(|before| before.will_wake(waker)) {
            return;
        }
        let before = self.waker.replace(Some(waker.clone()));
        drop(before);
    }
}

/// Nobody waits any more when this is dropped.
struct Forgets<'a>(&'a Ending);

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        let waker = self.0.waker.take();
        drop(waker);
    }
}

#[cold]
fn given_up(end: End) -> io::Error {
    match end {
        // The program's concern: it takes too long, or waits for what does not come.
        End::Deadline => tracing::warn!("{end}"),
        End::Server | End::Client => tracing::debug!("{end}"),
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, end)
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Deadline => {
                "a handler, or the body that it streamed, was dropped: its request took longer than the options' \
                 request_timeout"
            }
            Self::Server => "a handler, or what it had answered with, was dropped: the server has ended",
            Self::Client => "a handler, or what it had answered with, was dropped: the client has reset the connection",
        })
    }
}

impl Error for End {}
