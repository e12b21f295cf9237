//! Queue of values from several senders to one receiver, all on one worker.
//!
//! The methods are those of [`sync::mpsc`](crate::sync::mpsc), with the same behaviour. [`unbounded_channel`] returns
//! the same types as [`channel`]; [`send_now`](Sender::send_now) sends to such a queue without waiting.
//!
//! ```
//! # anello::Runtime::new()?.block_on(async {
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
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Design
//!
//! A sender that finds the queue full takes a numbered ticket. When the receiver removes a value, the place is granted
//! to the ticket with the lowest number, so a later sender cannot take it. A dropped ticket passes its place on.
//!
//! The state is not borrowed while wakers are cloned, called or dropped, nor while values are dropped, because all of
//! these can run code that uses the channel.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

pub use tokio::sync::mpsc::error;

use self::error::{SendError, TryRecvError, TrySendError};
use crate::driver::wake_all;
use crate::executor::poll_cooperatively;

/// Sends values; see [`channel`]. Can be cloned.
pub struct Sender<T> {
    channel: Rc<Channel<T>>,
}

/// Receives values; see [`channel`]. Dropping it closes the queue and drops the values in it.
pub struct Receiver<T> {
    channel: Rc<Channel<T>>,
}

/// Reference to a [`Sender`] that does not keep the queue open.
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
    /// Wakers of senders that wait for a place, by ticket number.
    waiting: BTreeMap<u64, Waker>,
    /// Tickets to which a place has been granted.
    granted: BTreeSet<u64>,
    next_ticket: u64,
    /// Wakers of senders that wait until the queue is closed, by ticket number.
    waiting_for_close: BTreeMap<u64, Waker>,
}

/// Creates a queue that holds at most `capacity` values.
///
/// # Panics
/// Panics if `capacity` is 0.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "cannot create a channel: capacity is 0 (request at least one place)");
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
pub fn unbounded_channel<T>() -> (Sender<T>, Receiver<T>) {
    channel(usize::MAX)
}

impl<T> State<T> {
    fn is_full(&self) -> bool {
        self.values.len() + self.granted.len() >= self.capacity
    }

    /// Grants free places to waiting senders. Returns the wakers to call.
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

/// Sends a value, which is taken, and wakes the receiver.
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

/// Future of [`Sender::send`].
struct Send<'a, T> {
    channel: &'a Channel<T>,
    value: Option<T>,
    ticket: Option<u64>,
}

impl<T> Send<'_, T> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<Result<(), SendError<T>>> {
        let waker = context.waker().clone();
        let mut state = self.channel.borrow_mut();
        let is_granted = self.ticket.is_some_and(|ticket| state.granted.contains(&ticket));
        let is_closed = state.is_closed;
        if !is_closed && !is_granted && (self.ticket.is_some() || state.is_full()) {
            let ticket = *self.ticket.get_or_insert_with(|| state.take_ticket());
            let replaced = state.waiting.insert(ticket, waker);
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        if let Some(ticket) = self.ticket.take() {
            state.granted.remove(&ticket);
        }
        drop(state);
        let value = self.value.take().expect("future polled after completion");
        if is_closed {
            return Poll::Ready(Err(SendError(value)));
        }
        push(self.channel, value);
        Poll::Ready(Ok(()))
    }
}

impl<T> Drop for Send<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.channel.borrow_mut();
        let own = state.waiting.remove(&ticket);
        state.granted.remove(&ticket);
        let next = state.grant();
        drop(state);
        drop(own);
        wake_all(next);
    }
}

/// Future of [`Sender::closed`].
struct Closed<'a, T> {
    channel: &'a Channel<T>,
    ticket: Option<u64>,
}

impl<T> Closed<'_, T> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut state = self.channel.borrow_mut();
        if state.is_closed {
            return Poll::Ready(());
        }
        let ticket = *self.ticket.get_or_insert_with(|| state.take_ticket());
        let replaced = state.waiting_for_close.insert(ticket, waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl<T> Drop for Closed<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let own = self.channel.borrow_mut().waiting_for_close.remove(&ticket);
        drop(own);
    }
}

impl<T> Sender<T> {
    /// Sends a value, and waits for a free place in the queue. Waiting senders get a place in the order in which they
    /// began to wait. Cancel-safe: if the future is dropped before it completes, the value has not been sent and is
    /// dropped with it.
    ///
    /// # Errors
    /// Returns the value if the receiver has been closed or dropped.
    pub fn send(&self, value: T) -> impl Future<Output = Result<(), SendError<T>>> {
        let mut send = Send { channel: &self.channel, value: Some(value), ticket: None };
        poll_fn(move |context| poll_cooperatively(context, |context| send.poll(context), |_| 0))
    }

    /// Sends a value if the queue has a free place and no sender waits for one.
    ///
    /// # Errors
    /// Returns the value if the queue is full, or if the receiver has been closed or dropped.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let state = self.channel.borrow();
        if state.is_closed {
            return Err(TrySendError::Closed(value));
        }
        if state.is_full() {
            return Err(TrySendError::Full(value));
        }
        drop(state);
        push(&self.channel, value);
        Ok(())
    }

    /// Sends a value without waiting, even if the queue is full. Does not consume budget.
    ///
    /// # Errors
    /// Returns the value if the receiver has been closed or dropped.
    pub fn send_now(&self, value: T) -> Result<(), SendError<T>> {
        if self.is_closed() {
            return Err(SendError(value));
        }
        push(&self.channel, value);
        Ok(())
    }

    /// Waits until the receiver has been closed or dropped. Cancel-safe.
    pub fn closed(&self) -> impl Future<Output = ()> {
        let mut closed = Closed { channel: &self.channel, ticket: None };
        poll_fn(move |context| poll_cooperatively(context, |context| closed.poll(context), |()| 0))
    }

    /// Returns whether the receiver has been closed or dropped.
    pub fn is_closed(&self) -> bool {
        self.channel.borrow().is_closed
    }

    /// Returns the number of free places in the queue.
    pub fn capacity(&self) -> usize {
        let state = self.channel.borrow();
        state.capacity.saturating_sub(state.values.len() + state.granted.len())
    }

    /// Returns the number of places in the queue, which is `usize::MAX` for an unbounded one.
    pub fn max_capacity(&self) -> usize {
        self.channel.borrow().capacity
    }

    /// Returns the number of senders.
    pub fn strong_count(&self) -> usize {
        self.channel.borrow().senders
    }

    /// Returns whether both send to the same queue.
    pub fn same_channel(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.channel, &other.channel)
    }

    /// Returns a reference that does not keep the queue open.
    #[must_use]
    pub fn downgrade(&self) -> WeakSender<T> {
        WeakSender { channel: Rc::downgrade(&self.channel) }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.channel.borrow_mut().senders += 1;
        Self { channel: Rc::clone(&self.channel) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.channel.borrow_mut();
        state.senders -= 1;
        let receiver = if state.senders == 0 { state.receiver.take() } else { None };
        drop(state);
        wake_all(receiver);
    }
}

impl<T> WeakSender<T> {
    /// Returns a sender, or `None` if all senders have been dropped.
    pub fn upgrade(&self) -> Option<Sender<T>> {
        let channel = self.channel.upgrade()?;
        let mut state = channel.borrow_mut();
        if state.senders == 0 {
            return None;
        }
        state.senders += 1;
        drop(state);
        Some(Sender { channel })
    }
}

impl<T> Clone for WeakSender<T> {
    fn clone(&self) -> Self {
        Self { channel: Weak::clone(&self.channel) }
    }
}

impl<T> Receiver<T> {
    /// Receives the next value. Returns `None` when the queue is empty and either all senders have been dropped or the
    /// queue has been closed. Cancel-safe: no value is lost.
    pub fn recv(&mut self) -> impl Future<Output = Option<T>> {
        poll_fn(|context| self.poll_recv(context))
    }

    /// Polls for the next value, like [`recv`](Self::recv).
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        poll_cooperatively(context, |context| self.poll_next(context), |_| 0)
    }

    fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<T>> {
        match self.try_recv() {
            Ok(value) => return Poll::Ready(Some(value)),
            Err(TryRecvError::Disconnected) => return Poll::Ready(None),
            Err(TryRecvError::Empty) => {}
        }
        let waker = context.waker().clone();
        let replaced = self.channel.borrow_mut().receiver.replace(waker);
        drop(replaced);
        Poll::Pending
    }

    /// Waits for a value, then appends up to `limit` values to `buffer`. Returns their number, which is 0 when the
    /// queue is empty and no value can be sent any more, or if `limit` is 0. Consumes one unit of budget. Cancel-safe.
    pub fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> impl Future<Output = usize> {
        poll_fn(move |context| {
            if limit == 0 {
                return Poll::Ready(0);
            }
            poll_cooperatively(
                context,
                |context| {
                    let first = std::task::ready!(self.poll_next(context));
                    let start = buffer.len();
                    buffer.extend(first);
                    while buffer.len() - start < limit
                        && let Ok(value) = self.try_recv()
                    {
                        buffer.push(value);
                    }
                    Poll::Ready(buffer.len() - start)
                },
                |_| 0,
            )
        })
    }

    /// Returns the next value without waiting.
    ///
    /// # Errors
    /// Returns `Empty` if the queue is empty, or `Disconnected` if no value can be sent any more.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let mut state = self.channel.borrow_mut();
        let Some(value) = state.values.pop_front() else {
            // A sender to which a place has been granted before the queue was closed finds it closed.
            return match state.is_closed || state.senders == 0 {
                true => Err(TryRecvError::Disconnected),
                false => Err(TryRecvError::Empty),
            };
        };
        if state.waiting.is_empty() {
            return Ok(value);
        }
        let granted = state.grant();
        drop(state);
        wake_all(granted);
        Ok(value)
    }

    /// Closes the queue: senders can send no more values.
    pub fn close(&mut self) {
        close(&self.channel);
    }

    /// Returns whether the queue has been closed or all senders have been dropped.
    pub fn is_closed(&self) -> bool {
        let state = self.channel.borrow();
        state.is_closed || state.senders == 0
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.channel.borrow().values.is_empty()
    }

    /// Returns the number of values in the queue.
    pub fn len(&self) -> usize {
        self.channel.borrow().values.len()
    }

    /// Returns the number of senders.
    pub fn sender_strong_count(&self) -> usize {
        self.channel.borrow().senders
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        close(&self.channel);
        let mut state = self.channel.borrow_mut();
        let (values, waker) = (std::mem::take(&mut state.values), state.receiver.take());
        drop(state);
        drop(waker);
        drop(values);
    }
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
