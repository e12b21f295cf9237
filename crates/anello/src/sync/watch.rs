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
///
/// ```
/// use anello::sync::watch;
///
/// let sender = watch::Sender::new(1);
/// let receiver = sender.subscribe();
/// sender.clone().send(2)?;
/// assert_eq!(*receiver.borrow(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Sender<T> = Coop<tokio::sync::watch::Sender<T>>;

/// Reads the latest value; see [`channel`]. Can be cloned.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::watch;
///
/// let (sender, receiver) = watch::channel(1);
/// let mut clone = receiver.clone();
/// sender.send(2)?;
/// clone.changed().await?;
/// assert_eq!(*clone.borrow(), 2);
/// assert!(receiver.has_changed()?, "each receiver keeps its own record of what it has seen");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Receiver<T> = Coop<tokio::sync::watch::Receiver<T>>;

/// Creates a channel with an initial value, which the receiver has seen.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::watch;
///
/// let (sender, mut receiver) = watch::channel("starting");
/// assert!(!receiver.has_changed()?);
/// sender.send("ready")?;
/// receiver.changed().await?;
/// assert_eq!(*receiver.borrow(), "ready");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn channel<T>(initial: T) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::watch::channel(initial);
    (Coop(sender), Coop(receiver))
}

delegate! {
    impl[T] Sender<T> {
        /// Replaces the value, and wakes all waiting receivers.
        ///
        /// ```
        /// use anello::sync::watch;
        ///
        /// let (sender, receiver) = watch::channel(1);
        /// sender.send(2)?;
        /// assert_eq!(*receiver.borrow(), 2);
        /// drop(receiver);
        /// assert_eq!(sender.send(3).unwrap_err().0, 3);
        /// assert_eq!(*sender.borrow(), 2);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns the new value if there are no receivers. [`send_replace`](Self::send_replace) replaces the value
        /// even then.
        direct fn send(&self, value: T) -> Result<(), SendError<T>>;

        /// Changes the value in place, and wakes all waiting receivers. If `modify` panics, the panic is propagated and
        /// no receiver is woken. `modify` must not use the channel.
        ///
        /// ```
        /// use anello::sync::watch;
        ///
        /// let (sender, receiver) = watch::channel(vec!["/"]);
        /// sender.send_modify(|routes| routes.push("/about"));
        /// assert_eq!(*receiver.borrow(), ["/", "/about"]);
        /// ```
        direct fn send_modify(&self, modify: impl FnOnce(&mut T));

        /// Changes the value in place, and wakes all waiting receivers if `modify` returns `true`. Returns the result
        /// of `modify`, which must not use the channel.
        ///
        /// ```
        /// use anello::sync::watch;
        ///
        /// let (sender, receiver) = watch::channel(5);
        /// let raise = |minimum: i32| {
        ///     sender.send_if_modified(|value| {
        ///         let is_less = *value < minimum;
        ///         *value = minimum.max(*value);
        ///         is_less
        ///     })
        /// };
        /// assert!(!raise(3), "no receiver is woken");
        /// assert!(raise(8));
        /// assert_eq!(*receiver.borrow(), 8);
        /// ```
        direct fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool;

        /// Replaces the value, wakes all waiting receivers, and returns the previous value.
        ///
        /// ```
        /// use anello::sync::watch;
        ///
        /// let sender = watch::Sender::new("old");
        /// assert_eq!(sender.send_replace("new"), "old", "no receiver is needed");
        /// assert_eq!(*sender.borrow(), "new");
        /// ```
        direct fn send_replace(&self, value: T) -> T;

        /// Returns the latest value. Senders wait, and block their thread, until the result is dropped: it must not be
        /// held across an await point.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::watch::channel(1);
        /// assert_eq!(*sender.borrow(), 1);
        /// sender.send(2)?;
        /// assert_eq!(*sender.borrow(), 2);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn borrow(&self) -> Ref<'_, T>;

        /// Waits until there are no receivers. Cancel-safe.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, receiver) = anello::sync::watch::channel(1);
        /// anello::spawn(async move { drop(receiver) }).detach();
        /// sender.closed().await;
        /// assert!(sender.is_closed());
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        async fn closed(&self);

        /// Returns whether there are no receivers.
        ///
        /// ```
        /// let (sender, receiver) = anello::sync::watch::channel(1);
        /// assert!(!sender.is_closed());
        /// drop(receiver);
        /// assert!(sender.is_closed());
        /// ```
        direct fn is_closed(&self) -> bool;

        /// Returns the number of receivers.
        ///
        /// ```
        /// let (sender, receiver) = anello::sync::watch::channel(1);
        /// let other = receiver.clone();
        /// assert_eq!(sender.receiver_count(), 2);
        /// drop(other);
        /// assert_eq!(sender.receiver_count(), 1);
        /// ```
        direct fn receiver_count(&self) -> usize;

        /// Returns the number of senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::watch::channel(1);
        /// assert_eq!(sender.sender_count(), 1);
        /// let _clone = sender.clone();
        /// assert_eq!(sender.sender_count(), 2);
        /// ```
        direct fn sender_count(&self) -> usize;
    }
}

impl<T> Sender<T> {
    /// Creates a sender with an initial value and without receivers.
    ///
    /// ```
    /// use anello::sync::watch;
    ///
    /// let sender = watch::Sender::new(1);
    /// assert_eq!(sender.receiver_count(), 0);
    /// assert_eq!(*sender.subscribe().borrow(), 1);
    /// ```
    pub fn new(initial: T) -> Self {
        Coop(tokio::sync::watch::Sender::new(initial))
    }

    /// Creates a receiver, which has seen the current value.
    ///
    /// ```
    /// let (sender, _receiver) = anello::sync::watch::channel(1);
    /// let mut late = sender.subscribe();
    /// assert!(!late.has_changed()?);
    /// sender.send(2)?;
    /// assert_eq!(*late.borrow_and_update(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscribe(&self) -> Receiver<T> {
        Coop(self.0.subscribe())
    }

    /// Returns whether both belong to the same channel.
    ///
    /// ```
    /// use anello::sync::watch;
    ///
    /// let sender = watch::Sender::new(1);
    /// assert!(sender.same_channel(&sender.clone()));
    /// assert!(!sender.same_channel(&watch::Sender::new(1)));
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

delegate! {
    impl[T] Receiver<T> {
        /// Waits for a value that this receiver has not seen, and marks it as seen. Cancel-safe: a value is marked only
        /// when the future completes.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, mut receiver) = anello::sync::watch::channel(1);
        /// anello::spawn(async move { sender.send(2) }).detach();
        /// receiver.changed().await?;
        /// assert_eq!(*receiver.borrow(), 2);
        /// assert!(receiver.changed().await.is_err(), "the sender has been dropped");
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if all senders have been dropped and the receiver has seen the last value.
        async fn changed(&mut self) -> Result<(), RecvError>;

        /// Waits until the latest value satisfies the condition, starting with the current one, and returns it. It is
        /// then marked as seen, and senders wait as for [`borrow`](Self::borrow). Cancel-safe.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, mut receiver) = anello::sync::watch::channel(0);
        /// let waiting = anello::spawn(async move { receiver.wait_for(|value| *value > 2).await.map(|value| *value) });
        /// for value in 1..4 {
        ///     sender.send(value)?;
        /// }
        /// assert_eq!(waiting.await??, 3);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if all senders have been dropped and the last value does not satisfy the condition.
        ///
        /// # Panics
        /// The future panics if the condition panics.
        async fn wait_for(&mut self, condition: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, RecvError>;

        /// Returns the latest value without marking it as seen. Senders wait, and block their thread, until the result
        /// is dropped: it must not be held across an await point.
        ///
        /// ```
        /// let (sender, receiver) = anello::sync::watch::channel(1);
        /// sender.send(2)?;
        /// assert_eq!(*receiver.borrow(), 2);
        /// assert!(receiver.has_changed()?, "the value does not count as seen");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn borrow(&self) -> Ref<'_, T>;

        /// Returns the latest value and marks it as seen; otherwise like [`borrow`](Self::borrow).
        ///
        /// ```
        /// let (sender, mut receiver) = anello::sync::watch::channel(1);
        /// sender.send(2)?;
        /// assert_eq!(*receiver.borrow_and_update(), 2);
        /// assert!(!receiver.has_changed()?);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn borrow_and_update(&mut self) -> Ref<'_, T>;

        /// Returns whether there is a value that this receiver has not seen.
        ///
        /// ```
        /// let (sender, receiver) = anello::sync::watch::channel(1);
        /// assert!(!receiver.has_changed()?);
        /// sender.send(2)?;
        /// assert!(receiver.has_changed()?);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if all senders have been dropped.
        direct fn has_changed(&self) -> Result<bool, RecvError>;

        /// Returns whether all senders have been dropped.
        ///
        /// ```
        /// let (sender, receiver) = anello::sync::watch::channel(1);
        /// assert!(!receiver.is_closed());
        /// drop(sender);
        /// assert!(receiver.is_closed());
        /// assert_eq!(*receiver.borrow(), 1, "the last value stays available");
        /// ```
        direct fn is_closed(&self) -> bool;

        /// Marks the current value as not seen.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (_sender, mut receiver) = anello::sync::watch::channel(1);
        /// // A loop that awaits `changed` then starts with the current value.
        /// receiver.mark_changed();
        /// receiver.changed().await?;
        /// assert_eq!(*receiver.borrow(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn mark_changed(&mut self);

        /// Marks the current value as seen.
        ///
        /// ```
        /// let (sender, mut receiver) = anello::sync::watch::channel(1);
        /// sender.send(2)?;
        /// receiver.mark_unchanged();
        /// assert!(!receiver.has_changed()?);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn mark_unchanged(&mut self);
    }
}

impl<T> Receiver<T> {
    /// Returns whether both belong to the same channel.
    ///
    /// ```
    /// use anello::sync::watch;
    ///
    /// let (sender, receiver) = watch::channel(1);
    /// assert!(receiver.same_channel(&sender.subscribe()));
    /// assert!(!receiver.same_channel(&watch::channel(1).1));
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}
