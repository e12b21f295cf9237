//! Queue of values from several senders to one receiver.
//!
//! [`channel`] creates a bounded queue: senders wait while it is full, in the order in which they began to wait.
//! [`unbounded_channel`] creates a queue whose length is limited only by memory; prefer the bounded one, which makes
//! fast senders wait for slow receivers.
//!
//! Between tasks of one worker, [`local::mpsc`](crate::sync::local::mpsc) costs less.
//!
//! ```
//! # anello::Runtime::new()?.block_on(async {
//! use anello::sync::mpsc;
//!
//! let (sender, mut receiver) = mpsc::channel(16);
//! for worker in 0..3 {
//!     let sender = sender.clone();
//!     anello::spawn(async move { sender.send(worker).await }).detach();
//! }
//! drop(sender);
//! let mut sum = 0;
//! while let Some(worker) = receiver.recv().await {
//!     sum += worker;
//! }
//! assert_eq!(sum, 3);
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```

use std::future::Future;
use std::task::{Context, Poll};
use std::time::Duration;

pub use tokio::sync::mpsc::{Permit, PermitIterator};

use self::error::{SendError, SendTimeoutError, TryRecvError, TrySendError};
use super::delegate::delegate;
use crate::executor::{Coop, poll_cooperatively};
use crate::time::timeout;

/// Errors of senders and receivers.
pub mod error {
    use std::fmt;

    pub use tokio::sync::mpsc::error::{SendError, TryRecvError, TrySendError};

    /// Error of [`Sender::send_timeout`](super::Sender::send_timeout), with the value.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum SendTimeoutError<T> {
        /// The queue was full for the whole time.
        Timeout(T),
        /// The receiver has been closed or dropped.
        Closed(T),
    }

    impl<T> SendTimeoutError<T> {
        /// Returns the value that was not sent.
        pub fn into_inner(self) -> T {
            match self {
                Self::Timeout(value) | Self::Closed(value) => value,
            }
        }
    }

    impl<T> fmt::Debug for SendTimeoutError<T> {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Timeout(_) => formatter.write_str("Timeout(..)"),
                Self::Closed(_) => formatter.write_str("Closed(..)"),
            }
        }
    }

    impl<T> fmt::Display for SendTimeoutError<T> {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(match self {
                Self::Timeout(_) => "timed out waiting for a free place in the channel",
                Self::Closed(_) => "channel closed",
            })
        }
    }

    impl<T> std::error::Error for SendTimeoutError<T> {}
}

/// Sends values to a bounded queue; see [`channel`]. Can be cloned.
pub type Sender<T> = Coop<tokio::sync::mpsc::Sender<T>>;

/// Receives the values of a bounded queue; see [`channel`]. Dropping it closes the queue.
pub type Receiver<T> = Coop<tokio::sync::mpsc::Receiver<T>>;

/// Reference to a [`Sender`] that does not keep the queue open.
pub type WeakSender<T> = Coop<tokio::sync::mpsc::WeakSender<T>>;

/// Place in a bounded queue, with the [`Sender`] that has reserved it.
pub type OwnedPermit<T> = Coop<tokio::sync::mpsc::OwnedPermit<T>>;

/// Sends values to an unbounded queue; see [`unbounded_channel`]. Can be cloned.
pub type UnboundedSender<T> = Coop<tokio::sync::mpsc::UnboundedSender<T>>;

/// Receives the values of an unbounded queue; see [`unbounded_channel`]. Dropping it closes the queue.
pub type UnboundedReceiver<T> = Coop<tokio::sync::mpsc::UnboundedReceiver<T>>;

/// Reference to an [`UnboundedSender`] that does not keep the queue open.
pub type WeakUnboundedSender<T> = Coop<tokio::sync::mpsc::WeakUnboundedSender<T>>;

/// Creates a queue that holds at most `capacity` values.
///
/// # Panics
/// Panics if `capacity` is 0 or greater than `usize::MAX >> 3`.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::mpsc::channel(capacity);
    (Coop(sender), Coop(receiver))
}

/// Creates a queue without a limit.
pub fn unbounded_channel<T>() -> (UnboundedSender<T>, UnboundedReceiver<T>) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (Coop(sender), Coop(receiver))
}

delegate! {
    impl[T] Sender<T> {
        /// Sends a value, and waits for a free place in the queue. Cancel-safe: if the future is dropped before it
        /// completes, the value has not been sent and is dropped with it. [`reserve`](Self::reserve) keeps the value.
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        async fn send(&self, value: T) -> Result<(), SendError<T>>;

        /// Sends a value if the queue has a free place.
        ///
        /// # Errors
        /// Returns the value if the queue is full, or if the receiver has been closed or dropped.
        direct fn try_send(&self, value: T) -> Result<(), TrySendError<T>>;

        /// Sends a value, and blocks the thread until the queue has a free place. For threads without a runtime.
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        blocking fn blocking_send(&self, value: T) -> Result<(), SendError<T>>;

        /// Waits until the receiver has been closed or dropped. Cancel-safe.
        async fn closed(&self);

        /// Returns whether the receiver has been closed or dropped.
        direct fn is_closed(&self) -> bool;

        /// Waits for a free place in the queue and reserves it. Cancel-safe, but a dropped future loses its position
        /// among the waiting senders.
        ///
        /// # Errors
        /// Returns an error if the receiver has been closed or dropped.
        async fn reserve(&self) -> Result<Permit<'_, T>, SendError<()>>;

        /// Waits for `count` free places in the queue and reserves them. Cancel-safe like [`reserve`](Self::reserve).
        ///
        /// # Errors
        /// Returns an error if the receiver has been closed or dropped, or if the queue has fewer than `count` places.
        async fn reserve_many(&self, count: usize) -> Result<PermitIterator<'_, T>, SendError<()>>;

        /// Reserves a free place in the queue.
        ///
        /// # Errors
        /// Returns an error if the queue is full, or if the receiver has been closed or dropped.
        direct fn try_reserve(&self) -> Result<Permit<'_, T>, TrySendError<()>>;

        /// Reserves `count` free places in the queue.
        ///
        /// # Errors
        /// Returns an error if the queue has too few free places, or if the receiver has been closed or dropped.
        direct fn try_reserve_many(&self, count: usize) -> Result<PermitIterator<'_, T>, TrySendError<()>>;

        /// Returns the number of free places in the queue.
        direct fn capacity(&self) -> usize;

        /// Returns the number of places in the queue.
        direct fn max_capacity(&self) -> usize;

        /// Returns the number of senders.
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        direct fn weak_count(&self) -> usize;
    }
}

impl<T> Sender<T> {
    /// Sends a value, and waits for at most `limit` for a free place in the queue. Cancel-safe like
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// Returns the value if the queue was full for this time, or if the receiver has been closed or dropped.
    ///
    /// # Panics
    /// The future panics if no runtime is running on this thread.
    pub async fn send_timeout(&self, value: T, limit: Duration) -> Result<(), SendTimeoutError<T>> {
        match timeout(limit, self.reserve()).await {
            Ok(Ok(permit)) => {
                permit.send(value);
                Ok(())
            }
            Ok(Err(_)) => Err(SendTimeoutError::Closed(value)),
            Err(_) => Err(SendTimeoutError::Timeout(value)),
        }
    }

    /// Waits for a free place in the queue and reserves it. The permit owns the sender, and returns it when it is used.
    /// Not cancel-safe: the sender is dropped with the future.
    ///
    /// # Errors
    /// Returns an error if the receiver has been closed or dropped.
    pub async fn reserve_owned(self) -> Result<OwnedPermit<T>, SendError<()>> {
        crate::executor::cooperative(self.0.reserve_owned()).await.map(Coop)
    }

    /// Reserves a free place in the queue. The permit owns the sender, and returns it when it is used.
    ///
    /// # Errors
    /// Returns the sender if the queue is full, or if the receiver has been closed or dropped.
    pub fn try_reserve_owned(self) -> Result<OwnedPermit<T>, TrySendError<Self>> {
        match self.0.try_reserve_owned() {
            Ok(permit) => Ok(Coop(permit)),
            Err(TrySendError::Full(sender)) => Err(TrySendError::Full(Coop(sender))),
            Err(TrySendError::Closed(sender)) => Err(TrySendError::Closed(Coop(sender))),
        }
    }

    /// Returns whether both send to the same queue.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Returns a reference that does not keep the queue open.
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

impl<T> OwnedPermit<T> {
    /// Sends a value to the reserved place, and returns the sender.
    pub fn send(self, value: T) -> Sender<T> {
        Coop(self.0.send(value))
    }

    /// Releases the reserved place, and returns the sender.
    pub fn release(self) -> Sender<T> {
        Coop(self.0.release())
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

impl<T> UnboundedSender<T> {
    /// Returns whether both send to the same queue.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Returns a reference that does not keep the queue open.
    #[must_use]
    pub fn downgrade(&self) -> WeakUnboundedSender<T> {
        Coop(self.0.downgrade())
    }
}

delegate! {
    impl[T] UnboundedSender<T> {
        /// Sends a value. Does not wait and does not consume budget.
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        direct fn send(&self, value: T) -> Result<(), SendError<T>>;

        /// Waits until the receiver has been closed or dropped. Cancel-safe.
        async fn closed(&self);

        /// Returns whether the receiver has been closed or dropped.
        direct fn is_closed(&self) -> bool;

        /// Returns the number of senders.
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        direct fn weak_count(&self) -> usize;
    }
}

impl<T> WeakUnboundedSender<T> {
    /// Returns a sender, or `None` if all senders have been dropped.
    pub fn upgrade(&self) -> Option<UnboundedSender<T>> {
        self.0.upgrade().map(Coop)
    }
}

delegate! {
    impl[T] WeakUnboundedSender<T> {
        /// Returns the number of senders.
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        direct fn weak_count(&self) -> usize;
    }
}

/// Implements the methods that both receivers have.
macro_rules! impl_receiver {
    ($receiver:ident) => {
        delegate! {
            impl[T] $receiver<T> {
                /// Receives the next value. Returns `None` when the queue is empty and either all senders have been
                /// dropped or the queue has been closed. Cancel-safe: no value is lost.
                async fn recv(&mut self) -> Option<T>;

                /// Waits for a value, then appends up to `limit` values to `buffer`. Returns their number, which is 0
                /// when the queue is empty and no value can be sent any more, or if `limit` is 0. Consumes one unit of
                /// budget. Cancel-safe.
                async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize;

                /// Returns the next value without waiting.
                ///
                /// # Errors
                /// Returns `Empty` if the queue is empty, or `Disconnected` if no value can be sent any more.
                direct fn try_recv(&mut self) -> Result<T, TryRecvError>;

                /// Receives the next value, and blocks the thread until there is one. For threads without a runtime.
                blocking fn blocking_recv(&mut self) -> Option<T>;

                /// Appends up to `limit` values to `buffer` like [`recv_many`](Self::recv_many), and blocks the thread
                /// until there is one. For threads without a runtime.
                blocking fn blocking_recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize;

                /// Closes the queue: senders can send no more values, except to reserved places.
                direct fn close(&mut self);

                /// Returns whether the queue has been closed or all senders have been dropped.
                direct fn is_closed(&self) -> bool;

                /// Returns whether the queue is empty.
                direct fn is_empty(&self) -> bool;

                /// Returns the number of values in the queue.
                direct fn len(&self) -> usize;

                /// Returns the number of senders.
                direct fn sender_strong_count(&self) -> usize;

                /// Returns the number of weak references to senders.
                direct fn sender_weak_count(&self) -> usize;
            }
        }

        impl<T> $receiver<T> {
            /// Polls for the next value, like [`recv`](Self::recv).
            pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
                poll_cooperatively(context, |context| self.0.poll_recv(context), |_| 0)
            }

            /// Polls for up to `limit` values, like [`recv_many`](Self::recv_many).
            pub fn poll_recv_many(
                &mut self,
                context: &mut Context<'_>,
                buffer: &mut Vec<T>,
                limit: usize,
            ) -> Poll<usize> {
                poll_cooperatively(context, |context| self.0.poll_recv_many(context, buffer, limit), |_| 0)
            }
        }
    };
}

impl_receiver!(Receiver);
impl_receiver!(UnboundedReceiver);

delegate! {
    impl[T] Receiver<T> {
        /// Returns the number of free places in the queue.
        direct fn capacity(&self) -> usize;

        /// Returns the number of places in the queue.
        direct fn max_capacity(&self) -> usize;
    }
}
