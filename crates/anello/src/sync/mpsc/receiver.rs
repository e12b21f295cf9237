//! Receivers of both queues.

use std::future::Future;
use std::task::{Context, Poll};

use super::error::TryRecvError;
use super::{Receiver, UnboundedReceiver};
use crate::executor::poll_cooperatively;
use crate::sync::delegate::delegate;

/// Implements the methods that both receivers have. The examples start with `$setup`, which creates a queue and sends
/// the values 1 and 2.
macro_rules! impl_receiver {
    ($receiver:ident, $setup:literal) => {
        delegate! {
            impl[T] $receiver<T> {
                /// Receives the next value. Returns `None` when the queue is empty and either all senders have been
                /// dropped or the queue has been closed. Cancel-safe: no value is lost.
                ///
                /// ```
                /// # anello::Runtime::new()?.block_on(async {
                #[doc = $setup]
                /// drop(sender);
                /// assert_eq!(receiver.recv().await, Some(1));
                /// assert_eq!(receiver.recv().await, Some(2));
                /// assert_eq!(receiver.recv().await, None);
                /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                async fn recv(&mut self) -> Option<T>;

                /// Waits for a value, then appends up to `limit` values to `buffer`. Returns their number, which is 0
                /// when the queue is empty and no value can be sent any more, or if `limit` is 0. Consumes one unit of
                /// budget. Cancel-safe.
                ///
                /// ```
                /// # anello::Runtime::new()?.block_on(async {
                #[doc = $setup]
                /// let mut numbers = Vec::new();
                /// assert_eq!(receiver.recv_many(&mut numbers, 10).await, 2);
                /// assert_eq!(numbers, [1, 2]);
                /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize;

                /// Returns the next value without waiting.
                ///
                /// ```
                /// use anello::sync::mpsc::error::TryRecvError;
                ///
                #[doc = $setup]
                /// assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(1), Ok(2)));
                /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
                /// drop(sender);
                /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                ///
                /// # Errors
                /// Returns `Empty` if the queue is empty, or `Disconnected` if no value can be sent any more.
                direct fn try_recv(&mut self) -> Result<T, TryRecvError>;

                /// Receives the next value, and blocks the thread until there is one. For threads without a runtime.
                ///
                /// ```
                #[doc = $setup]
                /// assert_eq!(receiver.blocking_recv(), Some(1));
                /// assert_eq!(receiver.blocking_recv(), Some(2));
                /// drop(sender);
                /// assert_eq!(receiver.blocking_recv(), None);
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                blocking fn blocking_recv(&mut self) -> Option<T>;

                /// Appends up to `limit` values to `buffer` like [`recv_many`](Self::recv_many), and blocks the thread
                /// until there is one. For threads without a runtime.
                ///
                /// ```
                #[doc = $setup]
                /// let mut numbers = Vec::new();
                /// assert_eq!(receiver.blocking_recv_many(&mut numbers, 10), 2);
                /// assert_eq!(numbers, [1, 2]);
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                blocking fn blocking_recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize;

                /// Closes the queue: senders can send no more values, except to reserved slots.
                ///
                /// ```
                #[doc = $setup]
                /// receiver.close();
                /// assert!(sender.is_closed());
                /// // The values that have been sent before are still received.
                /// assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(1), Ok(2)));
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                direct fn close(&mut self);

                /// Returns whether the queue has been closed or all senders have been dropped.
                ///
                /// ```
                #[doc = $setup]
                /// assert!(!receiver.is_closed());
                /// drop(sender);
                /// assert!(receiver.is_closed());
                /// # assert_eq!(receiver.try_recv(), Ok(1));
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                direct fn is_closed(&self) -> bool;

                /// Returns whether the queue is empty.
                ///
                /// ```
                #[doc = $setup]
                /// assert!(!receiver.is_empty());
                /// receiver.try_recv()?;
                /// receiver.try_recv()?;
                /// assert!(receiver.is_empty());
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                direct fn is_empty(&self) -> bool;

                /// Returns the number of values in the queue.
                ///
                /// ```
                #[doc = $setup]
                /// assert_eq!(receiver.len(), 2);
                /// receiver.try_recv()?;
                /// assert_eq!(receiver.len(), 1);
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                direct fn len(&self) -> usize;

                /// Returns the number of senders.
                ///
                /// ```
                #[doc = $setup]
                /// let _clone = sender.clone();
                /// assert_eq!(receiver.sender_strong_count(), 2);
                /// # assert_eq!(receiver.try_recv(), Ok(1));
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                direct fn sender_strong_count(&self) -> usize;

                /// Returns the number of weak references to senders.
                ///
                /// ```
                #[doc = $setup]
                /// let _weak = sender.downgrade();
                /// assert_eq!(receiver.sender_weak_count(), 1);
                /// # assert_eq!(receiver.try_recv(), Ok(1));
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                direct fn sender_weak_count(&self) -> usize;
            }
        }

        impl<T> $receiver<T> {
            /// Polls for the next value, like [`recv`](Self::recv).
            ///
            /// ```
            /// use std::task::{Context, Poll, Waker};
            ///
            #[doc = $setup]
            /// let mut context = Context::from_waker(Waker::noop());
            /// assert_eq!(receiver.poll_recv(&mut context), Poll::Ready(Some(1)));
            /// assert_eq!(receiver.poll_recv(&mut context), Poll::Ready(Some(2)));
            /// assert_eq!(receiver.poll_recv(&mut context), Poll::Pending);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
                poll_cooperatively(context, |context| self.0.poll_recv(context), |_| 0)
            }

            /// Polls for up to `limit` values, like [`recv_many`](Self::recv_many).
            ///
            /// ```
            /// use std::task::{Context, Poll, Waker};
            ///
            #[doc = $setup]
            /// let mut context = Context::from_waker(Waker::noop());
            /// let mut numbers = Vec::new();
            /// assert_eq!(receiver.poll_recv_many(&mut context, &mut numbers, 10), Poll::Ready(2));
            /// assert_eq!(numbers, [1, 2]);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn poll_recv_many(
                &mut self,
                context: &mut Context<'_>,
                buffer: &mut Vec<T>,
                limit: usize,
            ) -> Poll<usize> {
                poll_cooperatively(context, |context| self.0.poll_recv_many(context, buffer, limit), |_| 0)
            }
        }
    };
}

impl_receiver!(
    Receiver,
    "let (sender, mut receiver) = anello::sync::mpsc::channel(8);\n\
     sender.try_send(1)?;\n\
     sender.try_send(2)?;"
);
impl_receiver!(
    UnboundedReceiver,
    "let (sender, mut receiver) = anello::sync::mpsc::unbounded_channel();\n\
     sender.send(1)?;\n\
     sender.send(2)?;"
);

delegate! {
    impl[T] Receiver<T> {
        /// Returns the number of free slots in the queue.
        ///
        /// ```
        /// let (sender, receiver) = anello::sync::mpsc::channel(2);
        /// sender.try_send(1)?;
        /// assert_eq!(receiver.capacity(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn capacity(&self) -> usize;

        /// Returns the number of slots in the queue.
        ///
        /// ```
        /// let (sender, receiver) = anello::sync::mpsc::channel(2);
        /// sender.try_send(1)?;
        /// assert_eq!((receiver.max_capacity(), receiver.capacity()), (2, 1));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn max_capacity(&self) -> usize;
    }
}
