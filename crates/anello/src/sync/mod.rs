//! Channels, locks and other synchronisation primitives.
//!
//! | item | purpose |
//! |---|---|
//! | [`mpsc`] | queue from several senders to one receiver, bounded or not |
//! | [`oneshot`] | one value from one sender to one receiver |
//! | [`broadcast`] | queue from several senders to several receivers, each of which receives every value |
//! | [`watch`] | the latest value, from several senders to several receivers |
//! | [`Mutex`], [`RwLock`] | locks whose guards can be held across an await point |
//! | [`Semaphore`] | limit on concurrent operations |
//! | [`Notify`], [`Barrier`], [`OnceCell`], [`SetOnce`] | one event, a rendezvous, one initialisation, one value |
//! | [`CancellationToken`] | request to stop, passed to a tree of tasks |
//! | [`local`] | channels between tasks of one worker, which need no atomic operations |
//!
//! Most items are those of `tokio::sync`, and can be passed to libraries that expect tokio's. The receivers of [`mpsc`],
//! and senders and receivers of [`broadcast`] and [`watch`], contain tokio's type: they dereference to it, and `from`
//! and `into` convert them. [`CancellationToken`] has the methods of `tokio_util::sync::CancellationToken`.
//!
//! # Between workers
//!
//! Except in [`local`], every item can be used by tasks on different workers, by tasks of other runtimes, and, with the
//! `blocking_` methods, by other threads. A task that is woken by a task of another worker is notified as described at
//! [`Handle::spawn`](crate::Handle::spawn): through the ring (`MSG_RING`, Linux 5.18) if both workers use io_uring.
//! A notification through the ring can be delayed until the task that wakes yields. A task therefore must not block its
//! thread until the task that it has woken has run.
//!
//! A task on the same worker is woken without a notification. Data that only one worker uses needs no lock at all:
//! tasks of a worker can share it in an `Rc<RefCell<T>>`, as long as no borrow is held across an await point.
//!
//! # Budget
//!
//! Receiving from a channel consumes one unit of the budget of the running task, as the operations of sockets and timers
//! do (see [`consume_budget`](crate::task::consume_budget)): a task yields even if other threads send values as fast as
//! it receives them. So do `closed` of the senders of [`broadcast`] and [`watch`], all operations of [`local`] channels and
//! [`CancellationToken::cancelled`].
//!
//! tokio's own types consume budget only within a runtime of tokio: locks, semaphores, [`Notify`], [`oneshot`] and the
//! senders of `mpsc`. A task without budget therefore enters their queues like any other task, and is served in FIFO
//! order. But a loop that awaits nothing else, and never has to wait, does not yield: call `consume_budget` in it.
//!
//! ```
//! # anello::example! {
//! use std::cell::Cell;
//! use std::rc::Rc;
//!
//! use anello::sync::Mutex;
//!
//! let (counter, is_stopped) = (Mutex::new(0), Rc::new(Cell::new(false)));
//! let stop = Rc::clone(&is_stopped);
//! anello::spawn(async move { stop.set(true) }).detach();
//! while !is_stopped.get() {
//!     *counter.lock().await += 1;
//!     // Without this line, the other task would never run.
//!     anello::task::consume_budget().await;
//! }
//! # }
//! ```
//!
//! # Methods that block
//!
//! On the thread of a runtime, the methods `blocking_recv` of the receivers of [`mpsc`] and [`broadcast`] panic. Those
//! of tokio's own types (`blocking_send`, `blocking_lock`, `oneshot::Receiver::blocking_recv`) block the worker. Call
//! them on other threads, such as those of [`spawn_blocking`](crate::task::spawn_blocking).

/// Gives a type the methods and conversions of tokio's type that it contains.
macro_rules! contain {
    ($name:ident, $($inner:ident)::+) => {
        impl<T> std::ops::Deref for $name<T> {
            type Target = $($inner)::+<T>;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl<T> std::ops::DerefMut for $name<T> {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }

        impl<T> From<$($inner)::+<T>> for $name<T> {
            fn from(inner: $($inner)::+<T>) -> Self {
                Self(inner)
            }
        }

        impl<T> From<$name<T>> for $($inner)::+<T> {
            fn from(outer: $name<T>) -> Self {
                outer.0
            }
        }

        impl<T> std::fmt::Debug for $name<T>
        where
            $($inner)::+<T>: std::fmt::Debug,
        {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

pub mod broadcast;
mod cancellation;
pub mod local;
pub mod mpsc;
pub mod watch;

pub use cancellation::{CancellationToken, DropGuard, DropGuardRef};
#[doc(inline)]
pub use tokio::sync::{
    AcquireError, Barrier, BarrierWaitResult, MappedMutexGuard, Mutex, MutexGuard, Notify, OnceCell,
    OwnedMappedMutexGuard, OwnedMutexGuard, OwnedRwLockMappedWriteGuard, OwnedRwLockReadGuard,
    OwnedRwLockWriteGuard, OwnedSemaphorePermit, RwLock, RwLockMappedWriteGuard, RwLockReadGuard,
    RwLockWriteGuard, Semaphore, SemaphorePermit, SetError, SetOnce, SetOnceError, TryAcquireError,
    TryLockError, futures, oneshot,
};
