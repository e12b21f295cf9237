//! Queue of values from several senders to several receivers, each of which receives a clone of every value.
//!
//! The queue is bounded, and senders do not wait: when it is full, the oldest value is dropped, and receivers that have
//! not received it yet get the error `Lagged` with the number of values that they have missed.
//!
//! ```
//! # anello::example! {
//! use anello::sync::broadcast;
//!
//! let (sender, mut one) = broadcast::channel(16);
//! let mut other = sender.subscribe();
//! sender.send("ciao").expect("two receivers");
//! assert_eq!(one.recv().await, Ok("ciao"));
//! assert_eq!(other.recv().await, Ok("ciao"));
//! # }
//! ```

use std::future::Future;

#[doc(inline)]
pub use tokio::sync::broadcast::{WeakSender, error};

use self::error::RecvError;
use crate::executor::{assert_may_block, cooperative};

/// Sends values to all receivers; see [`channel`]. Contains tokio's type.
pub struct Sender<T>(tokio::sync::broadcast::Sender<T>);

/// Receives all values that are sent after its creation, on the budget of its task. Contains tokio's type.
pub struct Receiver<T>(tokio::sync::broadcast::Receiver<T>);

contain!(Sender, tokio::sync::broadcast::Sender);
contain!(Receiver, tokio::sync::broadcast::Receiver);

/// Creates a channel that keeps at least the last `capacity` values (rounded up to a power of two) for receivers that
/// have not received them yet.
///
/// # Panics
/// Panics if `capacity` is 0 or greater than `usize::MAX / 2`.
#[track_caller]
pub fn channel<T: Clone>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::broadcast::channel(capacity);
    (Sender(sender), Receiver(receiver))
}

impl<T> Sender<T> {
    /// Creates a channel without receivers; see [`channel`].
    ///
    /// # Panics
    /// Panics if `capacity` is 0 or greater than `usize::MAX / 2`.
    #[track_caller]
    pub fn new(capacity: usize) -> Self {
        Self(tokio::sync::broadcast::Sender::new(capacity))
    }

    /// Creates a receiver of the values that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver(self.0.subscribe())
    }

    /// Waits until all receivers have been dropped, on the budget of the task. Cancel-safe.
    pub fn closed(&self) -> impl Future<Output = ()> {
        cooperative(self.0.closed())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> Receiver<T> {
    /// Receives the next value. Cancel-safe: no value is lost.
    ///
    /// # Errors
    /// Returns `Lagged` if values have been dropped before this receiver received them; the next call then returns
    /// the oldest value that is left. Returns `Closed` if all senders have been dropped and all values have been
    /// received.
    pub fn recv(&mut self) -> impl Future<Output = Result<T, RecvError>> {
        cooperative(self.0.recv())
    }

    /// Receives the next value like [`recv`](Self::recv), and blocks the thread until it has been sent.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    ///
    /// # Panics
    /// Panics if a runtime is running on this thread.
    #[track_caller]
    pub fn blocking_recv(&mut self) -> Result<T, RecvError> {
        assert_may_block("blocking_recv");
        self.0.blocking_recv()
    }

    /// Creates a receiver of the values that are sent from now on.
    #[must_use]
    pub fn resubscribe(&self) -> Self {
        Self(self.0.resubscribe())
    }
}
