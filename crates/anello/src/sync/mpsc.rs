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

use std::future::Future;
use std::task::{Context, Poll};

#[doc(inline)]
pub use tokio::sync::mpsc::{
    OwnedPermit, Permit, PermitIterator, Sender, UnboundedSender, WeakSender, WeakUnboundedSender, error,
};

use crate::executor::{assert_may_block, cooperative, poll_cooperatively};

/// Creates a queue that holds at most `capacity` values.
///
/// # Panics
/// Panics if `capacity` is 0.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::mpsc::channel(capacity);
    (sender, Receiver(receiver))
}

/// Creates a queue whose length is limited only by memory. Prefer [`channel`].
pub fn unbounded_channel<T>() -> (UnboundedSender<T>, UnboundedReceiver<T>) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (sender, UnboundedReceiver(receiver))
}

macro_rules! receiver {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        pub struct $name<T>(tokio::sync::mpsc::$name<T>);

        contain!($name, tokio::sync::mpsc::$name);

        impl<T> $name<T> {
            /// Receives the next value. Returns `None` when the queue is empty and either all senders have been dropped
            /// or the queue has been closed. Cancel-safe: no value is lost.
            pub fn recv(&mut self) -> impl Future<Output = Option<T>> {
                cooperative(self.0.recv())
            }

            /// Waits for a value, then appends up to `limit` values to `buffer`. Returns their number, which is 0 when
            /// no value can be received any more, or if `limit` is 0. Consumes one unit of budget. Cancel-safe.
            pub fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> impl Future<Output = usize> {
                cooperative(self.0.recv_many(buffer, limit))
            }

            /// Polls for the next value, like [`recv`](Self::recv).
            pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
                poll_cooperatively(context, |context| self.0.poll_recv(context), |_| 0)
            }

            /// Polls for values, like [`recv_many`](Self::recv_many).
            pub fn poll_recv_many(
                &mut self,
                context: &mut Context<'_>,
                buffer: &mut Vec<T>,
                limit: usize,
            ) -> Poll<usize> {
                poll_cooperatively(context, |context| self.0.poll_recv_many(context, buffer, limit), |_| 0)
            }

            /// Receives the next value, and blocks the thread until it has been sent.
            ///
            /// # Panics
            /// Panics if a runtime is running on this thread.
            #[track_caller]
            pub fn blocking_recv(&mut self) -> Option<T> {
                assert_may_block("blocking_recv");
                self.0.blocking_recv()
            }

            /// Receives values like [`recv_many`](Self::recv_many), and blocks the thread until one has been sent.
            ///
            /// # Panics
            /// Panics if a runtime is running on this thread.
            #[track_caller]
            pub fn blocking_recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
                assert_may_block("blocking_recv_many");
                self.0.blocking_recv_many(buffer, limit)
            }
        }
    };
}

receiver! {
    /// Receiver of a bounded queue (see [`channel`]), on the budget of its task. Contains tokio's type.
    Receiver
}

receiver! {
    /// Receiver of an unbounded queue (see [`unbounded_channel`]), on the budget of its task. Contains tokio's type.
    UnboundedReceiver
}
