//! Receiver of a queue of one worker.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use super::error::TryRecvError;
use super::{Receiver, close};
use crate::driver::wake_all;
use crate::executor::poll_cooperatively;

impl<T> Receiver<T> {
    /// Receives the next value. Returns `None` when the queue is empty and either all senders have been dropped or the
    /// queue has been closed. Cancel-safe: no value is lost.
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(1);
    /// sender.send(1).await?;
    /// drop(sender);
    /// assert_eq!(receiver.recv().await, Some(1));
    /// assert_eq!(receiver.recv().await, None);
    /// # }
    /// ```
    pub fn recv(&mut self) -> impl Future<Output = Option<T>> {
        poll_fn(|context| self.poll_recv(context))
    }

    /// Polls for the next value, like [`recv`](Self::recv).
    ///
    /// ```
    /// use std::task::{Context, Poll, Waker};
    ///
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(1);
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert_eq!(receiver.poll_recv(&mut context), Poll::Pending);
    /// sender.try_send(1)?;
    /// assert_eq!(receiver.poll_recv(&mut context), Poll::Ready(Some(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    /// # anello::example! {
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(8);
    /// for number in 0..5 {
    ///     sender.send(number).await?;
    /// }
    /// let mut numbers = Vec::new();
    /// assert_eq!(receiver.recv_many(&mut numbers, 3).await, 3);
    /// assert_eq!(numbers, [0, 1, 2]);
    /// # }
    /// ```
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
    /// ```
    /// use anello::sync::local::mpsc::{self, error::TryRecvError};
    ///
    /// let (sender, mut receiver) = mpsc::channel(1);
    /// sender.try_send(1)?;
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// drop(sender);
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns `Empty` if the queue is empty, or `Disconnected` if no value can be sent any more.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let mut state = self.channel.borrow_mut();
        let Some(value) = state.values.pop_front() else {
            // A sender to which a slot has been granted before the queue was closed finds it closed.
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
    ///
    /// ```
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(8);
    /// sender.try_send(1)?;
    /// receiver.close();
    /// assert!(sender.try_send(2).is_err());
    /// assert_eq!(receiver.try_recv(), Ok(1), "the values that have been sent before are still received");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&mut self) {
        close(&self.channel);
    }

    /// Returns whether the queue has been closed or all senders have been dropped.
    ///
    /// ```
    /// let (sender, receiver) = anello::sync::local::mpsc::channel::<u32>(1);
    /// assert!(!receiver.is_closed());
    /// drop(sender);
    /// assert!(receiver.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        let state = self.channel.borrow();
        state.is_closed || state.senders == 0
    }

    /// Returns whether the queue is empty.
    ///
    /// ```
    /// let (sender, receiver) = anello::sync::local::mpsc::channel(1);
    /// assert!(receiver.is_empty());
    /// sender.try_send(1)?;
    /// assert!(!receiver.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.channel.borrow().values.is_empty()
    }

    /// Returns the number of values in the queue.
    ///
    /// ```
    /// let (sender, mut receiver) = anello::sync::local::mpsc::channel(8);
    /// sender.try_send(1)?;
    /// sender.try_send(2)?;
    /// assert_eq!(receiver.len(), 2);
    /// receiver.try_recv()?;
    /// assert_eq!(receiver.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn len(&self) -> usize {
        self.channel.borrow().values.len()
    }

    /// Returns the number of senders.
    ///
    /// ```
    /// let (sender, receiver) = anello::sync::local::mpsc::channel::<u32>(1);
    /// let _clone = sender.clone();
    /// assert_eq!(receiver.sender_strong_count(), 2);
    /// ```
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
