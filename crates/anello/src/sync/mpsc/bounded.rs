//! Senders of a bounded queue.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc::{Permit, PermitIterator};

use super::error::{SendError, SendTimeoutError, TrySendError};
use super::{OwnedPermit, Sender, WeakSender};
use crate::executor::Coop;
use crate::sync::delegate::delegate;
use crate::time;

delegate! {
    impl[T] Sender<T> {
        /// Sends a value, and waits for a free slot in the queue. Cancel-safe: if the future is dropped before it
        /// completes, the value has not been sent and is dropped with it. [`reserve`](Self::reserve) keeps the value.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::mpsc;
        ///
        /// let (sender, mut receiver) = mpsc::channel(1);
        /// sender.send("ciao").await?;
        /// assert_eq!(receiver.recv().await, Some("ciao"));
        /// drop(receiver);
        /// assert_eq!(sender.send("late").await.unwrap_err().0, "late");
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        async fn send(&self, value: T) -> Result<(), SendError<T>>;

        /// Sends a value if the queue has a free slot.
        ///
        /// ```
        /// use anello::sync::mpsc::{self, error::TrySendError};
        ///
        /// let (sender, _receiver) = mpsc::channel(1);
        /// assert_eq!(sender.try_send(1), Ok(()));
        /// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
        /// ```
        ///
        /// # Errors
        /// Returns the value if the queue is full, or if the receiver has been closed or dropped.
        direct fn try_send(&self, value: T) -> Result<(), TrySendError<T>>;

        /// Sends a value, and blocks the thread until the queue has a free slot. For threads without a runtime.
        ///
        /// ```
        /// let (sender, mut receiver) = anello::sync::mpsc::channel(1);
        /// let thread = std::thread::spawn(move || (1..4).all(|number| sender.blocking_send(number).is_ok()));
        /// let numbers = anello::Runtime::new()?.block_on(async {
        ///     let mut numbers = Vec::new();
        ///     while let Some(number) = receiver.recv().await {
        ///         numbers.push(number);
        ///     }
        ///     numbers
        /// });
        /// assert_eq!(numbers, [1, 2, 3]);
        /// assert!(thread.join().expect("the thread does not panic"));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        blocking fn blocking_send(&self, value: T) -> Result<(), SendError<T>>;

        /// Waits until the receiver has been closed or dropped. Cancel-safe.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, receiver) = anello::sync::mpsc::channel::<u32>(1);
        /// anello::spawn(async move { drop(receiver) }).detach();
        /// sender.closed().await;
        /// assert!(sender.is_closed());
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        async fn closed(&self);

        /// Returns whether the receiver has been closed or dropped.
        ///
        /// ```
        /// let (sender, mut receiver) = anello::sync::mpsc::channel::<u32>(1);
        /// assert!(!sender.is_closed());
        /// receiver.close();
        /// assert!(sender.is_closed());
        /// ```
        direct fn is_closed(&self) -> bool;

        /// Waits for a free slot in the queue and reserves it. Cancel-safe, but a dropped future loses its position
        /// among the waiting senders.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, mut receiver) = anello::sync::mpsc::channel(1);
        /// // The value is created once it is certain that it can be sent.
        /// sender.reserve().await?.send("a costly value");
        /// assert_eq!(receiver.recv().await, Some("a costly value"));
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the receiver has been closed or dropped.
        async fn reserve(&self) -> Result<Permit<'_, T>, SendError<()>>;

        /// Waits for `count` free slots in the queue and reserves them. Cancel-safe like [`reserve`](Self::reserve).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, mut receiver) = anello::sync::mpsc::channel(2);
        /// for (permit, number) in sender.reserve_many(2).await?.zip(1..) {
        ///     permit.send(number);
        /// }
        /// assert_eq!((receiver.recv().await, receiver.recv().await), (Some(1), Some(2)));
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the receiver has been closed or dropped, or if the queue has fewer than `count` slots.
        async fn reserve_many(&self, count: usize) -> Result<PermitIterator<'_, T>, SendError<()>>;

        /// Reserves a free slot in the queue.
        ///
        /// ```
        /// let (sender, mut receiver) = anello::sync::mpsc::channel(1);
        /// let permit = sender.try_reserve()?;
        /// assert!(sender.try_reserve().is_err());
        /// permit.send(1);
        /// assert_eq!(receiver.try_recv(), Ok(1));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the queue is full, or if the receiver has been closed or dropped.
        direct fn try_reserve(&self) -> Result<Permit<'_, T>, TrySendError<()>>;

        /// Reserves `count` free slots in the queue.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::channel::<u32>(2);
        /// assert_eq!(sender.try_reserve_many(2)?.len(), 2);
        /// assert!(sender.try_reserve_many(3).is_err());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the queue has too few free slots, or if the receiver has been closed or dropped.
        direct fn try_reserve_many(&self, count: usize) -> Result<PermitIterator<'_, T>, TrySendError<()>>;

        /// Returns the number of free slots in the queue.
        ///
        /// ```
        /// let (sender, mut receiver) = anello::sync::mpsc::channel(2);
        /// sender.try_send(1)?;
        /// assert_eq!(sender.capacity(), 1);
        /// receiver.try_recv()?;
        /// assert_eq!(sender.capacity(), 2);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn capacity(&self) -> usize;

        /// Returns the number of slots in the queue.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::channel(2);
        /// sender.try_send(1)?;
        /// assert_eq!((sender.max_capacity(), sender.capacity()), (2, 1));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn max_capacity(&self) -> usize;

        /// Returns the number of senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::channel::<u32>(1);
        /// let clone = sender.clone();
        /// assert_eq!(sender.strong_count(), 2);
        /// drop(clone);
        /// assert_eq!(sender.strong_count(), 1);
        /// ```
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::channel::<u32>(1);
        /// let _weak = sender.downgrade();
        /// assert_eq!((sender.strong_count(), sender.weak_count()), (1, 1));
        /// ```
        direct fn weak_count(&self) -> usize;
    }
}

impl<T> Sender<T> {
    /// Sends a value, and waits for at most `limit` for a free slot in the queue. Cancel-safe like
    /// [`send`](Self::send).
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use std::time::Duration;
    ///
    /// use anello::sync::mpsc;
    ///
    /// let (sender, _receiver) = mpsc::channel(1);
    /// sender.send_timeout(1, Duration::from_secs(1)).await?;
    /// let error = sender.send_timeout(2, Duration::from_millis(1)).await.expect_err("the queue is full");
    /// assert_eq!(error.into_inner(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the value if the queue was full for this time, or if the receiver has been closed or dropped.
    ///
    /// # Panics
    /// The future panics if no runtime is running on this thread.
    pub async fn send_timeout(&self, value: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        match time::timeout(timeout, self.reserve()).await {
            Ok(Ok(permit)) => {
                permit.send(value);
                Ok(())
            }
            Ok(Err(_)) => Err(SendTimeoutError::Closed(value)),
            Err(_) => Err(SendTimeoutError::Timeout(value)),
        }
    }

    /// Waits for a free slot in the queue and reserves it. The permit owns the sender, and returns it when it is used.
    /// Not cancel-safe: the sender is dropped with the future.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let (sender, mut receiver) = anello::sync::mpsc::channel(1);
    /// let permit = sender.reserve_owned().await?;
    /// // The permit has no lifetime, so it can move into the task.
    /// anello::spawn(async move { permit.send(1) }).detach();
    /// assert_eq!(receiver.recv().await, Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the receiver has been closed or dropped.
    pub async fn reserve_owned(self) -> Result<OwnedPermit<T>, SendError<()>> {
        crate::executor::cooperative(self.0.reserve_owned()).await.map(Coop)
    }

    /// Reserves a free slot in the queue. The permit owns the sender, and returns it when it is used.
    ///
    /// ```
    /// let (sender, mut receiver) = anello::sync::mpsc::channel(1);
    /// let permit = sender.clone().try_reserve_owned()?;
    /// assert!(sender.try_reserve_owned().is_err());
    /// permit.send(1);
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    /// use anello::sync::mpsc;
    ///
    /// let (sender, _receiver) = mpsc::channel::<u32>(1);
    /// assert!(sender.same_channel(&sender.clone()));
    /// assert!(!sender.same_channel(&mpsc::channel(1).0));
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Returns a reference that does not keep the queue open.
    ///
    /// ```
    /// let (sender, receiver) = anello::sync::mpsc::channel::<u32>(1);
    /// let _weak = sender.downgrade();
    /// drop(sender);
    /// assert!(receiver.is_closed(), "the weak reference does not keep the queue open");
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
    /// let (sender, mut receiver) = anello::sync::mpsc::channel(1);
    /// let weak = sender.downgrade();
    /// weak.upgrade().expect("a sender exists").try_send(1)?;
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// drop(sender);
    /// assert!(weak.upgrade().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upgrade(&self) -> Option<Sender<T>> {
        self.0.upgrade().map(Coop)
    }
}

impl<T> OwnedPermit<T> {
    /// Sends a value to the reserved slot, and returns the sender.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let (sender, mut receiver) = anello::sync::mpsc::channel(1);
    /// let sender = sender.reserve_owned().await?.send(1);
    /// assert_eq!(receiver.recv().await, Some(1));
    /// assert_eq!(sender.capacity(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send(self, value: T) -> Sender<T> {
        Coop(self.0.send(value))
    }

    /// Releases the reserved slot, and returns the sender.
    ///
    /// ```
    /// let (sender, _receiver) = anello::sync::mpsc::channel::<u32>(1);
    /// let permit = sender.try_reserve_owned()?;
    /// let sender = permit.release();
    /// assert_eq!(sender.capacity(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release(self) -> Sender<T> {
        Coop(self.0.release())
    }

    /// Returns whether both permits belong to the same channel.
    ///
    /// ```
    /// let (sender, _receiver) = anello::sync::mpsc::channel::<u32>(2);
    /// let permits = [sender.clone().try_reserve_owned()?, sender.try_reserve_owned()?];
    /// assert!(permits[0].same_channel(&permits[1]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Returns whether the permit belongs to the same channel as a sender.
    ///
    /// ```
    /// use anello::sync::mpsc;
    ///
    /// let (sender, _receiver) = mpsc::channel::<u32>(1);
    /// let permit = sender.clone().try_reserve_owned()?;
    /// assert!(permit.same_channel_as_sender(&sender));
    /// assert!(!permit.same_channel_as_sender(&mpsc::channel(1).0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn same_channel_as_sender(&self, sender: &Sender<T>) -> bool {
        self.0.same_channel_as_sender(&sender.0)
    }
}

delegate! {
    impl[T] WeakSender<T> {
        /// Returns the number of senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::channel::<u32>(1);
        /// let weak = sender.downgrade();
        /// assert_eq!(weak.strong_count(), 1);
        /// drop(sender);
        /// assert_eq!(weak.strong_count(), 0);
        /// ```
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::channel::<u32>(1);
        /// let weak = sender.downgrade();
        /// let _clone = weak.clone();
        /// assert_eq!(weak.weak_count(), 2);
        /// ```
        direct fn weak_count(&self) -> usize;
    }
}
