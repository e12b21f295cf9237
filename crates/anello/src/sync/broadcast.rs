//! Queue of values from several senders to several receivers, each of which receives a clone of every value.
//!
//! The queue is bounded, and senders do not wait: when it is full, the oldest value is dropped, and receivers that have
//! not received it yet get the error `Lagged` with the number of values that they have missed.
//!
//! ```
//! # anello::Runtime::new()?.block_on(async {
//! use anello::sync::broadcast;
//!
//! let (sender, mut one) = broadcast::channel(16);
//! let mut other = sender.subscribe();
//! sender.send("ciao").expect("two receivers");
//! assert_eq!(one.recv().await, Ok("ciao"));
//! assert_eq!(other.recv().await, Ok("ciao"));
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```

use std::future::Future;

pub use tokio::sync::broadcast::error;

use self::error::{RecvError, SendError, TryRecvError};
use super::delegate::delegate;
use crate::executor::Coop;

/// Sends values to all receivers; see [`channel`]. Can be cloned.
pub type Sender<T> = Coop<tokio::sync::broadcast::Sender<T>>;

/// Receives all values that are sent after its creation; see [`channel`].
pub type Receiver<T> = Coop<tokio::sync::broadcast::Receiver<T>>;

/// Reference to a [`Sender`] that does not keep the channel open.
pub type WeakSender<T> = Coop<tokio::sync::broadcast::WeakSender<T>>;

/// Creates a channel that keeps at least the last `capacity` values (rounded up to a power of two) for receivers that
/// have not received them yet.
///
/// # Panics
/// Panics if `capacity` is 0 or greater than `usize::MAX / 2`.
#[track_caller]
pub fn channel<T: Clone>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::broadcast::channel(capacity);
    (Coop(sender), Coop(receiver))
}

delegate! {
    impl[T] Sender<T> {
        /// Sends a value to all receivers, and returns their number. Does not wait and does not consume budget.
        ///
        /// # Errors
        /// Returns the value if there are no receivers. Later values can be sent to new ones.
        direct fn send(&self, value: T) -> Result<usize, SendError<T>>;

        /// Returns the number of values that at least one receiver has not received yet.
        direct fn len(&self) -> usize;

        /// Returns whether all receivers have received all values.
        direct fn is_empty(&self) -> bool;

        /// Returns the number of receivers.
        direct fn receiver_count(&self) -> usize;

        /// Waits until there are no receivers. Cancel-safe.
        async fn closed(&self);

        /// Returns the number of senders.
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        direct fn weak_count(&self) -> usize;
    }
}

impl<T> Sender<T> {
    /// Creates a channel without receivers; see [`channel`].
    ///
    /// # Panics
    /// Panics if `capacity` is 0 or greater than `usize::MAX / 2`.
    #[track_caller]
    pub fn new(capacity: usize) -> Self {
        Coop(tokio::sync::broadcast::Sender::new(capacity))
    }

    /// Creates a receiver of the values that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        Coop(self.0.subscribe())
    }

    /// Returns whether both belong to the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Returns a reference that does not keep the channel open.
    #[must_use]
    pub fn downgrade(&self) -> WeakSender<T> {
        Coop(self.0.downgrade())
    }
}

impl<T> WeakSender<T> {
    /// Returns a sender, or `None` if all senders have been dropped.
    pub fn upgrade(&self) -> Option<Sender<T>> {
        self.0.upgrade().map(Coop)
    }
}

delegate! {
    impl[T] WeakSender<T> {
        /// Returns the number of senders.
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        direct fn weak_count(&self) -> usize;
    }
}

delegate! {
    impl[T] Receiver<T> {
        /// Returns the number of values that this receiver has not received yet.
        direct fn len(&self) -> usize;

        /// Returns whether this receiver has received all values.
        direct fn is_empty(&self) -> bool;

        /// Returns whether all senders have been dropped.
        direct fn is_closed(&self) -> bool;

        /// Returns the number of senders.
        direct fn sender_strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        direct fn sender_weak_count(&self) -> usize;
    }
}

delegate! {
    impl[T: Clone] Receiver<T> {
        /// Receives the next value. Cancel-safe: no value is lost.
        ///
        /// # Errors
        /// Returns `Lagged` if values have been dropped before this receiver received them; the next call then returns
        /// the oldest value that is left. Returns `Closed` if all senders have been dropped and all values have been
        /// received.
        async fn recv(&mut self) -> Result<T, RecvError>;

        /// Returns the next value without waiting.
        ///
        /// # Errors
        /// Returns `Empty` if there is no value, and otherwise the errors of [`recv`](Self::recv).
        direct fn try_recv(&mut self) -> Result<T, TryRecvError>;

        /// Receives the next value, and blocks the thread until there is one. For threads without a runtime.
        ///
        /// # Errors
        /// See [`recv`](Self::recv).
        blocking fn blocking_recv(&mut self) -> Result<T, RecvError>;
    }
}

impl<T: Clone> Receiver<T> {
    /// Creates a receiver of the values that are sent from now on.
    #[must_use]
    pub fn resubscribe(&self) -> Self {
        Coop(self.0.resubscribe())
    }
}

impl<T> Receiver<T> {
    /// Returns whether both belong to the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}
