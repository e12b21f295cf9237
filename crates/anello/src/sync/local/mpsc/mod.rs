//! Queue of values from several senders to one receiver, all on one worker.
//!
//! The methods are those of [`sync::mpsc`](crate::sync::mpsc), with the same behaviour. [`unbounded_channel`] returns
//! the same types as [`channel`]; [`send_now`](Sender::send_now) sends to such a queue without waiting.
//!
//! ```
//! # anello::example! {
//! use anello::sync::local::mpsc;
//!
//! let (sender, mut receiver) = mpsc::channel(1);
//! anello::spawn(async move {
//!     for number in 0..3 {
//!         sender.send(number).await.expect("the receiver exists");
//!     }
//! })
//! .detach();
//! let mut sum = 0;
//! while let Some(number) = receiver.recv().await {
//!     sum += number;
//! }
//! assert_eq!(sum, 3);
//! # }
//! ```
//!
//! # Design
//!
//! A sender that finds the queue full takes a numbered ticket. When the receiver removes a value, the slot is granted
//! to the ticket with the lowest number, so a later sender cannot take it. A dropped ticket passes its slot on. A
//! leaked ticket keeps it: waking all waiting senders for each slot would avoid this, but needs a quadratic number of
//! wake-ups.
//!
//! The state is not borrowed while wakers are cloned, called or dropped, nor while values are dropped, because all of
//! these can run code that uses the channel.

mod receiver;
mod sender;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::{Rc, Weak};
use std::task::Waker;

pub use tokio::sync::mpsc::error;

use crate::driver::wake_all;

/// Sends values; see [`channel`]. Can be cloned.
///
/// ```
/// # anello::example! {
/// use anello::sync::local::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel(4);
/// let clone = sender.clone();
/// // The values need not be `Send`.
/// clone.send(std::rc::Rc::new(1)).await?;
/// drop((sender, clone));
/// assert_eq!(receiver.recv().await.as_deref(), Some(&1));
/// assert!(receiver.recv().await.is_none(), "all senders have been dropped");
/// # }
/// ```
pub struct Sender<T> {
    channel: Rc<Channel<T>>,
}

/// Receives values; see [`channel`]. Dropping it closes the queue and drops the values in it.
///
/// ```
/// # anello::example! {
/// use anello::sync::local::mpsc;
///
/// let (sender, receiver) = mpsc::channel(4);
/// sender.send(1).await?;
/// drop(receiver);
/// assert!(sender.send(2).await.is_err());
/// # }
/// ```
pub struct Receiver<T> {
    channel: Rc<Channel<T>>,
}

/// Reference to a [`Sender`] that does not keep the queue open.
///
/// ```
/// # anello::example! {
/// use anello::sync::local::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel::<u32>(4);
/// let weak = sender.downgrade();
/// drop(sender);
/// assert_eq!(receiver.recv().await, None);
/// assert!(weak.upgrade().is_none());
/// # }
/// ```
pub struct WeakSender<T> {
    channel: Weak<Channel<T>>,
}

type Channel<T> = RefCell<State<T>>;

struct State<T> {
    values: VecDeque<T>,
    /// Maximum number of values and granted tickets.
    capacity: usize,
    senders: usize,
    /// True once the receiver has closed the queue or has been dropped.
    is_closed: bool,
    receiver: Option<Waker>,
    /// Wakers of senders that wait for a slot, by ticket number.
    waiting: BTreeMap<u64, Waker>,
    /// Tickets to which a slot has been granted.
    granted: BTreeSet<u64>,
    next_ticket: u64,
    /// Wakers of senders that wait until the queue is closed, by ticket number.
    waiting_for_close: BTreeMap<u64, Waker>,
}

/// Creates a queue that holds at most `capacity` values.
///
/// ```
/// # anello::example! {
/// use anello::sync::local::mpsc;
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
/// # }
/// ```
///
/// # Panics
/// Panics if `capacity` is 0.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "cannot create a channel: capacity is 0 (request at least one slot)");
    let channel = Rc::new(RefCell::new(State {
        values: VecDeque::new(),
        capacity,
        senders: 1,
        is_closed: false,
        receiver: None,
        waiting: BTreeMap::new(),
        granted: BTreeSet::new(),
        next_ticket: 0,
        waiting_for_close: BTreeMap::new(),
    }));
    (Sender { channel: Rc::clone(&channel) }, Receiver { channel })
}

/// Creates a queue whose length is limited only by memory. Prefer [`channel`], which makes fast senders wait for slow
/// receivers.
///
/// ```
/// # anello::example! {
/// use anello::sync::local::mpsc;
///
/// let (sender, mut receiver) = mpsc::unbounded_channel();
/// for number in 0..1000 {
///     sender.send_now(number)?;
/// }
/// assert_eq!(receiver.len(), 1000);
/// assert_eq!(receiver.recv().await, Some(0));
/// # }
/// ```
pub fn unbounded_channel<T>() -> (Sender<T>, Receiver<T>) {
    channel(usize::MAX)
}

impl<T> State<T> {
    fn is_full(&self) -> bool {
        self.values.len() + self.granted.len() >= self.capacity
    }

    /// Grants free slots to waiting senders. Returns the wakers to call.
    #[must_use]
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while !self.waiting.is_empty()
            && !self.is_full()
            && let Some((ticket, waker)) = self.waiting.pop_first()
        {
            self.granted.insert(ticket);
            wakers.push(waker);
        }
        wakers
    }

    fn take_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }
}

/// Appends a value to the queue and wakes the receiver.
fn push<T>(channel: &Channel<T>, value: T) {
    let mut state = channel.borrow_mut();
    state.values.push_back(value);
    let receiver = state.receiver.take();
    drop(state);
    wake_all(receiver);
}

/// Closes the queue and wakes all senders.
fn close<T>(channel: &Channel<T>) {
    let mut state = channel.borrow_mut();
    state.is_closed = true;
    let waiting = std::mem::take(&mut state.waiting);
    let waiting_for_close = std::mem::take(&mut state.waiting_for_close);
    drop(state);
    wake_all(waiting.into_values().chain(waiting_for_close.into_values()));
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sender").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for WeakSender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WeakSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Receiver").field("len", &self.len()).finish_non_exhaustive()
    }
}
