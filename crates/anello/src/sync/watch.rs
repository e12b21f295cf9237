//! The latest value, from several senders to several receivers.
//!
//! A receiver that is slower than the senders sees only the latest value. Suitable for a state that others follow, such
//! as a configuration.
//!
//! ```
//! # anello::example! {
//! use anello::sync::watch;
//!
//! let (sender, mut receiver) = watch::channel("starting");
//! anello::spawn(async move { sender.send("ready") }).detach();
//! receiver.wait_for(|state| *state == "ready").await?;
//! assert!(receiver.changed().await.is_err(), "the sender has been dropped");
//! # }
//! ```

use std::future::Future;

#[doc(inline)]
pub use tokio::sync::watch::{Ref, error};

use self::error::RecvError;
use crate::executor::cooperative;

/// Changes the value; see [`channel`]. Contains tokio's type.
#[derive(Default)]
pub struct Sender<T>(tokio::sync::watch::Sender<T>);

/// Reads the value and waits for changes, on the budget of its task. Contains tokio's type.
pub struct Receiver<T>(tokio::sync::watch::Receiver<T>);

contain!(Sender, tokio::sync::watch::Sender);
contain!(Receiver, tokio::sync::watch::Receiver);

/// Creates a channel with an initial value, which the receiver has seen.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::watch::channel(value);
    (Sender(sender), Receiver(receiver))
}

impl<T> Sender<T> {
    /// Creates a channel without receivers; see [`channel`].
    pub fn new(value: T) -> Self {
        Self(tokio::sync::watch::Sender::new(value))
    }

    /// Creates a receiver, which has seen the current value.
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

impl<T> Receiver<T> {
    /// Waits for a value that this receiver has not seen, and marks it as seen. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if all senders have been dropped and the last value has been seen.
    pub fn changed(&mut self) -> impl Future<Output = Result<(), RecvError>> {
        cooperative(self.0.changed())
    }

    /// Waits until the value, which may be the current one, fulfils a condition, and marks it as seen. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if all senders have been dropped and the last value does not fulfil the condition.
    pub fn wait_for(
        &mut self,
        condition: impl FnMut(&T) -> bool,
    ) -> impl Future<Output = Result<Ref<'_, T>, RecvError>> {
        cooperative(self.0.wait_for(condition))
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
