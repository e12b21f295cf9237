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
///
/// ```
/// use anello::sync::oneshot;
///
/// let (sender, receiver) = oneshot::channel();
/// assert!(!sender.is_closed());
/// drop(receiver);
/// assert_eq!(sender.send("late"), Err("late"));
/// ```
pub type Sender<T> = Coop<tokio::sync::oneshot::Sender<T>>;

/// Receives the value; see [`channel`]. It is a future that returns the value, or an error if the sender is dropped
/// without having sent one. Awaiting `&mut receiver` is cancel-safe.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::oneshot;
///
/// let (sender, receiver) = oneshot::channel::<u32>();
/// drop(sender);
/// assert!(receiver.await.is_err());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Receiver<T> = Coop<tokio::sync::oneshot::Receiver<T>>;

/// Creates a channel for one value.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::oneshot;
///
/// let (sender, receiver) = oneshot::channel();
/// anello::spawn(async move { sender.send(6 * 7) }).detach();
/// assert_eq!(receiver.await?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    (Coop(sender), Coop(receiver))
}

delegate! {
    impl[T] Sender<T> {
        /// Sends the value. Does not wait.
        ///
        /// ```
        /// use anello::sync::oneshot;
        ///
        /// let (sender, mut receiver) = oneshot::channel();
        /// assert_eq!(sender.send("ciao"), Ok(()));
        /// assert_eq!(receiver.try_recv(), Ok("ciao"));
        /// ```
        ///
        /// # Errors
        /// Returns the value if the receiver has been closed or dropped.
        direct fn send(self, value: T) -> Result<(), T>;

        /// Waits until the receiver has been closed or dropped. Cancel-safe.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::oneshot;
        ///
        /// let (mut sender, receiver) = oneshot::channel::<u32>();
        /// anello::spawn(async move { drop(receiver) }).detach();
        /// // Work for a receiver that no longer exists can be abandoned.
        /// sender.closed().await;
        /// assert!(sender.is_closed());
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        async fn closed(&mut self);

        /// Returns whether the receiver has been closed or dropped.
        ///
        /// ```
        /// use anello::sync::oneshot;
        ///
        /// let (sender, mut receiver) = oneshot::channel::<u32>();
        /// assert!(!sender.is_closed());
        /// receiver.close();
        /// assert!(sender.is_closed());
        /// ```
        direct fn is_closed(&self) -> bool;
    }
}

impl<T> Sender<T> {
    /// Polls like [`closed`](Self::closed).
    ///
    /// ```
    /// use std::task::{Context, Poll, Waker};
    ///
    /// use anello::sync::oneshot;
    ///
    /// let mut context = Context::from_waker(Waker::noop());
    /// let (mut sender, receiver) = oneshot::channel::<u32>();
    /// assert_eq!(sender.poll_closed(&mut context), Poll::Pending);
    /// drop(receiver);
    /// assert_eq!(sender.poll_closed(&mut context), Poll::Ready(()));
    /// ```
    pub fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        poll_cooperatively(context, |context| self.0.poll_closed(context), |()| 0)
    }
}

delegate! {
    impl[T] Receiver<T> {
        /// Prevents the sender from sending a value. A value that has been sent can still be received.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::oneshot;
        ///
        /// let (sender, mut receiver) = oneshot::channel();
        /// receiver.close();
        /// assert_eq!(sender.send(1), Err(1));
        /// assert!(receiver.await.is_err());
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        direct fn close(&mut self);

        /// Returns whether the value or an error has been received.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::oneshot;
        ///
        /// let (sender, mut receiver) = oneshot::channel();
        /// assert_eq!(sender.send(1), Ok(()));
        /// assert!(!receiver.is_terminated());
        /// assert_eq!((&mut receiver).await, Ok(1));
        /// assert!(receiver.is_terminated());
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        direct fn is_terminated(&self) -> bool;

        /// Returns whether no value can be received at present.
        ///
        /// ```
        /// use anello::sync::oneshot;
        ///
        /// let (sender, receiver) = oneshot::channel();
        /// assert!(receiver.is_empty());
        /// assert_eq!(sender.send(1), Ok(()));
        /// assert!(!receiver.is_empty());
        /// ```
        direct fn is_empty(&self) -> bool;

        /// Returns the value without waiting.
        ///
        /// ```
        /// use anello::sync::oneshot;
        /// use anello::sync::oneshot::error::TryRecvError;
        ///
        /// let (sender, mut receiver) = oneshot::channel();
        /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        /// assert_eq!(sender.send(1), Ok(()));
        /// assert_eq!(receiver.try_recv(), Ok(1));
        /// ```
        ///
        /// # Errors
        /// Returns `Empty` if no value has been sent yet, or `Closed` if none can be received any more.
        direct fn try_recv(&mut self) -> Result<T, TryRecvError>;

        /// Receives the value, and blocks the thread until it has been sent. For threads without a runtime.
        ///
        /// ```
        /// use anello::sync::oneshot;
        ///
        /// let (sender, receiver) = oneshot::channel();
        /// let thread = std::thread::spawn(move || receiver.blocking_recv());
        /// anello::Runtime::new()?.block_on(async { sender.send(1) }).expect("the thread waits");
        /// assert_eq!(thread.join().expect("the thread does not panic"), Ok(1));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the sender is dropped without having sent a value.
        blocking fn blocking_recv(self) -> Result<T, RecvError>;
    }
}
