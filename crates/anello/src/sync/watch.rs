//! The latest of several values, for any number of senders and receivers: for example a configuration that can change.
//!
//! A receiver sees the latest value, and can wait until there is one that it has not seen. Values in between may be
//! skipped.
//!
//! ```
//! # anello::Runtime::new()?.block_on(async {
//! use anello::sync::watch;
//!
//! let (sender, mut receiver) = watch::channel("starting");
//! anello::spawn(async move { sender.send("ready") }).detach();
//! receiver.wait_for(|state| *state == "ready").await.expect("a sender exists until it has sent");
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```

use std::future::Future;

pub use tokio::sync::watch::{Ref, error};

use self::error::{RecvError, SendError};
use super::delegate::delegate;
use crate::executor::Coop;

/// Replaces the value; see [`channel`]. Can be cloned.
pub type Sender<T> = Coop<tokio::sync::watch::Sender<T>>;

/// Reads the latest value; see [`channel`]. Can be cloned.
pub type Receiver<T> = Coop<tokio::sync::watch::Receiver<T>>;

/// Creates a channel with an initial value, which the receiver has seen.
pub fn channel<T>(initial: T) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::watch::channel(initial);
    (Coop(sender), Coop(receiver))
}

delegate! {
    impl[T] Sender<T> {
        /// Replaces the value, and wakes all waiting receivers.
        ///
        /// # Errors
        /// Returns the new value if there are no receivers. [`send_replace`](Self::send_replace) replaces the value
        /// even then.
        direct fn send(&self, value: T) -> Result<(), SendError<T>>;

        /// Changes the value in place, and wakes all waiting receivers. If `modify` panics, the panic is propagated and
        /// no receiver is woken. `modify` must not use the channel.
        direct fn send_modify(&self, modify: impl FnOnce(&mut T));

        /// Changes the value in place, and wakes all waiting receivers if `modify` returns `true`. Returns the result
        /// of `modify`, which must not use the channel.
        direct fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool;

        /// Replaces the value, wakes all waiting receivers, and returns the previous value.
        direct fn send_replace(&self, value: T) -> T;

        /// Returns the latest value. Senders wait, and block their thread, until the result is dropped: it must not be
        /// held across an await point.
        direct fn borrow(&self) -> Ref<'_, T>;

        /// Waits until there are no receivers. Cancel-safe.
        async fn closed(&self);

        /// Returns whether there are no receivers.
        direct fn is_closed(&self) -> bool;

        /// Returns the number of receivers.
        direct fn receiver_count(&self) -> usize;

        /// Returns the number of senders.
        direct fn sender_count(&self) -> usize;
    }
}

impl<T> Sender<T> {
    /// Creates a sender with an initial value and without receivers.
    pub fn new(initial: T) -> Self {
        Coop(tokio::sync::watch::Sender::new(initial))
    }

    /// Creates a receiver, which has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        Coop(self.0.subscribe())
    }

    /// Returns whether both belong to the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

delegate! {
    impl[T] Receiver<T> {
        /// Waits for a value that this receiver has not seen, and marks it as seen. Cancel-safe: a value is marked only
        /// when the future completes.
        ///
        /// # Errors
        /// Returns an error if all senders have been dropped and the receiver has seen the last value.
        async fn changed(&mut self) -> Result<(), RecvError>;

        /// Waits until the latest value satisfies the condition, beginning with the current one, and returns it. It is
        /// then marked as seen, and senders wait as for [`borrow`](Self::borrow). Cancel-safe.
        ///
        /// # Errors
        /// Returns an error if all senders have been dropped and the last value does not satisfy the condition.
        ///
        /// # Panics
        /// The future panics if the condition panics.
        async fn wait_for(&mut self, condition: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, RecvError>;

        /// Returns the latest value without marking it as seen. Senders wait, and block their thread, until the result
        /// is dropped: it must not be held across an await point.
        direct fn borrow(&self) -> Ref<'_, T>;

        /// Returns the latest value and marks it as seen; otherwise like [`borrow`](Self::borrow).
        direct fn borrow_and_update(&mut self) -> Ref<'_, T>;

        /// Returns whether there is a value that this receiver has not seen.
        ///
        /// # Errors
        /// Returns an error if all senders have been dropped.
        direct fn has_changed(&self) -> Result<bool, RecvError>;

        /// Returns whether all senders have been dropped.
        direct fn is_closed(&self) -> bool;

        /// Marks the current value as not seen.
        direct fn mark_changed(&mut self);

        /// Marks the current value as seen.
        direct fn mark_unchanged(&mut self);
    }
}

impl<T> Receiver<T> {
    /// Returns whether both belong to the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}
