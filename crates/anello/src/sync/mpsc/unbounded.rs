//! Senders of an unbounded queue.

use std::future::Future;

use super::error::SendError;
use super::{UnboundedSender, WeakUnboundedSender};
use crate::executor::Coop;
use crate::sync::delegate::delegate;

impl<T> UnboundedSender<T> {
    /// Returns whether both send to the same queue.
    ///
    /// ```
    /// use anello::sync::mpsc;
    ///
    /// let (sender, _receiver) = mpsc::unbounded_channel::<u32>();
    /// assert!(sender.same_channel(&sender.clone()));
    /// assert!(!sender.same_channel(&mpsc::unbounded_channel().0));
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Returns a reference that does not keep the queue open.
    ///
    /// ```
    /// let (sender, receiver) = anello::sync::mpsc::unbounded_channel::<u32>();
    /// let _weak = sender.downgrade();
    /// drop(sender);
    /// assert!(receiver.is_closed(), "the weak reference does not keep the queue open");
    /// ```
    #[must_use]
    pub fn downgrade(&self) -> WeakUnboundedSender<T> {
        Coop(self.0.downgrade())
    }
}

delegate! {
    impl[T] UnboundedSender<T> {
        /// Sends a value. Does not wait and does not consume budget.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, mut receiver) = anello::sync::mpsc::unbounded_channel();
        /// sender.send("ciao")?;
        /// assert_eq!(receiver.recv().await, Some("ciao"));
        /// drop(receiver);
        /// assert_eq!(sender.send("late").unwrap_err().0, "late");
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        direct fn send(&self, value: T) -> Result<(), SendError<T>>;

        /// Waits until the receiver has been closed or dropped. Cancel-safe.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let (sender, receiver) = anello::sync::mpsc::unbounded_channel::<u32>();
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
        /// let (sender, mut receiver) = anello::sync::mpsc::unbounded_channel::<u32>();
        /// assert!(!sender.is_closed());
        /// receiver.close();
        /// assert!(sender.is_closed());
        /// ```
        direct fn is_closed(&self) -> bool;

        /// Returns the number of senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::unbounded_channel::<u32>();
        /// let clone = sender.clone();
        /// assert_eq!(sender.strong_count(), 2);
        /// drop(clone);
        /// assert_eq!(sender.strong_count(), 1);
        /// ```
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::unbounded_channel::<u32>();
        /// let _weak = sender.downgrade();
        /// assert_eq!((sender.strong_count(), sender.weak_count()), (1, 1));
        /// ```
        direct fn weak_count(&self) -> usize;
    }
}

impl<T> WeakUnboundedSender<T> {
    /// Returns a sender, or `None` if all senders have been dropped.
    ///
    /// ```
    /// let (sender, mut receiver) = anello::sync::mpsc::unbounded_channel();
    /// let weak = sender.downgrade();
    /// weak.upgrade().expect("a sender exists").send(1)?;
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// drop(sender);
    /// assert!(weak.upgrade().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upgrade(&self) -> Option<UnboundedSender<T>> {
        self.0.upgrade().map(Coop)
    }
}

delegate! {
    impl[T] WeakUnboundedSender<T> {
        /// Returns the number of senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::unbounded_channel::<u32>();
        /// let weak = sender.downgrade();
        /// assert_eq!(weak.strong_count(), 1);
        /// drop(sender);
        /// assert_eq!(weak.strong_count(), 0);
        /// ```
        direct fn strong_count(&self) -> usize;

        /// Returns the number of weak references to senders.
        ///
        /// ```
        /// let (sender, _receiver) = anello::sync::mpsc::unbounded_channel::<u32>();
        /// let weak = sender.downgrade();
        /// let _clone = weak.clone();
        /// assert_eq!(weak.weak_count(), 2);
        /// ```
        direct fn weak_count(&self) -> usize;
    }
}
