//! Senders of a queue of one worker.

use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use super::error::{SendError, TrySendError};
use super::{Channel, Sender, WeakSender, push};
use crate::driver::wake_all;
use crate::executor::{has_budget_or_yield, poll_cooperatively, with_current};

/// Future of [`Sender::send`].
struct Send<'a, T> {
    channel: &'a Channel<T>,
    value: Option<T>,
    ticket: Option<u64>,
}

impl<T> Send<'_, T> {
    /// Without budget, the sender takes its place in the queue, but does not send: later senders must not overtake it.
    fn poll(&mut self, context: &Context<'_>, has_budget: bool) -> Poll<Result<(), SendError<T>>> {
        let waker = context.waker().clone();
        let mut state = self.channel.borrow_mut();
        let is_granted = self.ticket.is_some_and(|ticket| state.granted.contains(&ticket));
        let is_closed = state.is_closed;
        if !is_closed && !is_granted && (!has_budget || self.ticket.is_some() || state.is_full()) {
            let ticket = *self.ticket.get_or_insert_with(|| state.take_ticket());
            let replaced = state.waiting.insert(ticket, waker);
            let granted = state.grant();
            drop(state);
            drop(replaced);
            wake_all(granted);
            return Poll::Pending;
        }
        if !has_budget {
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
    /// Sends a value, and waits for a free slot in the queue. Waiting senders are served in FIFO order. Cancel-safe: if
    /// the future is dropped before it completes, the value has not been sent and is dropped with it.
    ///
    /// A free slot belongs to the sender that has waited longest. Once its future has been polled, poll it again when it
    /// is woken, or drop it: while it is neither polled nor dropped, and without limit if it is leaked
    /// ([`mem::forget`](std::mem::forget)), no other sender can use the slot. The same applies to
    /// [`sync::mpsc`](crate::sync::mpsc).
    ///
    /// ```
    /// # anello::example! {
    /// use anello::sync::local::mpsc;
    ///
    /// let (sender, mut receiver) = mpsc::channel(1);
    /// sender.send("ciao").await?;
    /// assert_eq!(receiver.recv().await, Some("ciao"));
    /// drop(receiver);
    /// assert_eq!(sender.send("late").await.unwrap_err().0, "late");
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the value if the receiver has been closed or dropped.
    pub fn send(&self, value: T) -> impl Future<Output = Result<(), SendError<T>>> {
        let mut send = Send { channel: &self.channel, value: Some(value), ticket: None };
        poll_fn(move |context| {
            let has_budget = has_budget_or_yield(context) != Some(false);
            let polled = send.poll(context, has_budget);
            if polled.is_ready() {
                with_current(|shared| shared.spend_budget(0));
            }
            polled
        })
    }

    /// Sends a value if the queue has a free slot and no sender waits for one.
    ///
    /// ```
    /// use anello::sync::local::mpsc::{self, error::TrySendError};
    ///
    /// let (sender, _receiver) = mpsc::channel(1);
    /// assert_eq!(sender.try_send(1), Ok(()));
    /// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    /// ```
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
    /// ```
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(1);
    /// sender.send_now(1)?;
    /// sender.send_now(2)?;
    /// assert_eq!(receiver.len(), 2, "exceeds the capacity");
    /// receiver.close();
    /// assert_eq!(sender.send_now(3).unwrap_err().0, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, receiver) = anello::sync::local::mpsc::channel::<u32>(1);
    /// anello::spawn(async move { drop(receiver) }).detach();
    /// sender.closed().await;
    /// assert!(sender.is_closed());
    /// # }
    /// ```
    pub fn closed(&self) -> impl Future<Output = ()> {
        let mut closed = Closed { channel: &self.channel, ticket: None };
        poll_fn(move |context| poll_cooperatively(context, |context| closed.poll(context), |()| 0))
    }

    /// Returns whether the receiver has been closed or dropped.
    ///
    /// ```
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel::<u32>(1);
    /// assert!(!sender.is_closed());
    /// receiver.close();
    /// assert!(sender.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.channel.borrow().is_closed
    }

    /// Returns the number of free slots in the queue.
    ///
    /// ```
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(2);
    /// sender.try_send(1)?;
    /// assert_eq!(sender.capacity(), 1);
    /// receiver.try_recv()?;
    /// assert_eq!(sender.capacity(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity(&self) -> usize {
        let state = self.channel.borrow();
        state.capacity.saturating_sub(state.values.len() + state.granted.len())
    }

    /// Returns the number of slots in the queue, which is `usize::MAX` for an unbounded one.
    ///
    /// ```
    /// use anello::sync::local::mpsc;
    ///
    /// let (sender, _receiver) = mpsc::channel(2);
    /// sender.try_send(1)?;
    /// assert_eq!((sender.max_capacity(), sender.capacity()), (2, 1));
    /// assert_eq!(mpsc::unbounded_channel::<u32>().0.max_capacity(), usize::MAX);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_capacity(&self) -> usize {
        self.channel.borrow().capacity
    }

    /// Returns the number of senders.
    ///
    /// ```
    /// let (sender, _receiver) = anello::sync::local::mpsc::channel::<u32>(1);
    /// let clone = sender.clone();
    /// assert_eq!(sender.strong_count(), 2);
    /// drop(clone);
    /// assert_eq!(sender.strong_count(), 1);
    /// ```
    pub fn strong_count(&self) -> usize {
        self.channel.borrow().senders
    }

    /// Returns whether both send to the same queue.
    ///
    /// ```
    /// use anello::sync::local::mpsc;
    ///
    /// let (sender, _receiver) = mpsc::channel::<u32>(1);
    /// assert!(sender.same_channel(&sender.clone()));
    /// assert!(!sender.same_channel(&mpsc::channel(1).0));
    /// ```
    pub fn same_channel(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.channel, &other.channel)
    }

    /// Returns a reference that does not keep the queue open.
    ///
    /// ```
    /// let (sender, receiver) = anello::sync::local::mpsc::channel::<u32>(1);
    /// let _weak = sender.downgrade();
    /// drop(sender);
    /// assert!(receiver.is_closed(), "the weak reference does not keep the queue open");
    /// ```
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
    ///
    /// ```
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(1);
    /// let weak = sender.downgrade();
    /// weak.upgrade().expect("a sender exists").try_send(1)?;
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// drop(sender);
    /// assert!(weak.upgrade().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
