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
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::broadcast;
///
/// let sender = broadcast::Sender::new(4);
/// let mut receivers = [(); 3].map(|()| sender.subscribe());
/// assert_eq!(sender.clone().send("ciao")?, 3);
/// for receiver in &mut receivers {
///     assert_eq!(receiver.recv().await?, "ciao");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Sender<T> = Coop<tokio::sync::broadcast::Sender<T>>;

/// Receives all values that are sent after its creation; see [`channel`].
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::broadcast;
/// use anello::sync::broadcast::error::RecvError;
///
/// let (sender, mut receiver) = broadcast::channel(2);
/// for number in 0..3 {
///     sender.send(number)?;
/// }
/// // There was no room for the first value.
/// assert_eq!(receiver.recv().await, Err(RecvError::Lagged(1)));
/// assert_eq!(receiver.recv().await, Ok(1));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Receiver<T> = Coop<tokio::sync::broadcast::Receiver<T>>;

/// Reference to a [`Sender`] that does not keep the channel open.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::broadcast;
///
/// let (sender, mut receiver) = broadcast::channel::<u32>(4);
/// let weak = sender.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(sender);
/// assert!(weak.upgrade().is_none());
/// assert!(receiver.recv().await.is_err());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type WeakSender<T> = Coop<tokio::sync::broadcast::WeakSender<T>>;

/// Creates a channel that keeps at least the last `capacity` values (rounded up to a power of two) for receivers that
/// have not received them yet.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::broadcast;
///
/// let (sender, mut receiver) = broadcast::channel(16);
/// anello::spawn(async move { sender.send("ciao") }).detach();
/// assert_eq!(receiver.recv().await?, "ciao");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, one) = broadcast::channel(4);
        /// let other = sender.subscribe();
        /// assert_eq!(sender.send("ciao")?, 2);
        /// drop((one, other));
        /// assert_eq!(sender.send("unsent").unwrap_err().0, "unsent");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns the value if there are no receivers. Later values can be sent to new ones.
        direct fn send(&self, value: T) -> Result<usize, SendError<T>>;

        /// Returns the number of values that at least one receiver has not received yet.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::broadcast;
        ///
        /// let (sender, mut fast) = broadcast::channel(4);
        /// let slow = sender.subscribe();
        /// sender.send(1)?;
        /// assert_eq!(fast.recv().await?, 1);
        /// assert_eq!(sender.len(), 1, "`slow` has not received the value");
        /// drop(slow);
        /// assert_eq!(sender.len(), 0);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn len(&self) -> usize;

        /// Returns whether all receivers have received all values.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::broadcast;
        ///
        /// let (sender, mut receiver) = broadcast::channel(4);
        /// assert!(sender.is_empty());
        /// sender.send(1)?;
        /// assert!(!sender.is_empty());
        /// receiver.recv().await?;
        /// assert!(sender.is_empty());
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn is_empty(&self) -> bool;

        /// Returns the number of receivers.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, receiver) = broadcast::channel::<u32>(4);
        /// let other = sender.subscribe();
        /// assert_eq!(sender.receiver_count(), 2);
        /// drop((receiver, other));
        /// assert_eq!(sender.receiver_count(), 0);
        /// ```
        direct fn receiver_count(&self) -> usize;

        /// Waits until there are no receivers. Cancel-safe.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::broadcast;
        ///
        /// let (sender, receiver) = broadcast::channel::<u32>(4);
        /// anello::spawn(async move { drop(receiver) }).detach();
        /// sender.closed().await;
        /// assert_eq!(sender.receiver_count(), 0);
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        async fn closed(&self);

        /// Returns the number of senders.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, _receiver) = broadcast::channel::<u32>(4);
        /// let clone = sender.clone();
        /// assert_eq!(sender.strong_count(), 2);
        /// drop(clone);
        /// assert_eq!(sender.strong_count(), 1);
        /// ```
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, _receiver) = broadcast::channel::<u32>(4);
        /// let _weak = sender.downgrade();
        /// assert_eq!(sender.weak_count(), 1);
        /// ```
        direct fn weak_count(&self) -> usize;
    }
}

impl<T> Sender<T> {
    /// Creates a channel without receivers; see [`channel`].
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::broadcast;
    ///
    /// let sender = broadcast::Sender::new(4);
    /// assert!(sender.send(1).is_err(), "there are no receivers yet");
    /// let mut receiver = sender.subscribe();
    /// sender.send(2)?;
    /// assert_eq!(receiver.recv().await?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `capacity` is 0 or greater than `usize::MAX / 2`.
    #[track_caller]
    pub fn new(capacity: usize) -> Self {
        Coop(tokio::sync::broadcast::Sender::new(capacity))
    }

    /// Creates a receiver of the values that are sent from now on.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::broadcast;
    ///
    /// let (sender, mut receiver) = broadcast::channel(4);
    /// sender.send("early")?;
    /// let mut late = sender.subscribe();
    /// sender.send("late")?;
    /// assert_eq!(receiver.recv().await?, "early");
    /// assert_eq!(late.recv().await?, "late");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscribe(&self) -> Receiver<T> {
        Coop(self.0.subscribe())
    }

    /// Returns whether both belong to the same channel.
    ///
    /// ```
    /// use anello::sync::broadcast;
    ///
    /// let (sender, _receiver) = broadcast::channel::<u32>(4);
    /// assert!(sender.same_channel(&sender.clone()));
    /// assert!(!sender.same_channel(&broadcast::Sender::new(4)));
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Returns a reference that does not keep the channel open.
    ///
    /// ```
    /// use anello::sync::broadcast;
    ///
    /// let (sender, receiver) = broadcast::channel::<u32>(4);
    /// let weak = sender.downgrade();
    /// drop(sender);
    /// assert!(receiver.is_closed(), "the weak reference does not keep the channel open");
    /// assert!(weak.upgrade().is_none());
    /// ```
    #[must_use]
    pub fn downgrade(&self) -> WeakSender<T> {
        Coop(self.0.downgrade())
    }
}

impl<T> WeakSender<T> {
    /// Returns a sender, or `None` if all senders have been dropped.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::broadcast;
    ///
    /// let (sender, mut receiver) = broadcast::channel(4);
    /// let weak = sender.downgrade();
    /// weak.upgrade().expect("a sender exists").send(1)?;
    /// assert_eq!(receiver.recv().await?, 1);
    /// drop(sender);
    /// assert!(weak.upgrade().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upgrade(&self) -> Option<Sender<T>> {
        self.0.upgrade().map(Coop)
    }
}

delegate! {
    impl[T] WeakSender<T> {
        /// Returns the number of senders.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, _receiver) = broadcast::channel::<u32>(4);
        /// let weak = sender.downgrade();
        /// assert_eq!(weak.strong_count(), 1);
        /// drop(sender);
        /// assert_eq!(weak.strong_count(), 0);
        /// ```
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, _receiver) = broadcast::channel::<u32>(4);
        /// let weak = sender.downgrade();
        /// assert_eq!((weak.weak_count(), weak.clone().weak_count()), (1, 2));
        /// ```
        direct fn weak_count(&self) -> usize;
    }
}

delegate! {
    impl[T] Receiver<T> {
        /// Returns the number of values that this receiver has not received yet.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::broadcast;
        ///
        /// let (sender, mut receiver) = broadcast::channel(4);
        /// sender.send(1)?;
        /// sender.send(2)?;
        /// assert_eq!(receiver.len(), 2);
        /// receiver.recv().await?;
        /// assert_eq!(receiver.len(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn len(&self) -> usize;

        /// Returns whether this receiver has received all values.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, receiver) = broadcast::channel(4);
        /// assert!(receiver.is_empty());
        /// sender.send(1)?;
        /// assert!(!receiver.is_empty());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn is_empty(&self) -> bool;

        /// Returns whether all senders have been dropped.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, receiver) = broadcast::channel::<u32>(4);
        /// assert!(!receiver.is_closed());
        /// drop(sender);
        /// assert!(receiver.is_closed());
        /// ```
        direct fn is_closed(&self) -> bool;

        /// Returns the number of senders.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, receiver) = broadcast::channel::<u32>(4);
        /// let _clone = sender.clone();
        /// assert_eq!(receiver.sender_strong_count(), 2);
        /// ```
        direct fn sender_strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, receiver) = broadcast::channel::<u32>(4);
        /// let _weak = sender.downgrade();
        /// assert_eq!(receiver.sender_weak_count(), 1);
        /// ```
        direct fn sender_weak_count(&self) -> usize;
    }
}

delegate! {
    impl[T: Clone] Receiver<T> {
        /// Receives the next value. Cancel-safe: no value is lost.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::broadcast;
        /// use anello::sync::broadcast::error::RecvError;
        ///
        /// let (sender, mut receiver) = broadcast::channel(4);
        /// sender.send("ciao")?;
        /// drop(sender);
        /// assert_eq!(receiver.recv().await, Ok("ciao"));
        /// assert_eq!(receiver.recv().await, Err(RecvError::Closed));
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns `Lagged` if values have been dropped before this receiver received them; the next call then returns
        /// the oldest value that is left. Returns `Closed` if all senders have been dropped and all values have been
        /// received.
        async fn recv(&mut self) -> Result<T, RecvError>;

        /// Returns the next value without waiting.
        ///
        /// ```
        /// use anello::sync::broadcast;
        /// use anello::sync::broadcast::error::TryRecvError;
        ///
        /// let (sender, mut receiver) = broadcast::channel(4);
        /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        /// sender.send(1)?;
        /// assert_eq!(receiver.try_recv(), Ok(1));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns `Empty` if there is no value, and otherwise the errors of [`recv`](Self::recv).
        direct fn try_recv(&mut self) -> Result<T, TryRecvError>;

        /// Receives the next value, and blocks the thread until there is one. For threads without a runtime.
        ///
        /// ```
        /// use anello::sync::broadcast;
        ///
        /// let (sender, mut receiver) = broadcast::channel(4);
        /// let thread = std::thread::spawn(move || receiver.blocking_recv());
        /// sender.send(1)?;
        /// assert_eq!(thread.join().expect("the thread does not panic")?, 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// See [`recv`](Self::recv).
        blocking fn blocking_recv(&mut self) -> Result<T, RecvError>;
    }
}

impl<T: Clone> Receiver<T> {
    /// Creates a receiver of the values that are sent from now on.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::broadcast;
    ///
    /// let (sender, receiver) = broadcast::channel(4);
    /// sender.send("old")?;
    /// // Skips the values that `receiver` has not received.
    /// let mut newest = receiver.resubscribe();
    /// sender.send("new")?;
    /// assert_eq!(newest.recv().await?, "new");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resubscribe(&self) -> Self {
        Coop(self.0.resubscribe())
    }
}

impl<T> Receiver<T> {
    /// Returns whether both belong to the same channel.
    ///
    /// ```
    /// use anello::sync::broadcast;
    ///
    /// let (sender, receiver) = broadcast::channel::<u32>(4);
    /// assert!(receiver.same_channel(&sender.subscribe()));
    /// assert!(!receiver.same_channel(&broadcast::channel(4).1));
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}
