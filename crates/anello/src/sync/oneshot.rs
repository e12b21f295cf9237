//! One value from one sender to one receiver, for example the result of a request to another task.
//!
//! ```
//! # anello::Runtime::new()?.block_on(async {
//! use anello::sync::oneshot;
//!
//! let (sender, receiver) = oneshot::channel();
//! anello::spawn(async move { sender.send(6 * 7) }).detach();
//! assert_eq!(receiver.await, Ok(42));
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```

use std::future::Future;
use std::task::{Context, Poll};

pub use tokio::sync::oneshot::error;

use self::error::{RecvError, TryRecvError};
use super::delegate::delegate;
use crate::executor::{Coop, poll_cooperatively};

/// Sends the value; see [`channel`].
pub type Sender<T> = Coop<tokio::sync::oneshot::Sender<T>>;

/// Receives the value; see [`channel`]. It is a future that returns the value, or an error if the sender is dropped
/// without having sent one. Awaiting `&mut receiver` is cancel-safe.
pub type Receiver<T> = Coop<tokio::sync::oneshot::Receiver<T>>;

/// Creates a channel for one value.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    (Coop(sender), Coop(receiver))
}

delegate! {
    impl[T] Sender<T> {
        /// Sends the value. Does not wait.
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        direct fn send(self, value: T) -> Result<(), T>;

        /// Waits until the receiver has been closed or dropped. Cancel-safe.
        async fn closed(&mut self);

        /// Returns whether the receiver has been closed or dropped.
        direct fn is_closed(&self) -> bool;
    }
}

impl<T> Sender<T> {
    /// Polls like [`closed`](Self::closed).
    pub fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        poll_cooperatively(context, |context| self.0.poll_closed(context), |()| 0)
    }
}

delegate! {
    impl[T] Receiver<T> {
        /// Prevents the sender from sending a value. A value that has been sent can still be received.
        direct fn close(&mut self);

        /// Returns whether the value or an error has been received.
        direct fn is_terminated(&self) -> bool;

        /// Returns whether no value can be received at present.
        direct fn is_empty(&self) -> bool;

        /// Returns the value without waiting.
        ///
        /// # Errors
        /// Returns `Empty` if no value has been sent yet, or `Closed` if none can be received any more.
        direct fn try_recv(&mut self) -> Result<T, TryRecvError>;

        /// Receives the value, and blocks the thread until it has been sent. For threads without a runtime.
        ///
        /// # Errors
        /// Returns an error if the sender is dropped without having sent a value.
        blocking fn blocking_recv(self) -> Result<T, RecvError>;
    }
}
