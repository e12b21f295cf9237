//! Queue of values from several senders to one receiver.
//!
//! [`channel`] creates a bounded queue: senders wait while it is full, in FIFO order. [`unbounded_channel`] creates a
//! queue whose length is limited only by memory; prefer the bounded one, which makes fast senders wait for slow
//! receivers.
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

mod bounded;
pub mod error;
mod receiver;
mod unbounded;

pub use tokio::sync::mpsc::{Permit, PermitIterator};

use crate::executor::Coop;

/// Sends values to a bounded queue; see [`channel`]. Can be cloned.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel(4);
/// let clone: mpsc::Sender<u32> = sender.clone();
/// clone.send(1).await?;
/// drop((sender, clone));
/// assert_eq!(receiver.recv().await, Some(1));
/// assert_eq!(receiver.recv().await, None, "all senders have been dropped");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Sender<T> = Coop<tokio::sync::mpsc::Sender<T>>;

/// Receives the values of a bounded queue; see [`channel`]. Dropping it closes the queue.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel(4);
/// sender.send(1).await?;
/// drop::<mpsc::Receiver<u32>>(receiver);
/// assert!(sender.send(2).await.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Receiver<T> = Coop<tokio::sync::mpsc::Receiver<T>>;

/// Reference to a [`Sender`] that does not keep the queue open.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel::<u32>(4);
/// let weak: mpsc::WeakSender<u32> = sender.downgrade();
/// drop(sender);
/// assert_eq!(receiver.recv().await, None);
/// assert!(weak.upgrade().is_none());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type WeakSender<T> = Coop<tokio::sync::mpsc::WeakSender<T>>;

/// Slot in a bounded queue, with the [`Sender`] that has reserved it.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel(1);
/// let permit: mpsc::OwnedPermit<u32> = sender.clone().reserve_owned().await?;
/// assert!(sender.try_send(1).is_err(), "the slot is reserved");
/// permit.send(2);
/// assert_eq!(receiver.recv().await, Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type OwnedPermit<T> = Coop<tokio::sync::mpsc::OwnedPermit<T>>;

/// Sends values to an unbounded queue; see [`unbounded_channel`]. Can be cloned.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::unbounded_channel();
/// let clone: mpsc::UnboundedSender<u32> = sender.clone();
/// clone.send(1)?;
/// assert_eq!(receiver.recv().await, Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type UnboundedSender<T> = Coop<tokio::sync::mpsc::UnboundedSender<T>>;

/// Receives the values of an unbounded queue; see [`unbounded_channel`]. Dropping it closes the queue.
///
/// ```
/// use anello::sync::mpsc;
///
/// let (sender, receiver) = mpsc::unbounded_channel();
/// drop::<mpsc::UnboundedReceiver<u32>>(receiver);
/// assert!(sender.send(1).is_err());
/// ```
pub type UnboundedReceiver<T> = Coop<tokio::sync::mpsc::UnboundedReceiver<T>>;

/// Reference to an [`UnboundedSender`] that does not keep the queue open.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::unbounded_channel::<u32>();
/// let weak: mpsc::WeakUnboundedSender<u32> = sender.downgrade();
/// drop(sender);
/// assert_eq!(receiver.recv().await, None);
/// assert!(weak.upgrade().is_none());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type WeakUnboundedSender<T> = Coop<tokio::sync::mpsc::WeakUnboundedSender<T>>;

/// Creates a queue that holds at most `capacity` values.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel(1);
/// anello::spawn(async move {
///     for number in 0..3 {
///         // Waits until the receiver has taken the previous number.
///         sender.send(number).await.expect("the receiver exists");
///     }
/// })
/// .detach();
/// assert_eq!(receiver.recv().await, Some(0));
/// assert_eq!(receiver.recv().await, Some(1));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Panics if `capacity` is 0 or greater than `usize::MAX >> 3`.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::mpsc::channel(capacity);
    (Coop(sender), Coop(receiver))
}

/// Creates a queue without a limit.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::unbounded_channel();
/// for number in 0..1000 {
///     sender.send(number)?;
/// }
/// assert_eq!(receiver.len(), 1000);
/// assert_eq!(receiver.recv().await, Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn unbounded_channel<T>() -> (UnboundedSender<T>, UnboundedReceiver<T>) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (Coop(sender), Coop(receiver))
}
